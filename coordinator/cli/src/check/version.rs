//! Versions in image tags, and which of them work together.

use std::fmt;

/// This program's version, which is that of the coordinator and agent built with it.
pub(super) const OWN: &str = env!("CARGO_PKG_VERSION");

/// A version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u64, u64, u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl Version {
    /// This program's.
    pub(super) fn own() -> Option<Self> {
        Self::parse(OWN)
    }

    /// The version in an image's tag; `None` if the tag is not a version, or is missing.
    pub(super) fn of_image(image: &str) -> Option<Self> {
        Self::parse(tag(image)?)
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once(['-', '+']).map_or(text, |(version, _)| version);
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version = Self(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// Whether both work together: neighbouring minor versions do.
    pub(super) fn is_compatible(self, other: Self) -> bool {
        self.0 == other.0 && self.1.abs_diff(other.1) <= 1
    }
}

/// The tag of an image, if it has one.
pub(super) fn tag(image: &str) -> Option<&str> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    last.split_once(':').map(|(_, tag)| tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_tags_and_nothing_else() {
        for (image, wanted) in [
            ("leasehold/agent:0.1.0", Some((0, 1, 0))),
            ("mirror:5000/leasehold/agent:v1.20.3", Some((1, 20, 3))),
            ("mirror:5000/leasehold/agent", None),
            ("agent:1.2.3-rc.1@sha256:00", Some((1, 2, 3))),
            ("agent@sha256:00", None),
            ("agent:latest", None),
            ("agent:1.2", None),
            ("agent:1.2.3.4", None),
        ] {
            let wanted = wanted.map(|(major, minor, patch)| Version(major, minor, patch));
            assert_eq!(Version::of_image(image), wanted, "{image}");
        }
    }

    #[test]
    fn neighbouring_versions_are_compatible() {
        let own = Version(0, 3, 1);
        for (other, wanted) in [
            (Version(0, 3, 9), true),
            (Version(0, 2, 0), true),
            (Version(0, 4, 0), true),
            (Version(0, 1, 9), false),
            (Version(1, 3, 1), false),
        ] {
            assert_eq!(own.is_compatible(other), wanted, "{other}");
        }
        assert!(Version::own().is_some());
    }
}
