//! Kubernetes' quantities, as in `250m` and `64Mi`.

/// The longest quantity that is taken.
const QUANTITY_CHARS_MAX: usize = 32;

/// Why a text is no quantity above zero.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let wrong = || "is no quantity: write 250m, 2, 64Mi or 1Gi".to_owned();
    if text.len() > QUANTITY_CHARS_MAX {
        return Err(wrong());
    }
    let number = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let units = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E"];
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let exponent = |unit: &str| {
        let digits = unit.strip_prefix(['e', 'E'])?;
        let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
        (!digits.is_empty() && digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit()))
            .then_some(())
    };
    if !units.contains(&unit) && !binary.contains(&unit) && exponent(unit).is_none() {
        return Err(wrong());
    }
    match number.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        true => Ok(()),
        false => Err("is nothing: a container that may use none cannot run".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn quantities_are_what_kubernetes_takes() {
        for good in ["1", "250m", "0.5", ".5", "64Mi", "1e3", "12E", "1E2", "100n", "1.5Gi"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", "m", "1.2.3", "64MB", "64 Mi", "-1", "1mi", "1e", ".", "0", "0.0Gi", "１"]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
