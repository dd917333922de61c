//! Durations as text: `250ms`, `30s`, `1h30m`. The one reader and the one writer of the workspace.
//!
//! Invariant: what [`format()`] writes, every [`Format`] reads back, up to its longest duration.

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// It is not a sequence of numbers with units.
    #[error("invalid duration {0:?}: use a number with a unit, for example 30s or 1h30m")]
    Syntax(String),
    /// It is longer than the format allows.
    #[error("invalid duration {text:?}: use at most {}", format(*.max))]
    TooLong {
        /// The text.
        text: String,
        /// The longest duration of the format.
        max: Duration,
    },
}

#[derive(Debug)]
struct Unit {
    name: &'static str,
    nanos: u128,
    /// The most digits before it.
    digits_max: usize,
}

/// How a duration may be written.
#[derive(Debug)]
pub struct Format {
    units: &'static [Unit],
    /// Whether a number may have decimals, as in `1.5h`.
    decimals: bool,
    bytes_max: usize,
    max: Duration,
}

const MS: u128 = 1_000_000;
const S: u128 = 1_000 * MS;
const M: u128 = 60 * S;
const H: u128 = 60 * M;
/// Enough digits for every number of 64 bits.
const DIGITS_MAX: usize = 20;
/// Characters of an invalid text that an error shows.
const SHOWN_MAX: usize = 64;

const fn unit(name: &'static str, nanos: u128, digits_max: usize) -> Unit {
    Unit { name, nanos, digits_max }
}

/// Flags: whole numbers of days to milliseconds, at most a hundred years.
pub const FLAG: Format = Format {
    units: &[
        unit("d", 24 * H, DIGITS_MAX),
        unit("h", H, DIGITS_MAX),
        unit("m", M, DIGITS_MAX),
        unit("s", S, DIGITS_MAX),
        unit("ms", MS, DIGITS_MAX),
    ],
    decimals: false,
    bytes_max: 1024,
    max: Duration::from_secs(100 * 365 * 24 * 60 * 60),
};

/// Fields of manifests: whole numbers of hours to milliseconds, at most 366 days. The digits of
/// each unit suffice for the longest duration, and keep the sum of all within 64 bits for the API
/// server's validation.
pub const MANIFEST: Format = Format {
    units: &[unit("ms", MS, 11), unit("s", S, 8), unit("m", M, 6), unit("h", H, 4)],
    decimals: false,
    bytes_max: 32,
    max: Duration::from_secs(366 * 24 * 60 * 60),
};

/// What Go's `time.Duration` prints: decimals, and units down to the nanosecond.
pub const GO: Format = Format {
    units: &[
        unit("h", H, DIGITS_MAX),
        unit("m", M, DIGITS_MAX),
        unit("s", S, DIGITS_MAX),
        unit("ms", MS, DIGITS_MAX),
        // Go prints the first; it reads the other two as well.
        unit("µs", 1_000, DIGITS_MAX),
        unit("μs", 1_000, DIGITS_MAX),
        unit("us", 1_000, DIGITS_MAX),
        unit("ns", 1, DIGITS_MAX),
    ],
    decimals: true,
    bytes_max: 1024,
    max: Duration::MAX,
};

/// Reads a flag's duration: [`FLAG`].
///
/// # Errors
/// [`InvalidDuration`] says how to write one.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    FLAG.parse(text)
}

impl Format {
    /// Reads a duration: numbers with a unit each, one after another, or `0`.
    ///
    /// # Errors
    /// [`InvalidDuration`] says how to write one.
    pub fn parse(&self, text: &str) -> Result<Duration, InvalidDuration> {
        let shown = || text.chars().take(SHOWN_MAX).collect();
        let nanos = self.nanos(text).ok_or_else(|| InvalidDuration::Syntax(shown()))?;
        let whole = u64::try_from(nanos / S).ok();
        let rest = u32::try_from(nanos % S).expect("a second has fewer nanoseconds than 2^32");
        let duration = whole.map(|secs| Duration::new(secs, rest));
        duration
            .filter(|duration| *duration <= self.max)
            .ok_or_else(|| InvalidDuration::TooLong { text: shown(), max: self.max })
    }

    /// The longest duration.
    #[must_use]
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// The most bytes of a text.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// A regular expression of the texts, for a JSON schema: it does not know the longest duration
    /// or decimals.
    #[must_use]
    pub fn pattern(&self) -> String {
        let part = |unit: &Unit| format!("[0-9]{{1,{}}}{}", unit.digits_max, unit.name);
        let parts: Vec<String> = self.units.iter().map(part).collect();
        format!("^(0|({})+)$", parts.join("|"))
    }

    fn nanos(&self, text: &str) -> Option<u128> {
        if text == "0" {
            return Some(0);
        }
        if text.is_empty() || text.len() > self.bytes_max {
            return None;
        }
        let mut rest = text;
        let mut sum: u128 = 0;
        while !rest.is_empty() {
            let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, tail) = rest.split_at(number_len);
            let unit_len = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (name, tail) = tail.split_at(unit_len);
            let unit = self.units.iter().find(|unit| unit.name == name)?;
            sum = sum.saturating_add(self.times(number, unit)?);
            rest = tail;
        }
        Some(sum)
    }

    /// A number of units in nanoseconds. One of too many digits is above every longest duration.
    fn times(&self, number: &str, unit: &Unit) -> Option<u128> {
        let (whole, decimals) = match number.split_once('.') {
            None => (number, ""),
            Some((whole, decimals)) if self.decimals && !decimals.is_empty() => (whole, decimals),
            Some(_) => return None,
        };
        if !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        if whole.len() > unit.digits_max {
            return Some(u128::MAX);
        }
        let whole: u128 = whole.parse().ok()?;
        // Below a nanosecond digits do not count: an hour has 13 digits of nanoseconds.
        let digits = decimals.bytes().take(13).map(|byte| u128::from(byte - b'0'));
        let (mut part, mut scale) = (0, unit.nanos);
        for digit in digits {
            part += digit * scale / 10;
            scale /= 10;
        }
        Some(whole.saturating_mul(unit.nanos).saturating_add(part))
    }
}

