//! The identity of a cell: the coordinator's replicas that share one store of leadership.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::hex;

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
        hex::write(self.0, f)
    }
}

impl FromStr for CellId {
    type Err = InvalidCellId;

    fn from_str(text: &str) -> Result<Self, InvalidCellId> {
        hex::parse(text).map(Self).ok_or(InvalidCellId)
    }
}
