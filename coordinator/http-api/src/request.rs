//! Makes the request of a call out of a query or a body.

use std::collections::BTreeSet;

use leasehold_proto::admin::v1::admin_service_server::SERVICE_NAME;
use leasehold_proto::json;
use leasehold_types::flag;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor, Value,
};

use super::routes::Route;

/// The call behind a route.
pub(super) fn method(route: Route) -> MethodDescriptor {
    let service = json::pool().get_service_by_name(SERVICE_NAME);
    let service = service.expect("the descriptors have the admin service");
    let mut methods = service.methods();
    methods.find(|method| method.name() == route.rpc).expect("each route is a call of the service")
}

/// The request that a query asks for: each of its parameters is a field.
///
/// # Errors
/// Which parameter is wrong, and what is right.
pub(super) fn from_query(route: Route, query: Option<&str>) -> Result<DynamicMessage, String> {
    let descriptor = method(route).input();
    let mut request = DynamicMessage::new(descriptor.clone());
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut given = BTreeSet::new();
    for (key, text) in pairs {
        let field = descriptor
            .get_field_by_json_name(&key)
            .ok_or_else(|| format!("unknown parameter {key:?}: {}", parameters(&descriptor)))?;
        let value = value(&field, &text)
            .map_err(|expected| format!("invalid {key} {text:?}: {expected}"))?;
        if !given.insert(key.to_string()) && !field.is_list() {
            return Err(format!("{key} is given twice: give it once"));
        }
        match request.get_field_mut(&field) {
            Value::List(list) => list.push(value),
            single => *single = value,
        }
    }
    Ok(request)
}

/// The request that a body asks for.
///
/// # Errors
/// What is wrong with it.
pub(super) fn from_json(route: Route, body: &str) -> Result<DynamicMessage, String> {
    if body.trim().is_empty() {
        return Err(flag::empty_body(route.example));
    }
    let mut text = serde_json::Deserializer::from_str(body);
    let request = DynamicMessage::deserialize(method(route).input(), &mut text);
    let request = request.map_err(|error| format!("cannot read the body as a request: {error}"))?;
    text.end().map_err(|error| format!("the body goes on after the request: {error}"))?;
    Ok(request)
}

fn parameters(descriptor: &MessageDescriptor) -> String {
    let names: Vec<_> = descriptor.fields().map(|field| field.json_name().to_owned()).collect();
    if names.is_empty() {
        return "this path takes none".to_owned();
    }
    format!("use {}", names.join(", "))
}

/// The name of a field's type, for people and for OpenAPI's schemas.
pub(super) fn type_name(field: &FieldDescriptor) -> &'static str {
    match field.kind() {
        Kind::Bool => "boolean",
        Kind::Double | Kind::Float => "number",
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Uint32 | Kind::Fixed32 => "integer",
        // JSON has 64-bit numbers as text.
        Kind::Int64
        | Kind::Sint64
        | Kind::Sfixed64
        | Kind::Uint64
        | Kind::Fixed64
        | Kind::String
        | Kind::Bytes
        | Kind::Enum(_) => "string",
        Kind::Message(_) => "object",
    }
}

/// The value of a parameter, or what is expected.
fn value(field: &FieldDescriptor, text: &str) -> Result<Value, String> {
    const WHAT: &str = "a number of entries";
    const EXAMPLE: u64 = 100;
    match field.kind() {
        Kind::String => Ok(Value::String(text.to_owned())),
        Kind::Uint32 => flag::number(0..=u32::MAX.into(), WHAT, EXAMPLE)(text).map(Value::U32),
        Kind::Bool => flag::boolean(text).map(Value::Bool),
        // No query of the admin service has others.
        _ => Err(format!("expected {}", type_name(field))),
    }
}
