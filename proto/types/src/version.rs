//! The version of a build, as agents and coordinators say it.

use std::fmt;
use std::str::FromStr;

/// The version of a build: `MAJOR.MINOR.PATCH`. What may follow after a `-` or a `+` is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

/// A text that is no version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected MAJOR.MINOR.PATCH, for example 0.1.0")]
pub struct InvalidVersion;

impl Version {
    /// The version of this build: all crates of the workspace have the same.
    ///
    /// # Panics
    /// Never: Cargo checks versions.
    #[must_use]
    pub fn own() -> Self {
        env!("CARGO_PKG_VERSION").parse().expect("Cargo's versions are versions")
    }
}

impl FromStr for Version {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let numbers = text.split_once(['-', '+']).map_or(text, |(numbers, _)| numbers);
        let mut numbers = numbers.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let version = next().zip(next()).zip(next());
        match (version, numbers.next()) {
            (Some(((major, minor), patch)), None) => Ok(Self { major, minor, patch }),
            _ => Err(InvalidVersion),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_number_by_number() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("0.9.0") < version("0.10.0"));
        assert!(version("0.10.1") < version("1.0.0"));
        assert_eq!(version("1.2.3-rc.1"), version("1.2.3+build.7"));
        assert_eq!(version("0.10.0").to_string(), "0.10.0");
        assert_eq!(Version::own().to_string(), env!("CARGO_PKG_VERSION"));
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "v1.2.3", "1..3"] {
            assert_eq!(text.parse::<Version>(), Err(InvalidVersion), "{text:?}");
        }
    }
}
