//! A time of the day, as in `08:30`.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};

/// How long a day is.
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time since midnight, below 24 hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DayTime(pub(super) Duration);

impl DayTime {
    fn parse(text: &str) -> Option<Self> {
        let (hours, minutes) = text.split_once(':')?;
        let number = |digits: &str, below: u64| {
            let is_plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u64>().ok().filter(|number| is_plain && *number < below)
        };
        let seconds = number(hours, 24)? * 3600 + number(minutes, 60)? * 60;
        Some(Self(Duration::from_secs(seconds)))
    }
}

impl<'de> Deserialize<'de> for DayTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DayTimeVisitor)
    }
}

struct DayTimeVisitor;

impl Visitor<'_> for DayTimeVisitor {
    type Value = DayTime;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time of the day, from \"00:00\" to \"23:59\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DayTime, E> {
        DayTime::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_two_digits_for_hours_and_two_for_minutes() {
        for (text, minutes) in [("00:00", Some(0)), ("08:30", Some(510)), ("23:59", Some(1439))] {
            let time = DayTime::parse(text).map(|time| time.0.as_secs() / 60);
            assert_eq!(time, minutes, "{text}");
        }
        for text in ["24:00", "12:60", "8:30", "08:30:00", "0830", "+8:30", "", ":"] {
            assert_eq!(DayTime::parse(text), None, "{text}");
        }
    }
}
