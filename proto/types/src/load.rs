//! Load: documents per second, counted in thousandths, so that shares of it add up exactly.

use std::fmt;
use std::iter::Sum;
use std::num::NonZeroU64;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// Documents per second, in thousandths. The number is stored plus one, so that an optional load,
/// as every lease has one, takes no more memory than a load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Load(NonZeroU64);

/// Why a number is not a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a load: use a number from 0 to 1000000000 with at most three decimal places")]
pub struct InvalidLoad;

impl Load {
    /// No load at all.
    pub const ZERO: Self = Self::of(0);
    /// The largest load that a manifest may name: a thousand million documents per second.
    pub const MAX: Self = Self::of(1_000_000_000_000);

    /// A number of thousandths; what is above the most that can be stored counts as that.
    const fn of(milli: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(milli))
    }

    /// A number of thousandths of a document per second.
    ///
    /// # Errors
    /// [`InvalidLoad`] above [`Load::MAX`].
    pub fn from_milli(milli: u64) -> Result<Self, InvalidLoad> {
        Some(Self::of(milli)).filter(|load| *load <= Self::MAX).ok_or(InvalidLoad)
    }

    /// A number of documents per second.
    ///
    /// # Errors
    /// [`InvalidLoad`] above [`Load::MAX`].
    pub fn per_second(documents: u64) -> Result<Self, InvalidLoad> {
        documents.checked_mul(1_000).ok_or(InvalidLoad).and_then(Self::from_milli)
    }

    /// In thousandths of a document per second.
    #[must_use]
    pub fn milli(self) -> u64 {
        self.0.get() - 1
    }

    /// In documents per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact up to Load::MAX times nine thousand")]
    pub fn as_f64(self) -> f64 {
        self.milli() as f64 / 1_000.0
    }

    /// What is left after `other` is taken away; nothing where that is more.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self::of(self.milli().saturating_sub(other.milli()))
    }

    /// `percent` of it, rounded down.
    #[must_use]
    pub fn percent(self, percent: u8) -> Self {
        let (milli, percent) = (self.milli(), u64::from(percent));
        Self::of(milli / 100 * percent + milli % 100 * percent / 100)
    }
}

/// Saturates: sums over all pipelines of a coordinator stay far below.
impl Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::of(self.milli().saturating_add(other.milli()))
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Loads are subtracted only from what they were added to.
impl Sub for Load {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let left = self.milli().checked_sub(other.milli());
        Self::of(left.expect("a load is taken from what it was added to"))
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::ZERO, Add::add)
    }
}

impl Default for Load {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Load").field(&self.milli()).finish()
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.milli() / 1_000, self.milli() % 1_000);
        match part {
            0 => write!(f, "{whole}"),
            part => f.write_str(format!("{whole}.{part:03}").trim_end_matches('0')),
        }
    }
}

impl std::str::FromStr for Load {
    type Err = InvalidLoad;

    fn from_str(text: &str) -> Result<Self, InvalidLoad> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let padded = whole.len() > 9 && whole.starts_with('0');
        if !digits(whole) || !digits(part) || part.len() > 3 || padded {
            return Err(InvalidLoad);
        }
        let whole: u64 = whole.parse().map_err(|_| InvalidLoad)?;
        let part: u64 = format!("{part:0<3}").parse().map_err(|_| InvalidLoad)?;
        let milli = whole.checked_mul(1_000).and_then(|milli| milli.checked_add(part));
        milli.ok_or(InvalidLoad).and_then(Self::from_milli)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_and_shown_alike() {
        for good in ["0", "10", "0.5", "3.334", "1000000000"] {
            assert_eq!(good.parse::<Load>().expect("a load").to_string(), good);
        }
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "1.0001",
            "1000000000.001",
            "0000000001",
            "10m",
        ] {
            assert_eq!(bad.parse::<Load>(), Err(InvalidLoad), "{bad:?}");
        }
    }

    #[test]
    fn a_part_of_a_load_never_overflows() {
        assert_eq!(
            "15".parse::<Load>().map(|load| load.percent(70).to_string()),
            Ok("10.5".into())
        );
        let most = Load::of(u64::MAX);
        assert_eq!(most.percent(100), most);
    }

    #[test]
    fn an_optional_load_takes_no_more_memory_than_a_load() {
        assert_eq!(size_of::<Option<Load>>(), size_of::<Load>());
        assert_eq!(Load::ZERO.milli(), 0);
        assert!(Load::ZERO < Load::of(1) && Load::of(1) < Load::MAX);
    }
}
