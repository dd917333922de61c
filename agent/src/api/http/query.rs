//! Reads the parameters of queries, so that an error says what is expected.

use std::borrow::Cow;

use leasehold_types::flag;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::worker::api::WAIT_MS_MAX;

/// How long a call may wait, in milliseconds.
pub(super) fn wait_ms<'de, D: Deserializer<'de>>(query: D) -> Result<u32, D::Error> {
    let range = 0..=WAIT_MS_MAX.into();
    parameter(query, flag::number(range, "a number of milliseconds", 5_000))
}

/// Within which time a worker calls again, in milliseconds.
pub(super) fn within_ms<'de, D: Deserializer<'de>>(query: D) -> Result<Option<u32>, D::Error> {
    let range = 0..=u32::MAX.into();
    parameter(query, flag::number(range, "a number of milliseconds", 10_000)).map(Some)
}

/// The version of a lease.
pub(super) fn version<'de, D: Deserializer<'de>>(query: D) -> Result<Option<u64>, D::Error> {
    parameter(query, flag::number(0..=u64::MAX, "the version of a lease", 7)).map(Some)
}

/// Whether something is wanted.
pub(super) fn boolean<'de, D: Deserializer<'de>>(query: D) -> Result<bool, D::Error> {
    parameter(query, flag::boolean)
}

fn parameter<'de, D: Deserializer<'de>, T>(
    query: D,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = Cow::<str>::deserialize(query)?;
    read(&text).map_err(|expected| D::Error::custom(format!("invalid value {text:?}: {expected}")))
}
