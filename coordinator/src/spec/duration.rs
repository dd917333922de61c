//! Durations as Kubernetes writes them: `10s`, `1m30s`, `2h`, `500ms`.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};

/// The longest duration that a manifest may ask for.
pub const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A span of time in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

const WANTED: &str = "a duration such as 500ms, 10s, 1m30s or 2h";

impl Span {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut total = Duration::ZERO;
        if text == "0" {
            return Some(Self(total));
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            let (number, tail) = rest.split_at(digits);
            let unit_len = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_len);
            let number: u64 = number.parse().ok()?;
            let part = match unit {
                "ms" => Duration::from_millis(number),
                "s" => Duration::from_secs(number),
                "m" => Duration::from_secs(number.checked_mul(60)?),
                "h" => Duration::from_secs(number.checked_mul(3600)?),
                _ => return None,
            };
            total = total.checked_add(part)?;
            rest = tail;
        }
        (!text.is_empty() && total <= DURATION_MAX).then_some(Self(total))
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
}
