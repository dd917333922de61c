//! Durations as Kubernetes writes them: `10s`, `1m30s`, `2h`, `500ms`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

/// The longest duration that a manifest may ask for.
pub const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Bytes of a duration as text.
pub(crate) const SPAN_BYTES_MAX: usize = 32;

/// The units, each with the most digits before it: enough for the longest duration, and too few
/// for any sum of them to be too large for whoever adds them up.
const UNITS: [(&str, usize, u64); 4] =
    [("ms", 11, 1), ("s", 8, 1_000), ("m", 6, 60_000), ("h", 4, 3_600_000)];

/// A span of time in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

const WANTED: &str = "a duration such as 500ms, 10s, 1m30s or 2h";

impl Span {
    /// Reads a duration; `None` where the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self(Duration::ZERO));
        }
        if text.is_empty() || text.len() > SPAN_BYTES_MAX {
            return None;
        }
        let mut rest = text;
        let mut total_ms: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            let (number, tail) = rest.split_at(digits);
            let unit_len = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_len);
            let (_, digits_max, ms) = UNITS.iter().find(|(known, _, _)| *known == unit)?;
            let number: u64 = number.parse().ok().filter(|_| digits <= *digits_max)?;
            total_ms = total_ms.checked_add(number * ms)?;
            rest = tail;
        }
        Some(Self(Duration::from_millis(total_ms))).filter(|span| span.0 <= DURATION_MAX)
    }
}

impl fmt::Display for Span {
    /// In the form that is parsed, from hours down; what is below a millisecond is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0");
        }
        for (unit, _, ms) in UNITS.iter().rev() {
            if rest >= *ms {
                write!(f, "{}{unit}", rest / ms)?;
                rest %= ms;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let part = |(unit, digits, _): &(&str, usize, u64)| format!("[0-9]{{1,{digits}}}{unit}");
        let parts = UNITS.iter().map(part).collect::<Vec<_>>().join("|");
        json_schema!({
            "type": "string",
            "maxLength": SPAN_BYTES_MAX,
            "pattern": format!("^(0|({parts})+)$"),
            "x-wanted": WANTED,
        })
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WANTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
        Span::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_kubernetes_writes_them() {
        let ms = |text| Span::parse(text).map(|span| span.0.as_millis());
        assert_eq!(ms("10s"), Some(10_000));
        assert_eq!(ms("1m30s"), Some(90_000));
        assert_eq!(ms("2h"), Some(7_200_000));
        assert_eq!(ms("500ms"), Some(500));
        assert_eq!(ms("0"), Some(0));
        for bad in ["", "10", "s", "-1s", "1d", "1.5h", "10 s", "9999999h", "99999999999999999999s"]
        {
            assert_eq!(ms(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn durations_are_written_as_they_are_read() {
        for text in ["0", "10s", "1m30s", "2h", "500ms", "8784h", "1h1m1s1ms"] {
            assert_eq!(Span::parse(text).map(|span| span.to_string()).as_deref(), Some(text));
        }
    }
}