/// Writes a duration, from hours down to milliseconds; what is below a millisecond is left out.
#[must_use]
pub fn format(duration: Duration) -> String {
    let mut rest = duration.as_millis() * MS;
    if rest == 0 {
        return "0".into();
    }
    let mut text = String::new();
    for (unit, nanos) in [("h", H), ("m", M), ("s", S), ("ms", MS)] {
        if rest >= nanos {
            text += &format!("{}{unit}", rest / nanos);
            rest %= nanos;
        }
    }
    text
}

/// Writes a duration for people, with its two largest units at most, as in `1h59m`: milliseconds
/// only below a second, seconds only below an hour.
#[must_use]
pub fn format_short(duration: Duration) -> String {
    let secs = duration.as_secs();
    match secs {
        0 => format(duration),
        1..3600 => format(Duration::from_secs(secs)),
        _ => format(Duration::from_secs(secs - secs % 60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(format: &Format, text: &str) -> Option<u128> {
        format.parse(text).ok().map(|duration| duration.as_millis())
    }

    #[test]
    fn every_format_reads_whole_numbers_with_units_and_refuses_what_is_not_a_duration() {
        for format in [&FLAG, &MANIFEST, &GO] {
            for (text, ms) in [
                ("0", 0),
                ("0s", 0),
                ("10s", 10_000),
                ("90s", 90_000),
                ("1m30s", 90_000),
                ("1h30m", 5_400_000),
                ("2h", 7_200_000),
                ("250ms", 250),
                ("8784h", 31_622_400_000),
            ] {
                assert_eq!(millis(format, text), Some(ms), "{text:?}");
            }
            for text in ["", "5", "s", "-1s", "+1s", "1 h", "10 s", "3w", "1.s", ".5s", "1..2s"] {
                assert_eq!(millis(format, text), None, "{text:?}");
            }
        }
    }

    #[test]
    fn each_format_has_units_and_bounds_of_its_own() {
        assert_eq!(millis(&FLAG, "1d"), Some(86_400_000));
        assert_eq!(millis(&FLAG, "36500d"), Some(FLAG.max().as_millis()));
        for text in ["1.5h", "200000000h", "99999999999999999999s", "36500d1ms", "1us"] {
            assert_eq!(millis(&FLAG, text), None, "{text:?}");
        }
        for text in ["1d", "1.5h", "9999999h", "8784h1ms", "99999999999999999999s", "00000h"] {
            assert_eq!(millis(&MANIFEST, text), None, "{text:?}");
        }
        assert_eq!(millis(&MANIFEST, &"1s".repeat(16)), Some(16_000));
        assert_eq!(millis(&MANIFEST, &"1s".repeat(17)), None, "longer than 32 bytes");
        assert_eq!(
            MANIFEST.pattern(),
            "^(0|([0-9]{1,11}ms|[0-9]{1,8}s|[0-9]{1,6}m|[0-9]{1,4}h)+)$"
        );
        for (text, nanos) in [
            ("1h2m3.5s", 3_723_500_000_000),
            ("850ms", 850_000_000),
            ("7.5µs", 7_500),
            ("1.000000001h", 3_600_000_003_600),
            ("3ns", 3),
        ] {
            assert_eq!(GO.parse(text).map(|duration| duration.as_nanos()), Ok(nanos), "{text}");
        }
        for (format, huge) in
            [(&GO, "99999999999999999999h"), (&MANIFEST, "9000h"), (&MANIFEST, "9999999h")]
        {
            let found = format.parse(huge);
            assert!(matches!(found, Err(InvalidDuration::TooLong { .. })), "{huge}: {found:?}");
        }
    }

    #[test]
    fn an_error_names_the_text_and_says_how_to_write_it() {
        let error = |text| parse(text).expect_err(text).to_string();
        assert_eq!(
            error("5x"),
            "invalid duration \"5x\": use a number with a unit, for example 30s or 1h30m"
        );
        assert_eq!(error("40000d"), "invalid duration \"40000d\": use at most 876000h");
        assert!(error(&"9".repeat(5_000)).len() < 200);
    }

    #[test]
    fn durations_are_written_as_they_are_read() {
        for text in ["0", "10s", "1m30s", "2h", "500ms", "8784h", "1h1m1s1ms"] {
            assert_eq!(format(MANIFEST.parse(text).expect(text)), text);
        }
        assert_eq!(format(Duration::from_micros(1_999)), "1ms");
        for (millis, text) in
            [(7_199_000, "1h59m"), (61_500, "1m1s"), (60_000, "1m"), (1_250, "1s"), (12, "12ms")]
        {
            assert_eq!(format_short(Duration::from_millis(millis)), text);
        }
    }
}
