//! A number of pods, or a part of them, as Kubernetes writes it: `2` or `25%`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

/// The largest number; more pods than any cluster has.
const COUNT_MAX: u32 = 100_000;
const WANTED: &str = "a number of pods, or a percentage such as 25%";

/// A number of pods, or a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Count(u32),
    /// So many of a hundred.
    Percent(u8),
}

impl Amount {
    /// Whether it is none at all.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        matches!(self, Self::Count(0) | Self::Percent(0))
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_suffix('%')?;
        let short = !digits.starts_with('0') || digits == "0";
        let plain = short && digits.bytes().all(|byte| byte.is_ascii_digit());
        let percent = digits.parse().ok().filter(|percent| plain && *percent <= 100)?;
        Some(Self::Percent(percent))
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Percent(percent) => serializer.collect_str(&format_args!("{percent}%")),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

struct AmountVisitor;

impl Visitor<'_> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WANTED)
    }

    fn visit_u64<E: serde::de::Error>(self, count: u64) -> Result<Amount, E> {
        let wrong = || E::invalid_value(Unexpected::Unsigned(count), &self);
        let small = u32::try_from(count).ok().filter(|count| *count <= COUNT_MAX);
        small.map(Amount::Count).ok_or_else(wrong)
    }

    fn visit_i64<E: serde::de::Error>(self, count: i64) -> Result<Amount, E> {
        match u64::try_from(count) {
            Ok(count) => self.visit_u64(count),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(count), &self)),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Amount, E> {
        Amount::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": COUNT_MAX,
            "maxLength": 4,
            "pattern": "^(100|[1-9][0-9]|[0-9])%$",
            "x-wanted": WANTED,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_and_percentages_are_read_and_written_alike() {
        for good in [json!(0), json!(7), json!("0%"), json!("25%"), json!("100%")] {
            let amount: Amount = serde_json::from_value(good.clone()).unwrap();
            assert_eq!(serde_json::to_value(amount).unwrap(), good);
        }
        for bad in [json!(-1), json!(100_001), json!("7"), json!("101%"), json!("05%"), json!("%")]
        {
            assert!(serde_json::from_value::<Amount>(bad.clone()).is_err(), "{bad}");
        }
    }
}
