//! Structural schemas, the form that the API server requires, from the JSON schemas of the types.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The schema of a kind's objects.
pub(super) fn of<Spec: JsonSchema, Status: JsonSchema>(description: &str) -> Value {
    let mut status = plain::<Status>();
    without_defaults(&mut status);
    status["description"] = json!("The observed state, written by the coordinator.");
    let mut spec = plain::<Spec>();
    spec["description"] = json!("The desired state.");
    json!({
        "type": "object",
        "description": description,
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": { "type": "string", "description": "Always leasehold.dev/v1alpha1." },
            "kind": { "type": "string", "description": "The kind of the object." },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": status,
        },
    })
}

fn plain<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    structural(&mut schema);
    schema
}

/// Makes a schema and all below it structural.
fn structural(schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    for word in ["properties", "items", "additionalProperties"] {
        match schema.get_mut(word) {
            Some(Value::Object(below)) if word == "properties" => {
                below.values_mut().for_each(structural);
            }
            Some(below) => structural(below),
            None => {}
        }
    }
    flatten_optional(schema);
    flatten_enum(schema);
    // The API server drops unknown fields, and no field may be null.
    for word in ["nullable", "title"] {
        schema.remove(word);
    }
    if schema.get("additionalProperties").is_some_and(Value::is_boolean) {
        schema.remove("additionalProperties");
    }
    if matches!(schema.get("default"), Some(Value::Null))
        || schema.get("default") == Some(&json!([]))
    {
        schema.remove("default");
    }
    // The API server knows signed formats only; the bounds say the rest.
    if let Some(format) = schema.get("format").and_then(Value::as_str).filter(|f| f.contains("int"))
    {
        let small = format.ends_with("32") && schema.get("maximum").is_some_and(is_small);
        let format = if small { "int32" } else { "int64" };
        schema.insert("format".into(), json!(format));
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    state_pattern(schema);
}

fn is_small(maximum: &Value) -> bool {
    maximum.as_f64().is_some_and(|maximum| maximum <= f64::from(i32::MAX))
}

/// An optional field is `anyOf` its schema and null: keep the first.
fn flatten_optional(schema: &mut Map<String, Value>) {
    let Some(Value::Array(either)) = schema.get_mut("anyOf") else { return };
    let [first, _] = either.as_mut_slice() else { return };
    structural(first);
    let Value::Object(first) = std::mem::take(first) else { return };
    schema.remove("anyOf");
    for (word, value) in first {
        schema.entry(word).or_insert(value);
    }
}

/// An enum whose variants have descriptions is `oneOf` several enums: join them.
fn flatten_enum(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.remove("oneOf") else { return };
    let words = variants.iter().filter_map(|variant| variant["enum"].as_array()).flatten();
    let words: Vec<Value> = words.cloned().collect();
    schema.insert("enum".into(), Value::Array(words));
    schema.insert("type".into(), json!("string"));
}

/// Turns a pattern into a rule with a message, if the type has one.
fn state_pattern(schema: &mut Map<String, Value>) {
    let Some(Value::String(wanted)) = schema.remove("x-wanted") else { return };
    let Some(Value::String(pattern)) = schema.remove("pattern") else { return };
    let number = if schema.contains_key("x-kubernetes-int-or-string") {
        "type(self) == int || "
    } else {
        ""
    };
    let rule = format!("{number}self.matches(r'{pattern}')");
    let rules = json!([{ "rule": rule, "message": format!("must be {wanted}") }]);
    schema.insert("x-kubernetes-validations".into(), rules);
}

fn without_defaults(schema: &mut Value) {
    match schema {
        Value::Object(schema) => {
            schema.remove("default");
            schema.values_mut().for_each(without_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(without_defaults),
        _ => {}
    }
}
