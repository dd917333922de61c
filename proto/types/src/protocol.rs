//! Which versions of the session protocol a side speaks.

use std::fmt;

use crate::limits::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN};

/// The versions from the oldest to the newest one that a side speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolRange {
    oldest: u32,
    newest: u32,
}

impl ProtocolRange {
    /// What this build speaks.
    pub const OWN: Self = Self { oldest: PROTOCOL_VERSION_MIN, newest: PROTOCOL_VERSION };

    /// The versions from `oldest` to `newest`; `None` if `oldest` is the newer one.
    #[must_use]
    pub fn new(oldest: u32, newest: u32) -> Option<Self> {
        (oldest <= newest).then_some(Self { oldest, newest })
    }

    /// The oldest version.
    #[must_use]
    pub fn oldest(self) -> u32 {
        self.oldest
    }

    /// The newest version.
    #[must_use]
    pub fn newest(self) -> u32 {
        self.newest
    }

    /// Whether the side speaks this version.
    #[must_use]
    pub fn contains(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// The newest version that both sides speak.
    #[must_use]
    pub fn newest_common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (self.contains(newest) && other.contains(newest)).then_some(newest)
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest, newest } = self;
        if oldest == newest { write!(f, "{oldest}") } else { write!(f, "{oldest} to {newest}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_speak_the_newest_version_that_both_know() {
        let range = |oldest, newest| ProtocolRange::new(oldest, newest).expect("a range");
        for (one, other, common) in [
            (range(1, 1), range(1, 1), Some(1)),
            (range(1, 3), range(2, 5), Some(3)),
            (range(1, 4), range(2, 3), Some(3)),
            (range(1, 2), range(3, 4), None),
        ] {
            assert_eq!(one.newest_common(other), common, "{one}; {other}");
            assert_eq!(other.newest_common(one), common, "{other}; {one}");
        }
        assert_eq!(ProtocolRange::new(2, 1), None);
        assert_eq!(range(1, 3).to_string(), "1 to 3");
        assert_eq!(range(2, 2).to_string(), "2");
    }
}
