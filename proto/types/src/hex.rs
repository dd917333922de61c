//! Random identities of 128 bits, written as 32 lowercase hexadecimal digits.

use std::fmt;

/// Digits of an identity.
const DIGITS: usize = 32;

/// Reads an identity; `None` if the text is not 32 lowercase hexadecimal digits.
pub(crate) fn parse(text: &str) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_identity = text.len() == DIGITS && text.bytes().all(is_digit);
    is_identity.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Writes an identity.
pub(crate) fn write(id: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{id:0DIGITS$x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_identities_are_read() {
        for id in [0, 7, u128::MAX] {
            let text = format!("{:032x}", id);
            assert_eq!(parse(&text), Some(id));
        }
        let short = "7".repeat(31);
        let signed = format!("+{short}");
        for text in ["", "7", &short, &signed, &"7".repeat(33), &"G".repeat(32), &"A".repeat(32)] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
