//! The only place of this process that reads clocks. Leases use CLOCK_BOOTTIME, which also counts
//! while the host sleeps, so that a sleep never extends a lease. The time of day is only for
//! certificates and tokens, for exemplars of metrics and for what people read.

use std::fmt;
use std::time::{Duration, SystemTime};

use leasehold_types::Moment;
use rustix::time::{ClockId, clock_gettime};
use rustls_pki_types::UnixTime;

/// The present moment by CLOCK_BOOTTIME; comparable only within this boot of this machine.
#[must_use]
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the time since boot is not negative");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are not negative");
    Moment(seconds * 1_000_000_000 + nanos)
}

/// The time of day, only for the validity of certificates and tokens: it can be wrong, and it can
/// jump back. No lease depends on it. While it is behind, what has expired is valid for that much
/// longer.
#[must_use]
pub fn time_of_day() -> UnixTime {
    let seconds = clock_gettime(ClockId::Realtime).tv_sec;
    let seconds = u64::try_from(seconds).unwrap_or_default();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// A time of day for people and for Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    unix_ms: u64,
}

impl Timestamp {
    /// The current time of day.
    #[must_use]
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Realtime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
        Self { unix_ms: seconds * 1_000 + nanos / 1_000_000 }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        Self::UNIX_EPOCH + Duration::from_millis(timestamp.unix_ms)
    }
}

/// In UTC, as in RFC 3339.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ms) = (self.unix_ms / 1_000, self.unix_ms % 1_000);
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        // Howard Hinnant's civil_from_days: years begin in March, in eras of 400 years.
        let days = days + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = year + era * 400 + u64::from(month <= 2);
        let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::is_timestamp;

    use super::Timestamp;

    #[test]
    fn formats_timestamps_as_rfc_3339_in_utc() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_769_825_220_125, "2026-01-31T02:07:00.125Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp { unix_ms }.to_string(), text);
            assert!(is_timestamp(text));
        }
    }

    #[test]
    fn the_clock_never_goes_back() {
        let mut last = super::now();
        for _ in 0..1_000 {
            let next = super::now();
            assert!(next >= last);
            last = next;
        }
    }
}
