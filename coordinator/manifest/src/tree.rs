//! A YAML document with the place of every value. Parsing is bounded in depth, size and aliases,
//! so that no manifest can take the process's memory or stack.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::localizer::Localizer;
use serde_yaml::{Location, Options, Spanned, UserMessageFormatter};

/// Levels of lists and mappings in one document.
pub(crate) const DEPTH_MAX: usize = 32;
/// Values in one manifest, aliases expanded.
pub(crate) const NODES_MAX: usize = 500_000;
/// Aliases in one manifest.
pub(crate) const ALIASES_MAX: usize = 100;

/// Values that the aliases of one manifest expand to.
pub(crate) const ALIASED_MAX: usize = 100_000;

/// A place in a file, from 1; 0 where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

impl Position {
    pub fn from_location(at: Location) -> Self {
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Self { line: small(at.line()), column: small(at.column()) }
    }
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: Position,
    pub value: Value,
}

/// A YAML value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// Left out: it was reported as wrong, and the rest is looked at without it.
    Pruned,
}

impl Node {
    /// The value of a key, if this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, value)| value)
    }

    /// A key and its value, if this is a mapping that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&(Node, Node)> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(name, _)| name.text() == Some(key))
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items that were not pruned, with their positions, if this is a list.
    pub(crate) fn items(&self) -> impl Iterator<Item = (usize, &Node)> {
        let items = match &self.value {
            Value::List(items) => items.as_slice(),
            _ => &[],
        };
        items.iter().enumerate().filter(|(_, item)| !matches!(item.value, Value::Pruned))
    }
}

/// What is wrong with a text as YAML.
#[derive(Clone, Debug)]
pub(crate) struct YamlError {
    pub at: Position,
    pub message: String,
}

impl YamlError {
    pub(crate) fn from_yaml(error: &serde_yaml::Error) -> Self {
        let formatter = UserMessageFormatter;
        let formatter = formatter.with_localizer(&WithoutLocations);
        let message = error.without_snippet().render_with_formatter(&formatter);
        let at = error.location().map(Position::from_location).unwrap_or_default();
        Self { at, message }
    }
}

/// Leaves places out of messages: a problem has its own.
struct WithoutLocations;

impl Localizer for WithoutLocations {
    fn attach_location<'a>(&self, base: Cow<'a, str>, _: Location) -> Cow<'a, str> {
        base
    }
}

/// The documents of a text; empty ones are left out.
pub(crate) fn parse(text: &str) -> Result<Vec<Node>, YamlError> {
    serde_yaml::from_multiple_with_options::<Node>(text, options(NODES_MAX))
        .map_err(|error| YamlError::from_yaml(&error))
}

/// A value that was read elsewhere, without places; nested no deeper than its own reader lets.
pub(crate) fn from_json(value: serde_json::Value) -> Node {
    use serde_json::Value as Json;
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Value::Unsigned(value),
            (None, Some(value)) => Value::Signed(value),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Text(text),
        Json::Array(items) => Value::List(items.into_iter().map(from_json).collect()),
        Json::Object(entries) => {
            let key = |key| Node { at: Position::default(), value: Value::Text(key) };
            Value::Map(entries.into_iter().map(|(k, v)| (key(k), from_json(v))).collect())
        }
    };
    Node { at: Position::default(), value }
}

/// How YAML is read: by YAML 1.2 (`yes` is text), with bounds.
pub(crate) fn options(nodes_max: usize) -> Options {
    serde_yaml::options! {
        budget: serde_yaml::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: nodes_max,
            max_events: nodes_max * 2,
            max_aliases: ALIASES_MAX,
        },
        alias_limits: serde_yaml::alias_limits! {
            max_total_replayed_events: ALIASED_MAX,
        },
        strict_booleans: true,
        with_snippet: false,
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { at: Position::from_location(referenced), value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Signed(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}
