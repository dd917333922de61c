//! A node as JSON, as kubectl reads it; and JSON as nodes.

use serde_json::{Map, Number, Value};

use super::tree::{Kind, Node, Style, is_null};

/// The key whose value's keys count as the map's own.
pub(super) const MERGE: &str = "<<";

/// A node without aliases as JSON: plain scalars are what YAML 1.1 and 1.2 both take them for, and
/// merged keys are the map's own.
///
/// # Errors
/// The line and what is wrong with it, where a map has a key twice.
pub(crate) fn to_json(node: &Node) -> Result<Value, (usize, String)> {
    let line = |node: &Node| node.at.as_ref().map_or(0, |place| place.line);
    match &node.kind {
        Kind::Scalar(text, Style::Plain) if node.tag.is_none() => Ok(plain(text)),
        Kind::Scalar(text, _) => Ok(text.as_str().into()),
        Kind::List(items) => items.iter().map(to_json).collect(),
        Kind::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries.iter().filter(|(key, _)| !is_merge(key)) {
                let text = key.text().unwrap_or_default();
                if map.insert(text.into(), to_json(value)?).is_some() {
                    return Err((line(key), format!("the key {text:?} is there twice")));
                }
            }
            for (key, value) in merged(node) {
                if !map.contains_key(key) {
                    map.insert(key.into(), to_json(value)?);
                }
            }
            Ok(map.into())
        }
        Kind::Alias(_) => Err((line(node), "an alias is left".into())),
    }
}

fn is_merge(key: &Node) -> bool {
    matches!(&key.kind, Kind::Scalar(text, Style::Plain) if text == MERGE)
}

/// The value of a key that a map without aliases has itself or by merging.
pub(crate) fn look<'a>(map: &'a Node, key: &str) -> Option<&'a Node> {
    let found = || merged(map).into_iter().find(|(name, _)| *name == key).map(|(_, it)| it);
    map.get(key).or_else(found)
}

/// The keys that a map without aliases has from others, the first of a name first.
pub(super) fn merged(map: &Node) -> Vec<(&str, &Node)> {
    let Kind::Map(entries) = &map.kind else { return Vec::new() };
    let mut found = Vec::new();
    for (_, value) in entries.iter().filter(|(key, _)| is_merge(key)) {
        let sources = match &value.kind {
            Kind::List(items) => items.iter().collect(),
            _ => vec![value],
        };
        for source in sources {
            if let Kind::Map(entries) = &source.kind {
                let own = entries.iter().filter(|(key, _)| !is_merge(key));
                found.extend(own.filter_map(|(key, value)| Some((key.text()?, value))));
                found.extend(merged(source));
            }
        }
    }
    found
}

fn plain(text: &str) -> Value {
    match text {
        null if is_null(null) => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let decimal = digits.bytes().all(|b| b.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'));
    match text.strip_prefix('+').unwrap_or(text).parse::<i64>() {
        Ok(number) if decimal => return number.into(),
        _ => {}
    }
    let float = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.contains(['.', 'e', 'E']);
    let number = text.parse::<f64>().ok().filter(|_| float).and_then(Number::from_f64);
    number.map_or_else(|| text.into(), Value::Number)
}

/// JSON as a node.
pub(super) fn from_json(value: &Value) -> Node {
    let scalar = |text: String| Node::new(Kind::Scalar(text, Style::Plain));
    match value {
        Value::Null => scalar("null".into()),
        Value::Bool(value) => scalar(value.to_string()),
        Value::Number(number) => scalar(number.to_string()),
        Value::String(text) => text_node(text),
        Value::Array(items) => Node::new(Kind::List(items.iter().map(from_json).collect())),
        Value::Object(map) => Node::new(Kind::Map(
            in_order(map).into_iter().map(|(key, it)| (text_node(key), from_json(it))).collect(),
        )),
    }
}

/// A text that was not read.
pub(super) fn text_node(text: &str) -> Node {
    Node::new(Kind::Scalar(text.into(), Style::Free))
}

/// Names first, as people write them.
fn in_order(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    const FIRST: [&str; 5] = ["name", "image", "restartPolicy", "args", "env"];
    let rank = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
    let mut all: Vec<_> = map.iter().collect();
    all.sort_by_key(|(key, _)| rank(key));
    all
}
