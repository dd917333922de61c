//! Time as the cores see it: moments of one process's own monotonic clock, passed in as `now`.
//!
//! A [`Moment`] never crosses the wire, and moments of two processes are never compared.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds of a monotonic clock that counts a suspended host's sleep too (CLOCK_BOOTTIME).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// The beginning of every clock: no moment is earlier.
    pub const EARLIEST: Self = Self(0);

    /// Later than any moment that a clock shows.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time from `earlier` to this moment; zero where `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// How far clocks may be apart in rate, and what is added on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBounds {
    /// The most that one clock may run faster than another, in parts per million.
    pub drift_ppm: u32,
    /// Added to every time after which another process's lease counts as ended.
    pub margin: Duration,
}

impl TimeBounds {
    /// `span * (1 + drift) + margin`: how long to wait by one's own clock until `span` has
    /// surely passed on another's.
    #[must_use]
    pub fn outlast(&self, span: Duration) -> Duration {
        let extra = span.as_nanos() * u128::from(self.drift_ppm) / 1_000_000;
        span + Duration::from_nanos(u64::try_from(extra).unwrap_or(u64::MAX)) + self.margin
    }
}

impl Default for TimeBounds {
    /// 1 % of drift (quartz clocks stay below 0.1 %) and half a second.
    fn default() -> Self {
        Self { drift_ppm: 10_000, margin: Duration::from_millis(500) }
    }
}

/// Whether a text has the form in which coordinators write times: UTC, as in
/// 2026-01-31T02:07:00.125Z.
#[must_use]
pub fn is_timestamp(text: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00T00:00:00.000Z";
    let fits = |(byte, form): (u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        _ => byte == *form,
    };
    text.len() == FORM.len() && text.bytes().zip(FORM).all(fits)
}
