//! The messages of the SDKs for Python and TypeScript against the descriptor of worker.proto: the
//! fields' names, types and defaults, how they are read from JSON, and the values of the enums.

#[path = "go_messages.rs"]
mod go;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tests::toolbox::{self, Missing};

use crate::typescript_sdk;

const PROTO: &str = "leasehold/worker/v1/worker.proto";

/// What `read_messages.py` and `read_messages.mjs` print.
#[derive(Debug, Deserialize)]
struct Described {
    messages: BTreeMap<String, DescribedMessage>,
    enums: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
struct DescribedMessage {
    /// The type of each field, as it is written.
    types: Value,
    /// What is read from a whole object.
    read: Value,
    /// What is read from an empty object.
    read_of_nothing: Value,
    /// What is made without an object.
    made_of_nothing: Value,
}

#[test]
fn python_messages_match_the_proto() {
    if Command::new("python3").arg("-V").output().is_err() {
        toolbox::leave_out(
            "the messages of the SDK for Python",
            "no python3",
            Missing::Installable,
        );
        return;
    }
    let folder = toolbox::root();
    let mut python = Command::new("python3");
    python
        .arg(folder.join("tests/tests/sdk/read_messages.py"))
        .env("PYTHONPATH", folder.join("agent/sdk/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    assert_matches(python, "messages.py", python_type);
}

#[test]
fn typescript_messages_match_the_proto() {
    let Some(sdk) = typescript_sdk::folder() else { return };
    let mut node = Command::new("node");
    node.arg(toolbox::root().join("tests/tests/sdk/read_messages.mjs"))
        .arg(sdk.join("dist/src/messages.js"));
    assert_matches(node, "messages.ts", typescript_type);
}

/// Compares what `reader` prints of the messages in `file` with the proto.
fn assert_matches(reader: Command, file: &str, type_of: fn(&FieldDescriptorProto) -> String) {
    let proto = Proto::read();
    let sdk: Described = describe(reader, &proto);

    // Without the messages that every worker reads, the checks below would check nothing.
    for name in ["Lease", "Pool", "StreamLease", "Binding", "BeginJobResponse", "DrainResponse"] {
        assert!(sdk.messages.contains_key(name), "{file} lacks {name}");
    }
    for (name, described) in sdk.messages {
        let message = proto.message(&name);
        let types: Map<String, Value> = message
            .field
            .iter()
            .map(|field| (field.name().to_owned(), type_of(field).into()))
            .collect();
        assert_eq!(described.types, Value::from(types), "the fields of {name} in {file}");
        assert_eq!(described.read, proto.sample(message), "what is read as {name}");
        let empty = with_integer_zeros(proto.empty(message));
        let read = with_integer_zeros(described.read_of_nothing);
        assert_eq!(read, empty, "what {{}} is read as for {name}");
        let made = with_integer_zeros(described.made_of_nothing);
        assert_eq!(made, empty, "the defaults of {name}");
    }
    for (name, values) in &sdk.enums {
        let mut wanted: Map<String, Value> = Map::new();
        for value in json_values(proto.enumeration(name)) {
            wanted.insert(value.to_uppercase(), value.into());
        }
        wanted.insert("(a later one)".into(), "unspecified".into());
        assert_eq!(values, &Value::from(wanted), "the values of {name} in {file}");
    }
}

/// What `reader` prints when it is given a whole object of each message.
fn describe<T: DeserializeOwned>(mut reader: Command, proto: &Proto) -> T {
    let wholes = proto.0.message_type.iter();
    let wholes: Map<String, Value> =
        wholes.map(|message| (message.name().to_owned(), proto.sample(message))).collect();
    let wholes = Value::from(wholes);
    let mut reading =
        reader.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut input = reading.stdin.take().expect("it is piped");
    input.write_all(wholes.to_string().as_bytes()).expect("it reads");
    drop(input);
    let output = reading.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{reader:?} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

/// The value with 0 for each 0.0, which some languages write in the same way.
fn with_integer_zeros(value: Value) -> Value {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => json!(0),
        Value::Array(items) => items.into_iter().map(with_integer_zeros).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, field)| (name, with_integer_zeros(field))).collect()
        }
        other => other,
    }
}

/// The worker API's proto.
struct Proto(FileDescriptorProto);

