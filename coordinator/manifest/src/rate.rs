//! Documents per second, as manifests write them: `10`, or `"2.5"`. Kubernetes keeps no fractions
//! in numbers, so that they are texts.

use std::borrow::Cow;
use std::fmt;

use leasehold_types::Load;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

const WANTED: &str =
    "documents per second: a whole number up to 1000000000, or a text such as \"2.5\"";

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
        f.write_str(WANTED)
    }

    fn visit_u64<E: serde::de::Error>(self, documents: u64) -> Result<Rate, E> {
        let wrong = |_| E::invalid_value(Unexpected::Unsigned(documents), &self);
        Load::per_second(documents).map(Rate).map_err(wrong)
    }

    fn visit_i64<E: serde::de::Error>(self, documents: i64) -> Result<Rate, E> {
        match u64::try_from(documents) {
            Ok(documents) => self.visit_u64(documents),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(documents), &self)),
        }
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
            "x-wanted": WANTED,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
