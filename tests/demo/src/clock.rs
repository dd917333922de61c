//! The clocks of the demo. Workers and checker share one host, so their times compare.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The interval between two polls of whatever is waited for.
pub const POLL: Duration = Duration::from_millis(20);

/// Nanoseconds of the clock that the workers' journals carry: it never jumps, and runs while
/// the machine sleeps.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("the machine booted before now");
    let rest = u64::try_from(now.tv_nsec).expect("a fraction of a second is positive");
    seconds * 1_000_000_000 + rest
}

/// Microseconds of the wall clock since 1970.
#[must_use]
pub fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970 of an RFC 3339 time in UTC, as in `2026-11-20T10:23:29.123456Z`; none
/// where `text` is not such a time.
#[must_use]
pub fn parse_rfc3339_us(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let date: Vec<i64> = date.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let clock: Vec<i64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let ([year, month, day], [hour, minute, second]) = (&date[..], &clock[..]) else {
        return None;
    };
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}")[..6].parse().ok()?;
    let days = days_from_civil(*year, *month, *day);
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    u64::try_from(seconds * 1_000_000 + micros).ok()
}

/// Days from 1970-01-01 to a date of the Gregorian calendar: Howard Hinnant's algorithm
/// (<https://howardhinnant.github.io/date_algorithms.html>), for years from 0 on.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_timestamps_of_a_log() {
        assert_eq!(parse_rfc3339_us("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_rfc3339_us("2024-02-29T12:00:00.5Z"), Some(1_709_208_000_500_000));
        assert_eq!(parse_rfc3339_us("2026-11-20T10:23:29.123456Z"), Some(1_795_170_209_123_456));
        assert_eq!(parse_rfc3339_us("2026-11-20T10:23:29.123456789Z"), Some(1_795_170_209_123_456));
    }

    #[test]
    fn rejects_other_timestamps() {
        for text in
            ["", "now", "2026-11-20", "2026-11-20T10:23:29.x1Z", "2026-11-20T10:23:29+01:00"]
        {
            assert_eq!(parse_rfc3339_us(text), None, "{text}");
        }
    }
}
