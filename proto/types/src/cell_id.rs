//! The identity of a cell: the coordinator's replicas that share one store of leadership.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Digits of an identity.
const DIGITS: usize = 32;

/// The identity of a cell: a random number that its store keeps. Leases and tokens of two cells
/// have nothing to do with each other. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub u128);

/// Why a text is not a cell's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the 32 hexadecimal digits that `leasehold status` shows of a cell, for example \
     0c7d4c1b9f6e4a52b1d05a3f9e8c2d71"
)]
pub struct InvalidCellId;

impl Serialize for CellId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CellId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

impl FromStr for CellId {
    type Err = InvalidCellId;

    fn from_str(text: &str) -> Result<Self, InvalidCellId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == DIGITS && text.bytes().all(is_digit) {
            u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidCellId)
        } else {
            Err(InvalidCellId)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_identities_are_read() {
        for id in [CellId(0), CellId(7), CellId(u128::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "7", &"7".repeat(33), &"G".repeat(32), &"A".repeat(32)] {
            assert_eq!(text.parse::<CellId>(), Err(InvalidCellId), "{text:?}");
        }
    }
}
