//! Kubernetes' quantities, as in `250m` and `64Mi`.

/// The longest quantity that is taken.
const QUANTITY_CHARS_MAX: usize = 32;

/// Whether one quantity is more than another; not where one of them is none.
pub(crate) fn is_above(one: &str, other: &str) -> bool {
    matches!((amount(one), amount(other)), (Some(one), Some(other)) if one > other)
}

/// A quantity as a number, as exact as a comparison by people needs it.
fn amount(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 15] = [
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
    ];
    let in_unit = |(unit, factor): &(&str, f64)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    };
    // Without a unit it is a number, with an exponent perhaps.
    text.parse().ok().or_else(|| UNITS.iter().find_map(in_unit))
}

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
    use super::{check, is_above};

    #[test]
    fn quantities_are_compared_by_what_they_mean() {
        for (more, less) in [
            ("1", "999m"),
            ("1Mi", "1M"),
            ("1e3", "0.9k"),
            ("2E", "1Ei"),
            (".5", "1u"),
            ("1n", "0"),
        ] {
            assert!(is_above(more, less) && !is_above(less, more), "{more} {less}");
        }
        assert!(!is_above("1", "1000m") && !is_above("1000m", "1") && !is_above("x", "1"));
    }

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
