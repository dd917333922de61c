//! The messages of the SDK for Go against the descriptor of worker.proto: the types of the fields
//! that the SDK uses, how they are read from JSON, and the values of the enums.

use std::collections::BTreeMap;

use prost_types::FieldDescriptorProto;
use prost_types::field_descriptor_proto::{Label, Type};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Proto, describe, json_values, type_name};
use crate::go_tool;

/// What Go prints (`agent/sdk/go/internal/wire/describe`).
#[derive(Debug, Deserialize)]
struct Described {
    messages: BTreeMap<String, DescribedMessage>,
    enums: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct DescribedMessage {
    /// The type of each field, as Go writes it.
    types: BTreeMap<String, String>,
    /// What is read from a whole object.
    read: Value,
    /// What is read from an empty object.
    read_of_nothing: Value,
}

#[test]
fn go_messages_match_the_proto() {
    let Some(mut go) = go_tool::command("the messages of the SDK for Go") else { return };
    go.args(["run", "./internal/wire/describe"]);
    let proto = Proto::read();
    let described: Described = describe(go, &proto);

    // Without the messages that every worker reads, the checks below would check nothing.
    for name in ["Lease", "StreamLease", "Binding", "BeginJobResponse", "DrainResponse"] {
        assert!(described.messages.contains_key(name), "package wire lacks {name}");
    }
    for (name, one) in &described.messages {
        let message = proto.message(name);
        let whole = proto.sample(message);
        let used: Vec<&FieldDescriptorProto> =
            message.field.iter().filter(|field| one.types.contains_key(field.name())).collect();
        let types: BTreeMap<String, String> =
            used.iter().map(|field| (field.name().to_owned(), go_type(field))).collect();
        assert_eq!(one.types, types, "the fields of {name} in package wire");
        let read: Map<String, Value> = used
            .iter()
            .map(|field| (field.name().to_owned(), whole[field.name()].clone()))
            .collect();
        assert_eq!(one.read, Value::from(read), "what is read of {name}");
        let empty: Map<String, Value> =
            used.iter().map(|field| (field.name().to_owned(), nothing(field))).collect();
        assert_eq!(one.read_of_nothing, Value::from(empty), "what is read of an empty {name}");
    }
    assert_eq!(described.enums.len(), 2, "StreamLeaseState and RefusalReason");
    for (name, values) in &described.enums {
        let wanted = json_values(proto.enumeration(name));
        // The first is UNSPECIFIED, which is never sent.
        assert_eq!(values[..], wanted[1..], "the values of {name} in Go");
    }
}

/// The type of a field as Go writes it.
fn go_type(field: &FieldDescriptorProto) -> String {
    let one = match field.r#type() {
        Type::Uint64 => "uint64",
        Type::Uint32 => "uint32",
        Type::Double => "float64",
        Type::String => "string",
        Type::Bool => "bool",
        Type::Message | Type::Enum => type_name(field),
        other => panic!("{}: no test knows {other:?} in Go", field.name()),
    };
    match field.label() {
        Label::Repeated => format!("[]{one}"),
        _ if field.oneof_index.is_some() => format!("*{one}"),
        Label::Optional | Label::Required => one.into(),
    }
}

/// What Go reads from an object without this field.
fn nothing(field: &FieldDescriptorProto) -> Value {
    match field.r#type() {
        _ if field.label() == Label::Repeated => json!([]),
        // Members of a `oneof`, `optional` among them, may be absent.
        _ if field.oneof_index.is_some() => Value::Null,
        Type::Uint64 | Type::Uint32 | Type::Double => json!(0),
        Type::String | Type::Enum => json!(""),
        Type::Bool => json!(false),
        other => panic!("{}: no test knows {other:?} in Go", field.name()),
    }
}
