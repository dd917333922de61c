//! The messages of the SDK for Python against the descriptor of worker.proto: the fields' names,
//! types and defaults, how they are read from JSON, and the values of the enums.

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
use serde_json::{Map, Value, json};
use tests::toolbox::{self, Missing};

const PROTO: &str = "leasehold/worker/v1/worker.proto";

/// What Python prints (`read_messages.py`).
#[derive(Debug, Deserialize)]
struct Described {
    messages: BTreeMap<String, DescribedMessage>,
    enums: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
struct DescribedMessage {
    /// The type of each field, as it is written.
    types: Value,
    /// What from_json makes of a whole object.
    read: Value,
    /// What from_json makes of an empty object.
    read_of_nothing: Value,
    /// What the constructor makes without arguments.
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
    let proto = Proto::read();
    let wholes = proto.0.message_type.iter();
    let wholes: Map<String, Value> =
        wholes.map(|message| (message.name().to_owned(), proto.sample(message))).collect();
    let python = describe(&wholes.into());

    // Without the messages that every worker reads, the checks below would check nothing.
    for name in ["Lease", "Pool", "StreamLease", "Binding", "BeginJobResponse", "DrainResponse"] {
        assert!(python.messages.contains_key(name), "messages.py lacks the class {name}");
    }
    for (name, described) in &python.messages {
        let message = proto.message(name);
        let types: Map<String, Value> = message
            .field
            .iter()
            .map(|field| (field.name().to_owned(), python_type(field).into()))
            .collect();
        assert_eq!(described.types, Value::from(types), "the fields of {name} in messages.py");
        assert_eq!(described.read, proto.sample(message), "what {name}.from_json reads");
        let empty = proto.empty(message);
        assert_eq!(described.read_of_nothing, empty, "what {name}.from_json makes of {{}}");
        assert_eq!(described.made_of_nothing, empty, "the defaults of {name}");
    }
    for (name, values) in &python.enums {
        let mut wanted: Map<String, Value> = Map::new();
        for value in json_values(proto.enumeration(name)) {
            wanted.insert(value.to_uppercase(), value.into());
        }
        wanted.insert("(a later one)".into(), "unspecified".into());
        assert_eq!(values, &Value::from(wanted), "the values of {name} in messages.py");
    }
}

fn describe(wholes: &Value) -> Described {
    let folder = toolbox::root();
    let mut python = Command::new("python3")
        .arg(folder.join("tests/tests/sdk/read_messages.py"))
        .env("PYTHONPATH", folder.join("agent/sdk/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut input = python.stdin.take().expect("it is piped");
    input.write_all(wholes.to_string().as_bytes()).expect("python3 reads");
    drop(input);
    let output = python.wait_with_output().expect("python3 ends");
    assert!(output.status.success(), "read_messages.py failed: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("read_messages.py prints JSON")
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
        found.unwrap_or_else(|| panic!("messages.py has {name}, worker.proto has no such message"))
    }

    fn enumeration(&self, name: &str) -> &EnumDescriptorProto {
        let found = self.0.enum_type.iter().find(|candidate| candidate.name() == name);
        found.unwrap_or_else(|| panic!("messages.py has {name}, worker.proto has no such enum"))
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
