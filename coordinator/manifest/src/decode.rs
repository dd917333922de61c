//! Turns a located document into a manifest's type, and names every field that does not fit: a
//! wrong value is reported, left out, and the rest is read again. Fields that no type knows are
//! wrong in files; from an API server, that may be newer than this process, they are passed over.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use leasehold_types::did_you_mean;

use super::tree::{Node, Position, Value};

/// How serde names the type of all whole numbers.
const WHOLE: &str = "u32";
/// Wrong values that are looked for in one document.
const FIELD_ERRORS_MAX: usize = 20;

/// A step into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathStep {
    Key(String),
    Item(usize),
}

/// A value that does not fit, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct FieldError {
    pub at: Position,
    pub path: Vec<PathStep>,
    pub message: String,
}

/// What becomes of a field that no type knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownFields {
    /// It does not fit the type.
    Refused,
    /// Nothing.
    Ignored,
}

/// Reads `node` as a `T`. `None` only together with at least one error.
pub(crate) fn decode<T: DeserializeOwned>(
    node: &mut Node,
    unknown: UnknownFields,
) -> (Option<T>, Vec<FieldError>) {
    let mut errors = Vec::new();
    let mut pruned: Vec<Vec<PathStep>> = Vec::new();
    while errors.len() < FIELD_ERRORS_MAX {
        let mut error = match T::deserialize(NodeDeserializer { node, unknown }) {
            Ok(value) => return (Some(value), errors),
            Err(error) => error,
        };
        error.path.reverse();
        let missing = error.missing;
        let mut path = error.path.clone();
        // A field is missing where its wrong value was left out: it has been reported.
        if !(missing && pruned.contains(&path)) {
            errors.push(FieldError {
                at: error.at.unwrap_or(node.at),
                path: error.path,
                message: error.message,
            });
        }
        // Without a field that it must have, an item is left out whole.
        let item =
            !missing || (path.pop().is_some() && matches!(path.last(), Some(PathStep::Item(_))));
        if !item || !prune(node, &path) {
            break;
        }
        pruned.push(path);
    }
    (None, errors)
}

/// The path as people write it: `spec.streams[3].weight`.
pub(crate) fn show(path: &[PathStep]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            PathStep::Key(key) if text.is_empty() => text.push_str(key),
            PathStep::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
            PathStep::Item(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

/// Whether there was something to leave out.
fn prune(node: &mut Node, path: &[PathStep]) -> bool {
    let mut node = node;
    for step in path {
        let next = match (step, &mut node.value) {
            (PathStep::Key(key), Value::Map(entries)) => entries
                .iter_mut()
                .find(|(name, _)| name.text() == Some(key))
                .map(|(_, value)| value),
            (PathStep::Item(index), Value::List(items)) => items.get_mut(*index),
            _ => None,
        };
        match next {
            Some(next) => node = next,
            None => return false,
        }
    }
    let had = !path.is_empty() && !matches!(node.value, Value::Pruned);
    node.value = Value::Pruned;
    had
}

/// Why a value does not fit; its path grows from the inside out.
#[derive(Debug)]
pub(crate) struct DecodeError {
    at: Option<Position>,
    path: Vec<PathStep>,
    message: String,
    missing: bool,
}

impl DecodeError {
    fn new(message: String) -> Self {
        Self { at: None, path: Vec::new(), message, missing: false }
    }

    fn within(mut self, step: PathStep, at: Position) -> Self {
        self.at.get_or_insert(at);
        self.path.push(step);
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        let (shown, hint) = (plain_found(&found), hint(&found, &wanted.to_string()));
        Self::new(format!("is {shown}, but must be {}{hint}", plain_expected(wanted)))
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        let too_large = matches!(found, Unexpected::Unsigned(number) if number > u32::MAX.into());
        let found = plain_found(&found);
        if too_large && wanted.to_string() == WHOLE {
            return Self::new(format!("is {found}, which is too large"));
        }
        Self::new(format!("is {found}, but must be {}", plain_expected(wanted)))
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        let (near, known) = (did_you_mean(variant, known.iter().copied()), known.join(", "));
        Self::new(format!("is {variant:?}, but must be one of: {known}{near}"))
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let (near, known) = (did_you_mean(field, known.iter().copied()), known.join(", "));
        Self::new(format!("is not a known field: remove it, or use one of: {known}{near}"))
    }

    fn missing_field(field: &'static str) -> Self {
        let path = vec![PathStep::Key(field.into())];
        Self { path, missing: true, ..Self::new("is missing: add it".into()) }
    }
}

/// How to write what was meant, if that can be told.
fn hint(found: &Unexpected<'_>, wanted: &str) -> String {
    let is_text = wanted == "a string";
    match found {
        Unexpected::Bool(_) | Unexpected::Signed(_) | Unexpected::Unsigned(_) if is_text => {
            "; write it in quotes".into()
        }
        Unexpected::Float(_) if is_text => "; write it in quotes".into(),
        Unexpected::Str(text) if wanted == WHOLE => match text.parse::<u32>() {
            Ok(number) => format!("; write {number}, without quotes"),
            Err(_) => String::new(),
        },
        // YAML takes 010 for such a number, too.
        Unexpected::Float(number) if wanted == WHOLE && number.fract() == 0.0 && *number >= 0.0 => {
            format!("; write {number}")
        }
        Unexpected::Str(text) if wanted == "struct StreamEntry" => {
            format!("; write {{name: {text}}}")
        }
        _ => String::new(),
    }
}

fn plain_found(found: &Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("the boolean {value}"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value:?}"),
        Unexpected::Str(text) => {
            format!("the text {:?}", text.chars().take(64).collect::<String>())
        }
        Unexpected::Unit | Unexpected::Option => "empty".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a mapping".into(),
        other => other.to_string(),
    }
}

fn plain_expected(wanted: &dyn Expected) -> String {
    let wanted = wanted.to_string();
    match wanted.as_str() {
        WHOLE => "a whole number, 0 or more".into(),
        "u16" => "a whole number, 0 to 65535".into(),
        "f64" => "a number".into(),
        "a string" => "text".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list".into(),
        "a map" => "a mapping".into(),
        other if other.starts_with("struct ") => "a mapping".into(),
        _ => wanted,
    }
}

/// A value on its way into a type.
#[derive(Clone, Copy)]
struct NodeDeserializer<'de> {
    node: &'de Node,
    unknown: UnknownFields,
}

