//! The former name of [`crate::duration`], until the coordinator's crates use that.

use std::time::Duration;

/// Reads a flag's duration as [`crate::duration::parse`] does, without its error.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    crate::duration::parse(text).ok()
}
