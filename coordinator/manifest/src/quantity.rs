//! An amount of CPU or memory as Kubernetes writes it: `100m`, `0.5`, `64Mi`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

/// Bytes of a quantity.
const BYTES_MAX: usize = 32;
/// The units: each is a suffix.
const UNITS: [&str; 14] =
    ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const WANTED: &str = "a quantity such as 100m, 0.5 or 64Mi";

/// An amount of CPU or memory, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity(String);

impl Quantity {
    /// The amount, as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = !whole.is_empty() && !part.is_empty() && !part.contains('.');
        let is_known = UNITS.contains(&unit) && text.len() <= BYTES_MAX;
        (is_number && is_known).then(|| Self(text.to_owned()))
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WANTED)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Quantity, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Quantity, E> {
        let text = number.to_string();
        let wrong = || E::invalid_value(Unexpected::Float(number), &self);
        Quantity::parse(&text).ok_or_else(wrong)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maxLength": BYTES_MAX,
            "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
            "x-wanted": WANTED,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (good, text) in [
            (json!("100m"), "100m"),
            (json!("64Mi"), "64Mi"),
            (json!("0.5"), "0.5"),
            (json!(2), "2"),
            (json!(0.25), "0.25"),
        ] {
            let quantity: Quantity = serde_json::from_value(good).unwrap();
            assert_eq!(quantity.text(), text);
        }
        for bad in [json!("much"), json!(""), json!("1.2.3"), json!("5MB"), json!(-1), json!("m")] {
            assert!(serde_json::from_value::<Quantity>(bad.clone()).is_err(), "{bad}");
        }
    }
}
