//! Values of manifests that have a form of their own: durations, rates, numbers or percentages of
//! pods, and quantities. Each is read from a manifest, written back, and described to the API
//! server in one place.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use leasehold_types::duration::{InvalidDuration, MANIFEST};
use leasehold_types::quantity::{QUANTITY_BYTES_MAX, QUANTITY_PATTERN, QUANTITY_WANTED, unsigned};
use leasehold_types::{Load, duration};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

const DURATION_WANTED: &str = "a duration such as 500ms, 10s, 1m30s or 2h";
const RATE_WANTED: &str =
    "documents per second: a whole number up to 1000000000, or a text such as \"2.5\"";
/// The largest number of pods: more than any cluster has.
const POD_COUNT_MAX: u32 = 100_000;
const COUNT_OR_PERCENT_WANTED: &str = "a number of pods, or a percentage such as 25%";

/// A duration in a manifest, in the format [`MANIFEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestDuration(pub Duration);

impl Serialize for ManifestDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration::format(self.0))
    }
}

impl<'de> Deserialize<'de> for ManifestDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor)
    }
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = ManifestDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DURATION_WANTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ManifestDuration, E> {
        MANIFEST.parse(text).map(ManifestDuration).map_err(|error| match error {
            InvalidDuration::Syntax(_) => E::invalid_value(Unexpected::Str(text), &self),
            InvalidDuration::TooLong { max, .. } => {
                let longest = format!("at most {}", duration::format(max));
                E::invalid_value(Unexpected::Str(text), &longest.as_str())
            }
        })
    }
}

impl JsonSchema for ManifestDuration {
    fn schema_name() -> Cow<'static, str> {
        "ManifestDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": MANIFEST.bytes_max(),
            "pattern": MANIFEST.pattern(),
            "x-wanted": DURATION_WANTED,
        })
    }
}

/// Documents per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(pub Load);

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.milli() {
            milli if milli % 1_000 == 0 => serializer.serialize_u64(milli / 1_000),
            _ => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RateVisitor)
    }
}

struct RateVisitor;

impl Visitor<'_> for RateVisitor {
    type Value = Rate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(RATE_WANTED)
    }

    fn visit_u64<E: serde::de::Error>(self, documents: u64) -> Result<Rate, E> {
        let wrong = |_| E::invalid_value(Unexpected::Unsigned(documents), &self);
        Load::per_second(documents).map(Rate).map_err(wrong)
    }

    fn visit_i64<E: serde::de::Error>(self, documents: i64) -> Result<Rate, E> {
        let documents = unsigned(documents, &self)?;
        self.visit_u64(documents)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Rate, E> {
        let wrong = |_| E::invalid_value(Unexpected::Str(text), &self);
        text.parse().map(Rate).map_err(wrong)
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": Load::MAX.milli() / 1_000,
            "maxLength": 14,
            "pattern": r"^([0-9]{1,9}(\.[0-9]{1,3})?|1000000000(\.0{1,3})?)$",
            "x-wanted": RATE_WANTED,
        })
    }
}

/// A number of pods, or a percentage of them, as Kubernetes writes it: `2` or `25%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOrPercent {
    /// A number of pods.
    Count(u32),
    /// A percentage of the pods.
    Percent(u8),
}

impl CountOrPercent {
    /// Whether it is 0 or 0%.
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

impl Serialize for CountOrPercent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Percent(percent) => serializer.collect_str(&format_args!("{percent}%")),
        }
    }
}

impl<'de> Deserialize<'de> for CountOrPercent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountOrPercentVisitor)
    }
}

struct CountOrPercentVisitor;

impl Visitor<'_> for CountOrPercentVisitor {
    type Value = CountOrPercent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(COUNT_OR_PERCENT_WANTED)
    }

    fn visit_u64<E: serde::de::Error>(self, count: u64) -> Result<CountOrPercent, E> {
        let wrong = || E::invalid_value(Unexpected::Unsigned(count), &self);
        let small = u32::try_from(count).ok().filter(|count| *count <= POD_COUNT_MAX);
        small.map(CountOrPercent::Count).ok_or_else(wrong)
    }

    fn visit_i64<E: serde::de::Error>(self, count: i64) -> Result<CountOrPercent, E> {
        let count = unsigned(count, &self)?;
        self.visit_u64(count)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CountOrPercent, E> {
        CountOrPercent::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl JsonSchema for CountOrPercent {
    fn schema_name() -> Cow<'static, str> {
        "CountOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": POD_COUNT_MAX,
            "maxLength": 4,
            "pattern": "^(100|[1-9][0-9]|[0-9])%$",
            "x-wanted": COUNT_OR_PERCENT_WANTED,
        })
    }
}

/// The schema of a field that takes a [`leasehold_types::Quantity`].
pub(crate) fn quantity_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "maxLength": QUANTITY_BYTES_MAX,
        "pattern": QUANTITY_PATTERN,
        "x-wanted": QUANTITY_WANTED,
    })
}

#[cfg(test)]
mod tests {
    use leasehold_types::Quantity;
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_read_and_written_alike() {
        for good in [json!("0"), json!("1m30s"), json!("500ms"), json!("8784h")] {
            let duration: ManifestDuration = serde_json::from_value(good.clone()).unwrap();
            assert_eq!(serde_json::to_value(duration).unwrap(), good);
        }
        for bad in [json!(10), json!(""), json!("1d"), json!("1.5h"), json!("8785h")] {
            assert!(serde_json::from_value::<ManifestDuration>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn whole_numbers_and_texts_are_read_and_written_alike() {
        for good in [json!(0), json!(10), json!(1_000_000_000), json!("2.5"), json!("0.001")] {
            let rate: Rate = serde_json::from_value(good.clone()).unwrap();
            assert_eq!(serde_json::to_value(rate).unwrap(), good);
        }
        assert_eq!(serde_json::from_value::<Rate>(json!("7")).unwrap(), Rate("7".parse().unwrap()));
        for bad in [json!(-1), json!(2.5), json!(1_000_000_001), json!("1e3"), json!("10m")] {
            assert!(serde_json::from_value::<Rate>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_and_percentages_are_read_and_written_alike() {
        for good in [json!(0), json!(7), json!("0%"), json!("25%"), json!("100%")] {
            let value: CountOrPercent = serde_json::from_value(good.clone()).unwrap();
            assert_eq!(serde_json::to_value(value).unwrap(), good);
        }
        for bad in [json!(-1), json!(100_001), json!("7"), json!("101%"), json!("05%"), json!("%")]
        {
            assert!(serde_json::from_value::<CountOrPercent>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn quantities_are_read_from_texts_and_numbers() {
        for (good, text) in [
            (json!("100m"), "100m"),
            (json!("1e3"), "1e3"),
            (json!("0.5"), "0.5"),
            (json!(2), "2"),
            (json!(0.25), "0.25"),
        ] {
            let quantity: Quantity = serde_json::from_value(good).unwrap();
            assert_eq!(quantity.as_str(), text);
        }
        for bad in [json!("much"), json!(""), json!("5MB"), json!(-1), json!(-0.5), json!(null)] {
            assert!(serde_json::from_value::<Quantity>(bad.clone()).is_err(), "{bad}");
        }
    }
}
