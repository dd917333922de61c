//! Amounts of CPU and memory as Kubernetes writes them: `250m`, `0.5`, `64Mi`, `1e3`. The one
//! reader of the workspace; its grammar is that of Kubernetes' `resource.Quantity`, without
//! negative amounts, which no container can have.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Expected, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Bytes of a quantity.
pub const QUANTITY_BYTES_MAX: usize = 32;
/// A regular expression of the texts, for a JSON schema.
pub const QUANTITY_PATTERN: &str = concat!(
    "^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)",
    "(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,2})?$",
);
/// What a field that takes a quantity expects, in words.
pub const QUANTITY_WANTED: &str = "a quantity such as 100m, 0.5 or 64Mi";

/// Every suffix with its factor.
const SUFFIXES: [(&str, f64); 16] = [
    ("", 1.0),
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
/// Digits of a decimal exponent.
const EXPONENT_DIGITS_MAX: usize = 2;
/// Characters of an invalid text that an error shows.
const SHOWN_MAX: usize = 64;

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid quantity {0:?}: use a number, or a number with a suffix, for example 250m, 2 or 64Mi"
)]
pub struct InvalidQuantity(String);

/// An amount of CPU or memory, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quantity(String);

impl Quantity {
    /// The amount, as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the amount is 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        let (number, _) = split(&self.0);
        !number.bytes().any(|byte| matches!(byte, b'1'..=b'9'))
    }

    /// Whether the amount is larger than `other`, to 15 digits.
    #[must_use]
    pub fn is_above(&self, other: &Self) -> bool {
        self.value() > other.value()
    }

    fn value(&self) -> f64 {
        let (number, suffix) = split(&self.0);
        let number: f64 = number.parse().expect("a quantity begins with a number");
        number * factor(suffix).expect("a quantity ends with a known suffix")
    }
}

/// The number, with its sign, and the suffix.
fn split(text: &str) -> (&str, &str) {
    let number = |c: char| c.is_ascii_digit() || c == '.' || c == '+';
    text.split_at(text.find(|c| !number(c)).unwrap_or(text.len()))
}

fn factor(suffix: &str) -> Option<f64> {
    if let Some((_, factor)) = SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Some(*factor);
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let is_short = (1..=EXPONENT_DIGITS_MAX).contains(&digits.len()) && is_digits(digits);
    let exponent = exponent.parse().ok().filter(|_| is_short)?;
    Some(10_f64.powi(exponent))
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let (number, suffix) = split(text);
        let number = number.strip_prefix('+').unwrap_or(number);
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let has_digits = !(whole.is_empty() && decimals.is_empty());
        let is_number = has_digits && is_digits(whole) && is_digits(decimals);
        let is_quantity = is_number && factor(suffix).is_some() && text.len() <= QUANTITY_BYTES_MAX;
        if is_quantity {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidQuantity(text.chars().take(SHOWN_MAX).collect()))
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Takes numbers too, as Kubernetes does: `cpu: 2`.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// A number that must not be negative, for visitors of values in manifests.
///
/// # Errors
/// If it is negative; the error names what was expected.
pub fn unsigned<E: serde::de::Error>(number: i64, expected: &dyn Expected) -> Result<u64, E> {
    u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), expected))
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(QUANTITY_WANTED)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Quantity, E> {
        let number = unsigned(number, &self)?;
        self.visit_u64(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Quantity, E> {
        let wrong = |_| E::invalid_value(Unexpected::Float(number), &self);
        number.to_string().parse().map_err(wrong)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that Kubernetes' `ParseQuantity` takes.
    const ACCEPTED: [&str; 28] = [
        "0", "1", "007", "250m", "0.5", ".5", "5.", "+1", "+.5Gi", "1n", "100u", "1k", "1M", "1G",
        "1T", "1P", "12E", "1Ki", "64Mi", "1.5Gi", "1Ti", "1Pi", "1Ei", "1e3", "1E2", "1e-3",
        "1E+3", "0.0Gi",
    ];
    /// Texts that it refuses, and, at the end, negative amounts.
    const REFUSED: [&str; 33] = [
        "", ".", "+", "m", "Mi", "e3", "1.2.3", "1..2", "64MB", "64 Mi", " 1", "1 ", "1mi", "1ki",
        "1K", "1d", "1e", "1E+", "1e3m", "1e1.5", "1ee3", "1Zi", "1Mi1", "1_000", "1,000", "0x1",
        "inf", "NaN", "１", "1+1", "++1", "-1", "-0",
    ];

    fn quantity(text: &str) -> Quantity {
        text.parse().expect(text)
    }

    #[test]
    fn quantities_follow_the_grammar_of_kubernetes() {
        for text in ACCEPTED {
            assert_eq!(quantity(text).to_string(), text);
        }
        for text in REFUSED {
            text.parse::<Quantity>().expect_err(text);
        }
        let long = format!("{}Mi", "0".repeat(QUANTITY_BYTES_MAX - 2));
        assert!(
            long.parse::<Quantity>().is_ok() && format!("0{long}").parse::<Quantity>().is_err()
        );
    }

    #[test]
    fn quantities_are_compared_by_their_amounts() {
        for (more, less) in [
            ("1", "999m"),
            ("1Mi", "1M"),
            ("1e3", "0.9k"),
            ("2E", "1Ei"),
            (".5", "1u"),
            ("+5.", "4"),
            ("1n", "0"),
        ] {
            let (more, less) = (quantity(more), quantity(less));
            assert!(more.is_above(&less) && !less.is_above(&more), "{more} {less}");
        }
        let (one, same) = (quantity("1"), quantity("1000m"));
        assert!(!one.is_above(&same) && !same.is_above(&one));
        assert!(quantity("0.0Gi").is_zero() && quantity("0e1").is_zero());
        assert!(!quantity("0.01").is_zero() && !quantity("1n").is_zero());
    }

    #[test]
    fn an_error_names_the_text_and_says_how_to_write_it() {
        let error = "64MB".parse::<Quantity>().expect_err("MB is not a suffix").to_string();
        assert_eq!(
            error,
            "invalid quantity \"64MB\": use a number, or a number with a suffix, for example \
             250m, 2 or 64Mi"
        );
        assert!(
            "9".repeat(5_000).parse::<Quantity>().expect_err("too long").to_string().len() < 200
        );
    }
}
