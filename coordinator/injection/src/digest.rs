//! A number that two injections have in common where they put the same into a pod, however the
//! pod itself was written: FNV-1a over the values with their keys in order.

use serde_json::Value;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// A running digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(OFFSET)
    }
}

impl Digest {
    /// Takes a value in.
    pub(crate) fn add(&mut self, value: &Value) {
        match value {
            Value::Array(list) => {
                self.bytes(b"[");
                list.iter().for_each(|item| self.add(item));
                self.bytes(b"]");
            }
            Value::Object(map) => {
                let mut keys: Vec<&String> = map.keys().collect();
                keys.sort();
                self.bytes(b"{");
                for key in keys {
                    self.text(key);
                    self.add(&map[key]);
                }
                self.bytes(b"}");
            }
            Value::String(text) => self.text(text),
            other => self.bytes(other.to_string().as_bytes()),
        }
        self.bytes(b",");
    }

    fn text(&mut self, text: &str) {
        self.bytes(b"\"");
        self.bytes(text.as_bytes());
        self.bytes(&[0]);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }

    /// Its text in annotations.
    pub(crate) fn text_of(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digests_differ_by_value_and_are_stable_across_releases() {
        let of = |value: Value| {
            let mut digest = Digest::default();
            digest.add(&value);
            digest.text_of()
        };
        assert_eq!(of(json!({ "b": 1, "a": ["x"] })), of(json!({ "a": ["x"], "b": 1 })));
        let different =
            [json!("1"), json!(1), json!(["1"]), json!(["1", ""]), json!({ "1": "" }), json!(null)];
        let all: std::collections::BTreeSet<_> = different.iter().cloned().map(of).collect();
        assert_eq!(all.len(), different.len());
    }
}
