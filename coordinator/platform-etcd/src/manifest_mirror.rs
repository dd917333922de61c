//! A copy of the keys with manifests, pure: lists and changes go in, files come out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use leasehold_manifest::MemoryFiles;
use leasehold_manifest::folder::Stamp;
use leasehold_platform::removal_grace::Stamps;

use crate::etcdserverpb::event::EventType;
use crate::etcdserverpb::{Event, KeyValue, RangeResponse};
use crate::keys::Keys;

/// The keys as they are at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestMirror {
    /// Every change up to this revision is in the copy.
    pub(crate) revision: i64,
    values: BTreeMap<Vec<u8>, MirroredValue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MirroredValue {
    content: Arc<[u8]>,
    /// The revision that wrote it.
    mod_revision: i64,
}

impl ManifestMirror {
    /// A copy without keys, as of a revision.
    pub(crate) fn at(revision: i64) -> Self {
        Self { revision, values: BTreeMap::new() }
    }

    /// How many keys there are.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Takes in a key that a list has.
    pub(crate) fn insert(&mut self, kv: KeyValue) {
        let value = MirroredValue { content: kv.value.into(), mod_revision: kv.mod_revision };
        self.values.insert(kv.key, value);
    }

    /// Takes in one message of a watch, which has whole revisions in their order. Those that are in
    /// the copy already change nothing.
    pub(crate) fn apply(&mut self, events: Vec<Event>) {
        let known = self.revision;
        for event in events {
            let is_removal = event.r#type() == EventType::Delete;
            let Some(kv) = event.kv else { continue };
            if kv.mod_revision <= known {
                continue;
            }
            self.revision = self.revision.max(kv.mod_revision);
            if is_removal {
                self.values.remove(&kv.key);
            } else {
                self.insert(kv);
            }
        }
    }

    /// Compares the copy with an answer to a request for all keys that were written after its
    /// revision. Returns whether nothing is missing; the copy is as new as the answer then.
    pub(crate) fn confirm(&mut self, changed: &RangeResponse) -> bool {
        let revision = changed.header.map(|header| header.revision).unwrap_or_default();
        let is_same = changed.kvs.is_empty()
            && usize::try_from(changed.count).is_ok_and(|count| count == self.len())
            && revision >= self.revision;
        if is_same {
            self.revision = revision;
        }
        is_same
    }

    /// The files, and the stamp of each. Keys that name no path are left out.
    pub(crate) fn files(&self, keys: &Keys) -> (MemoryFiles, Stamps) {
        let (mut files, mut stamps) = (MemoryFiles::new(), Stamps::new());
        for (key, value) in &self.values {
            if let Some(path) = keys.manifest(key) {
                files.insert(path.to_owned(), Arc::clone(&value.content));
                stamps.insert(PathBuf::from(path), Stamp::of_revision(value.mod_revision));
            }
        }
        (files, stamps)
    }
}

#[cfg(test)]
mod tests {
    use crate::etcdserverpb::ResponseHeader;

    use super::*;

    fn kv(path: &str, mod_revision: i64, value: &str) -> KeyValue {
        let key = format!("/leasehold/manifests/{path}").into_bytes();
        KeyValue { key, mod_revision, value: value.into() }
    }

    fn event(kind: EventType, path: &str, mod_revision: i64, value: &str) -> Event {
        Event { r#type: kind.into(), kv: Some(kv(path, mod_revision, value)) }
    }

    fn answer(revision: i64, count: i64, kvs: Vec<KeyValue>) -> RangeResponse {
        let header = Some(ResponseHeader { cluster_id: 1, revision });
        RangeResponse { header, kvs, more: false, count }
    }

    fn paths(mirror: &ManifestMirror) -> Vec<String> {
        mirror.files(&Keys::new("/leasehold")).0.into_keys().collect()
    }

    #[test]
    fn changes_are_applied_once_and_in_order() {
        let mut mirror = ManifestMirror::at(7);
        mirror.insert(kv("a.yaml", 3, "one"));
        mirror.insert(kv("b.yaml", 5, "two"));
        let changes = vec![
            event(EventType::Put, "c.yaml", 8, "three"),
            event(EventType::Delete, "b.yaml", 8, ""),
            event(EventType::Put, "a.yaml", 9, "four"),
        ];
        mirror.apply(changes.clone());
        assert_eq!(paths(&mirror), ["a.yaml", "c.yaml"]);
        assert_eq!(mirror.revision, 9);
        let before = mirror.clone();
        mirror.apply(vec![changes[0].clone(), event(EventType::Put, "a.yaml", 3, "one")]);
        assert_eq!(mirror, before);
        let (files, stamps) = mirror.files(&Keys::new("/leasehold"));
        assert_eq!(&*files["a.yaml"], b"four");
        assert_eq!(stamps[&PathBuf::from("a.yaml")], Stamp::of_revision(9));
    }

    #[test]
    fn a_change_that_no_watch_has_shown_is_found() {
        let mut mirror = ManifestMirror::at(7);
        mirror.insert(kv("a.yaml", 3, "one"));
        assert!(mirror.confirm(&answer(9, 1, Vec::new())));
        assert_eq!(mirror.revision, 9);
        assert!(!mirror.confirm(&answer(10, 1, vec![kv("a.yaml", 10, "")])), "written");
        assert!(!mirror.confirm(&answer(10, 0, Vec::new())), "removed");
        assert!(!mirror.confirm(&answer(4, 1, Vec::new())), "restored from a backup");
        assert_eq!(mirror.revision, 9);
    }
}