impl<'de> NodeDeserializer<'de> {
    fn of(self, node: &'de Node) -> Self {
        Self { node, ..self }
    }

    /// A mapping, of whose fields only those in `known` are looked at where there is such a list.
    fn entries(
        self,
        entries: &'de [(Node, Node)],
        known: Option<&'static [&'static str]>,
    ) -> MapEntries<'de> {
        let known = known.filter(|_| self.unknown == UnknownFields::Ignored);
        MapEntries { reader: self, entries: entries.iter(), known, value: None }
    }
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let result = match &self.node.value {
            Value::Null | Value::Pruned => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Signed(value) => visitor.visit_i64(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => {
                visitor.visit_seq(ListAccess { reader: self, items: items.iter().enumerate() })
            }
            Value::Map(entries) => visitor.visit_map(self.entries(entries, None)),
        };
        result.map_err(|mut error: DecodeError| {
            error.at.get_or_insert(self.node.at);
            error
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let Value::Map(entries) = &self.node.value else { return self.deserialize_any(visitor) };
        let result = visitor.visit_map(self.entries(entries, Some(fields)));
        result.map_err(|mut error: DecodeError| {
            error.at.get_or_insert(self.node.at);
            error
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null | Value::Pruned => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            other => Err(DecodeError::new(format!(
                "is {}, but must be one of: {}",
                plain_found(&unexpected(other)),
                variants.join(", ")
            ))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null | Value::Pruned => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Signed(value) => Unexpected::Signed(*value),
        Value::Unsigned(value) => Unexpected::Unsigned(*value),
        Value::Float(value) => Unexpected::Float(*value),
        Value::Text(text) => Unexpected::Str(text),
        Value::List(_) => Unexpected::Seq,
        Value::Map(_) => Unexpected::Map,
    }
}

struct ListAccess<'de> {
    reader: NodeDeserializer<'de>,
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
}

impl<'de> SeqAccess<'de> for ListAccess<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let mut kept = self.items.by_ref().filter(|(_, n)| !matches!(n.value, Value::Pruned));
        match kept.next() {
            None => Ok(None),
            Some((index, item)) => seed
                .deserialize(self.reader.of(item))
                .map(Some)
                .map_err(|error| error.within(PathStep::Item(index), item.at)),
        }
    }
}

struct MapEntries<'de> {
    reader: NodeDeserializer<'de>,
    /// The fields that are read; `None` reads all of them.
    known: Option<&'static [&'static str]>,
    entries: std::slice::Iter<'de, (Node, Node)>,
    value: Option<&'de (Node, Node)>,
}

impl<'de> MapAccess<'de> for MapEntries<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        let known = self.known;
        let is_known = |key: &Node| {
            known.is_none_or(|known| key.text().is_some_and(|key| known.contains(&key)))
        };
        let is_read =
            |(key, value): &&(Node, Node)| !matches!(value.value, Value::Pruned) && is_known(key);
        let Some(entry) = self.entries.by_ref().find(is_read) else { return Ok(None) };
        self.value = Some(entry);
        let key = &entry.0;
        seed.deserialize(self.reader.of(key))
            .map(Some)
            .map_err(|error| error.within(PathStep::Key(key_text(key)), key.at))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeError> {
        let (key, value) = self.value.take().expect("serde asks for a value after its key");
        seed.deserialize(self.reader.of(value))
            .map_err(|error| error.within(PathStep::Key(key_text(key)), value.at))
    }
}

fn key_text(key: &Node) -> String {
    match &key.value {
        Value::Text(text) => text.clone(),
        other => plain_found(&unexpected(other)),
    }
}
