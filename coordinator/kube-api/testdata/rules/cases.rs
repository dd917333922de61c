//! Reads `cases.yaml`, the table of cases for the rules of the custom resource definitions.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    bases: BTreeMap<String, Value>,
    rules: Vec<RuleCases>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleCases {
    rule: String,
    at: Vec<String>,
    field: Option<String>,
    #[serde(default)]
    with: Option<Value>,
    old: Option<Value>,
    #[serde(default)]
    api_only: bool,
    accepted: Vec<Value>,
    refused: Vec<Value>,
}

/// One object and the verdict that is expected.
#[allow(dead_code, reason = "each of the two tests reads some of the fields")]
pub(crate) struct Case {
    /// How the message of the rule begins.
    pub(crate) rule: String,
    /// The kind of the object.
    pub(crate) kind: String,
    /// The path of the rule in the schema; empty for the whole object.
    pub(crate) path: String,
    /// Where the check of manifests reports a refusal: at this field or below it.
    pub(crate) field: String,
    /// Whether only the API server has the rule.
    pub(crate) api_only: bool,
    /// The stored object that `object` replaces; `None` for a creation.
    pub(crate) old: Option<Value>,
    /// The object.
    pub(crate) object: Value,
    /// Whether it is accepted.
    pub(crate) accepted: bool,
}

/// All cases of the table.
pub(crate) fn cases() -> Vec<Case> {
    let table: Table = serde_yaml::from_str(include_str!("cases.yaml")).expect("a table of cases");
    let mut cases = Vec::new();
    for rule in &table.rules {
        assert!(!rule.accepted.is_empty() && !rule.refused.is_empty(), "{}", rule.rule);
        for at in &rule.at {
            let (kind, path) = at.split_once(' ').expect("a kind and a path");
            let path = path.trim_start_matches('.');
            let base = &table.bases[kind];
            let accepted = rule.accepted.iter().map(|value| (value, true));
            let refused = rule.refused.iter().map(|value| (value, false));
            for (value, accepted) in accepted.chain(refused) {
                let mut object = object(kind, base, rule.with.as_ref());
                let (target, place) = target(&mut object, path);
                merge(target, value);
                cases.push(Case {
                    rule: rule.rule.clone(),
                    kind: kind.to_owned(),
                    path: path.to_owned(),
                    field: rule.field.clone().unwrap_or(place),
                    api_only: rule.api_only,
                    old: rule.old.as_ref().map(|old| self::object(kind, base, Some(old))),
                    object,
                    accepted,
                });
            }
        }
    }
    cases
}

fn object(kind: &str, base: &Value, with: Option<&Value>) -> Value {
    let mut spec = base.clone();
    if let Some(with) = with {
        merge(&mut spec, with);
    }
    json!({
        "apiVersion": "leasehold.dev/v1alpha1",
        "kind": kind,
        "metadata": { "name": "case" },
        "spec": spec,
    })
}

/// The field at a path of the schema, and its place in the object: the first item of a list, or
/// the first entry of a mapping.
fn target<'a>(object: &'a mut Value, path: &str) -> (&'a mut Value, String) {
    let (mut found, mut place) = (object, String::new());
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.trim_end_matches(['[', ']', '{', '}']);
        if !place.is_empty() {
            place.push('.');
        }
        place.push_str(name);
        if found.is_null() {
            *found = json!({});
        }
        found = &mut found[name];
        if step.ends_with("[]") {
            place.push_str("[0]");
            found = &mut found[0];
        } else if step.ends_with("{}") {
            let entries = found.as_object_mut().expect("a mapping");
            let (key, value) = entries.iter_mut().next().expect("an entry");
            place.push_str(&format!(".{key}"));
            found = value;
        }
    }
    (found, place)
}

/// A JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        let target = target.as_object_mut().expect("a mapping");
        match value {
            Value::Null => {
                target.remove(key);
            }
            value => merge(target.entry(key).or_insert(Value::Null), value),
        }
    }
}
