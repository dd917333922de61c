//! The description of the API by OpenAPI 3.1, from the protos' descriptors.

use std::collections::BTreeMap;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::request::{method, type_name};
use super::routes::{ROUTES, Route, Verb};

/// The whole description.
pub(super) fn document() -> Value {
    let mut schemas = BTreeMap::new();
    let mut paths = Map::new();
    for route in ROUTES {
        let (verb, operation) = operation(route, &mut schemas);
        paths.insert(format!("/api/v1/{}", route.path), json!({ verb: operation }));
    }
    schemas.insert(
        "Error".to_owned(),
        json!({
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }),
    );
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Leasehold coordinator",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The admin API's queries, as the protos map them to JSON.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn operation(route: Route, schemas: &mut BTreeMap<String, Value>) -> (&'static str, Value) {
    let (input, output) = (method(route).input(), method(route).output());
    let answer = match (route.verb, route.only) {
        (Verb::Watch(_), _) => {
            json!({"text/event-stream": {"schema": reference(&output, schemas)}})
        }
        (Verb::Get | Verb::Post, None) => {
            json!({"application/json": {"schema": reference(&output, schemas)}})
        }
        (Verb::Get | Verb::Post, Some(key)) => {
            let field = output.get_field_by_json_name(key).expect("routes name fields that exist");
            let property = json!({"type": "object", "properties": {key: schema(&field, schemas)}});
            json!({"application/json": {"schema": property}})
        }
    };
    let error = json!({"$ref": "#/components/schemas/Error"});
    let mut operation = json!({
        "operationId": route.path.replace('/', "-"),
        "summary": route.what,
        "responses": {
            "200": {"description": "The answer.", "content": answer},
            "default": {
                "description": "Why the request failed.",
                "content": {"application/json": {"schema": error}},
            },
        },
    });
    match route.verb {
        Verb::Get | Verb::Watch(_) => {
            let parameters = input.fields().map(|field| {
                json!({"name": field.json_name(), "in": "query", "schema": schema(&field, schemas)})
            });
            operation["parameters"] = parameters.collect();
            ("get", operation)
        }
        Verb::Post => {
            let request = reference(&input, schemas);
            operation["requestBody"] =
                json!({"content": {"application/json": {"schema": request}}});
            ("post", operation)
        }
    }
}

/// A reference to a message's schema, which is added if it is new.
fn reference(message: &MessageDescriptor, schemas: &mut BTreeMap<String, Value>) -> Value {
    let name = message.name().to_owned();
    if !schemas.contains_key(&name) {
        // A message may contain itself.
        schemas.insert(name.clone(), Value::Null);
        let fields = message.fields();
        let properties: Map<_, _> =
            fields.map(|field| (field.json_name().to_owned(), schema(&field, schemas))).collect();
        schemas.insert(name.clone(), json!({"type": "object", "properties": properties}));
    }
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn schema(field: &FieldDescriptor, schemas: &mut BTreeMap<String, Value>) -> Value {
    let one = match field.kind() {
        Kind::Message(message) => reference(&message, schemas),
        Kind::Enum(values) => {
            let names: Vec<_> = values.values().map(|value| value.name().to_owned()).collect();
            json!({"type": "string", "enum": names})
        }
        _ => json!({"type": type_name(field)}),
    };
    if field.is_list() { json!({"type": "array", "items": one}) } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_described_and_each_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for route in ROUTES {
            assert!(
                document["paths"].get(format!("/api/v1/{}", route.path)).is_some(),
                "{route:?}"
            );
        }
        let referenced = text.split("#/components/schemas/").skip(1);
        for name in referenced.filter_map(|rest| rest.split('"').next()) {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
        let workers = &document["paths"]["/api/v1/workers"]["get"]["parameters"];
        assert_eq!(
            workers[0],
            json!({"name": "cluster", "in": "query", "schema": {"type": "string"}})
        );
    }
}
