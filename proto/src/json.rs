//! Messages as JSON, by the mapping that the protos define: names in camelCase, enums by name,
//! 64-bit numbers as text. Fields with their default values are there, too, so that every key
//! always is.

use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};

use crate::DESCRIPTORS;

/// What the descriptors say that all messages have.
const DESCRIBED: &str = "every generated message has a descriptor";

/// The descriptors of all protos.
pub fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect(DESCRIBED));
    &POOL
}

/// A message as JSON.
pub fn value<M: Message + Name>(message: &M) -> serde_json::Value {
    let descriptor = pool().get_message_by_name(&M::full_name()).expect(DESCRIBED);
    let bytes = message.encode_to_vec();
    dynamic(&DynamicMessage::decode(descriptor, bytes.as_slice()).expect(DESCRIBED))
}

/// A message whose type is known at run time only, as JSON.
pub fn dynamic(message: &DynamicMessage) -> serde_json::Value {
    let options = SerializeOptions::new().skip_default_fields(false);
    let json = message.serialize_with_options(serde_json::value::Serializer, &options);
    json.expect("a message has text for keys, and numbers that JSON has")
}

#[cfg(test)]
mod tests {
    use crate::admin::v1::{ListWorkersResponse, Presence, Worker};

    #[test]
    fn a_message_has_every_key() {
        let worker = Worker {
            name: "w-0".into(),
            presence: Presence::Lost.into(),
            silent_for_ms: Some(1 << 60),
            ..Worker::default()
        };
        let list = ListWorkersResponse { workers: vec![worker], ..Default::default() };
        let json = super::value(&list);
        assert_eq!(json["nextPageToken"], "");
        let worker = &json["workers"][0];
        assert_eq!(worker["presence"], "PRESENCE_LOST");
        assert_eq!(worker["silentForMs"], "1152921504606846976");
        assert_eq!(worker["committed"], 0);
        assert_eq!(worker.get("running"), None, "an optional field that is absent");
        assert_eq!(worker["documentsPerSecond"], 0.0);
    }
}