impl Proto {
    fn read() -> Self {
        let set = FileDescriptorSet::decode(leasehold_proto::DESCRIPTORS).expect("descriptors");
        let mut files = set.file.into_iter();
        Self(files.find(|file| file.name() == PROTO).expect("the worker API's proto"))
    }

    fn message(&self, name: &str) -> &DescriptorProto {
        let found = self.0.message_type.iter().find(|message| message.name() == name);
        found.unwrap_or_else(|| panic!("an SDK has {name}, worker.proto has no such message"))
    }

    fn enumeration(&self, name: &str) -> &EnumDescriptorProto {
        let found = self.0.enum_type.iter().find(|candidate| candidate.name() == name);
        found.unwrap_or_else(|| panic!("an SDK has {name}, worker.proto has no such enum"))
    }

    /// An object with a value in each field that is not the field's default.
    fn sample(&self, message: &DescriptorProto) -> Value {
        let fields = message.field.iter().map(|field| {
            let value = match field.r#type() {
                Type::Uint64 | Type::Uint32 => json!(1_000 + field.number()),
                Type::Double => json!(f64::from(field.number()) + 0.5),
                Type::String => json!(format!("the {}", field.name())),
                Type::Bool => json!(true),
                Type::Message => self.sample(self.message(type_name(field))),
                Type::Enum => {
                    let values = json_values(self.enumeration(type_name(field)));
                    json!(values.last())
                }
                other => panic!("{}: no test knows {other:?} in JSON", field.name()),
            };
            let list = field.label() == Label::Repeated;
            (field.name().to_owned(), if list { json!([value]) } else { value })
        });
        Value::Object(fields.collect())
    }

    /// What an object without any field means.
    fn empty(&self, message: &DescriptorProto) -> Value {
        let fields = message.field.iter().map(|field| {
            let value = match field.r#type() {
                _ if field.label() == Label::Repeated => json!([]),
                // Members of a `oneof`, `optional` among them, may be absent.
                _ if field.oneof_index.is_some() => Value::Null,
                Type::Uint64 | Type::Uint32 => json!(0),
                Type::Double => json!(0.0),
                Type::String => json!(""),
                Type::Bool => json!(false),
                Type::Message => self.empty(self.message(type_name(field))),
                Type::Enum => json!("unspecified"),
                other => panic!("{}: no test knows {other:?} in JSON", field.name()),
            };
            (field.name().to_owned(), value)
        });
        Value::Object(fields.collect())
    }
}

/// The type of a field as Python writes it.
fn python_type(field: &FieldDescriptorProto) -> String {
    let one = match field.r#type() {
        Type::Uint64 | Type::Uint32 => "int",
        Type::Double => "float",
        Type::String => "str",
        Type::Bool => "bool",
        Type::Message | Type::Enum => type_name(field),
        other => panic!("{}: no test knows {other:?} in Python", field.name()),
    };
    match field.label() {
        Label::Repeated => format!("Tuple[{one}, ...]"),
        _ if field.oneof_index.is_some() => format!("Optional[{one}]"),
        Label::Optional | Label::Required => one.into(),
    }
}

/// The type of a field as TypeScript writes it.
fn typescript_type(field: &FieldDescriptorProto) -> String {
    let one = match field.r#type() {
        Type::Uint64 | Type::Uint32 | Type::Double => "number",
        Type::String => "string",
        Type::Bool => "boolean",
        Type::Message | Type::Enum => type_name(field),
        other => panic!("{}: no test knows {other:?} in TypeScript", field.name()),
    };
    match field.label() {
        Label::Repeated => format!("readonly {one}[]"),
        _ if field.oneof_index.is_some() => format!("{one} | undefined"),
        Label::Optional | Label::Required => one.into(),
    }
}

/// The values of an enum as JSON has them: `STREAM_LEASE_STATE_HELD` is `held`.
fn json_values(enumeration: &EnumDescriptorProto) -> Vec<String> {
    let unspecified = enumeration.value.first().expect("an enum has values").name();
    let prefix = unspecified.strip_suffix("UNSPECIFIED").expect("0 is UNSPECIFIED");
    let names = enumeration.value.iter().map(|value| value.name().strip_prefix(prefix));
    names.map(|name| name.expect("the enum's prefix").to_lowercase()).collect()
}

fn type_name(field: &FieldDescriptorProto) -> &str {
    let name = field.type_name();
    name.rsplit_once('.').map_or(name, |(_, name)| name)
}
