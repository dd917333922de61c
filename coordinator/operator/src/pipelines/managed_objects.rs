//! The objects of pipelines, as last seen, as far as needed to compare them with the desired ones.
//! A change or deletion by another client is noticed; own writes are not reported as changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher;
use leasehold_kube_api::names::{FIELD_MANAGER, MANAGED_BY_LABEL};
use leasehold_kube_api::status::PipelineBindingStatus;
use leasehold_platform_kube::watch_cache::{ObjectKey, WatchCache};
use leasehold_types::PipelineName;
use tokio::sync::watch;

use super::managed_kind::{ManagedKind, belongs_to, owning_pipeline};
use crate::digest::digest;

/// The cached fields of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ManagedObject {
    /// Which of the objects of its name it is.
    pub(super) uid: String,
    /// The pipeline that it belongs to.
    pipeline: PipelineName,
    /// The generation of its spec, where the kind has one.
    pub(super) generation: Option<i64>,
    /// The digest of the compared fields.
    pub(super) compared_fields: String,
    /// The immutable fields.
    pub(super) immutable_fields: String,
    /// Whether its deletion was asked for.
    pub(super) is_deleting: bool,
    /// The UID of the Pipeline that it says it is of.
    pub(super) owner: Option<String>,
    /// Whether it has no controller at all.
    pub(super) has_no_controller: bool,
    /// The status, of a PipelineBinding.
    pub(super) status: Option<Box<PipelineBindingStatus>>,
}

/// The objects of pipelines; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ManagedObjects {
    caches: BTreeMap<ManagedKind, WatchCache<ManagedObject>>,
    index: Arc<Mutex<Index>>,
}

type Key = (ManagedKind, ObjectKey);

/// Which objects each pipeline has.
#[derive(Debug, Default)]
struct Index {
    pipelines: BTreeMap<Key, PipelineName>,
    keys: BTreeMap<PipelineName, BTreeSet<Key>>,
    /// Pipelines of which another client has changed an object.
    changed_by_others: BTreeSet<PipelineName>,
}

impl ManagedObject {
    /// The cached fields of an object; `None` if it belongs to no pipeline.
    pub(super) fn new(kind: ManagedKind, object: &DynamicObject) -> Option<Self> {
        let metadata = &object.metadata;
        let pipeline = owning_pipeline(metadata)?;
        let status = match kind {
            ManagedKind::Binding => serde_json::from_value(object.data["status"].clone()).ok(),
            ManagedKind::Service | ManagedKind::EndpointSlice => None,
        };
        let controller = super::managed_kind::controller(metadata);
        Some(Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation,
            compared_fields: digest(&kind.compared_fields(object)),
            immutable_fields: kind.immutable_fields(object),
            is_deleting: metadata.deletion_timestamp.is_some(),
            owner: controller.map(|(_, uid)| uid.to_owned()),
            has_no_controller: belongs_to(metadata, &pipeline, ""),
            pipeline,
            status,
        })
    }

    /// Whether it was made for the Pipeline with this UID.
    pub(super) fn belongs_to(&self, uid: &str) -> bool {
        self.has_no_controller || self.owner.as_deref() == Some(uid)
    }
}

impl ManagedObjects {
    /// Starts to watch these namespaces, all if none is given.
    pub(super) fn watch(client: &Client, watched: &[String]) -> Self {
        let own = watcher::Config::default().labels(&format!("{MANAGED_BY_LABEL}={FIELD_MANAGER}"));
        let start = |kind: ManagedKind| {
            let resource = kind.resource();
            let api = |name: &String| Api::namespaced_with(client.clone(), name, &resource);
            let apis: Vec<Api<DynamicObject>> = match watched {
                [] => vec![Api::all_with(client.clone(), &resource)],
                names => names.iter().map(api).collect(),
            };
            let keep = move |object: &DynamicObject| ManagedObject::new(kind, object);
            let cache = WatchCache::start(kind.name(), apis, &own, keep);
            cache.collect_changed();
            (kind, cache)
        };
        let caches = ManagedKind::ALL.into_iter().map(start).collect();
        Self { caches, index: Arc::default() }
    }

    /// Whether every object was listed once or is of a kind that the coordinator may not read.
    /// Before that, a missing object may exist.
    pub(super) fn is_synced(&self) -> bool {
        let is_done =
            |cache: &WatchCache<_>| cache.is_complete() || cache.forbidden_in(None).is_some();
        self.caches.values().all(is_done)
    }

    /// A kind that the coordinator may not read in this namespace, or in all if none is given, and
    /// the API server's answer. Its objects cannot be managed: a missing object may exist.
    pub(super) fn forbidden_in(&self, namespace: Option<&str>) -> Option<(ManagedKind, String)> {
        self.caches.iter().find_map(|(kind, cache)| Some((*kind, cache.forbidden_in(namespace)?)))
    }

    /// Notifies of changes, one receiver for each kind.
    pub(super) fn changes(&self) -> Vec<watch::Receiver<u64>> {
        self.caches.values().map(WatchCache::changed).collect()
    }

    /// The pipelines of which other clients have changed an object since the last call.
    pub(super) fn changed_by_others(&self) -> BTreeSet<PipelineName> {
        std::mem::take(&mut self.index().changed_by_others)
    }

    /// The pipelines that have an object.
    pub(super) fn pipelines(&self) -> Vec<PipelineName> {
        self.index().keys.keys().cloned().collect()
    }

    /// One object of a pipeline.
    pub(super) fn find(
        &self,
        pipeline: &PipelineName,
        kind: ManagedKind,
        name: &str,
    ) -> Option<ManagedObject> {
        let namespace = pipeline.parts().0.unwrap_or_default();
        let object = self.caches.get(&kind)?.get(&ObjectKey::new(namespace, name))?;
        (object.pipeline == *pipeline).then(|| ManagedObject::clone(&object))
    }

    /// Every object of a pipeline, by kind and name.
    pub(super) fn all(
        &self,
        pipeline: &PipelineName,
    ) -> BTreeMap<(ManagedKind, String), ManagedObject> {
        let keys = self.index().keys.get(pipeline).cloned().unwrap_or_default();
        let object = |(kind, key): Key| {
            let object = self.find(pipeline, kind, &key.name)?;
            Some(((kind, key.name), object))
        };
        keys.into_iter().filter_map(object).collect()
    }

    /// Stores an object that this replica has just written.
    pub(super) fn store_written(&self, kind: ManagedKind, object: &DynamicObject) {
        let (Some(managed), Some(cache)) =
            (ManagedObject::new(kind, object), self.caches.get(&kind))
        else {
            return;
        };
        let mut index = self.index();
        index.put((kind, ObjectKey::of(object)), Some(managed.pipeline.clone()));
        cache.store(object, managed);
    }

    /// Forgets an object that this replica has deleted.
    pub(super) fn forget(&self, pipeline: &PipelineName, kind: ManagedKind, name: &str) {
        let key = ObjectKey::new(pipeline.parts().0.unwrap_or_default(), name);
        let mut index = self.index();
        self.caches.get(&kind).into_iter().for_each(|cache| cache.remove(&key));
        index.put((kind, key), None);
    }

    /// The index with every change that the watches have shown.
    fn index(&self) -> MutexGuard<'_, Index> {
        let mut index = self.index.lock().expect("no panic while it is held");
        for (kind, cache) in &self.caches {
            for key in cache.take_changed() {
                let pipeline = cache.get(&key).map(|object| object.pipeline.clone());
                index.changed_by_others.extend(pipeline.clone());
                let before = index.put((*kind, key), pipeline);
                index.changed_by_others.extend(before);
            }
        }
        index
    }
}

impl Index {
    /// Records whose an object is; returns whose it was.
    fn put(&mut self, key: Key, pipeline: Option<PipelineName>) -> Option<PipelineName> {
        let before = match pipeline.clone() {
            Some(pipeline) => self.pipelines.insert(key.clone(), pipeline),
            None => self.pipelines.remove(&key),
        };
        if before == pipeline {
            return before;
        }
        if let Some(before) = &before
            && let Some(keys) = self.keys.get_mut(before)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.keys.remove(before);
            }
        }
        pipeline
            .into_iter()
            .for_each(|pipeline| _ = self.keys.entry(pipeline).or_default().insert(key.clone()));
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_an_object_under_its_current_pipeline() {
        let name = |text: &str| PipelineName::in_namespace("ns", text).expect("a name");
        let key = || (ManagedKind::Service, ObjectKey::new("ns", "service"));
        let mut index = Index::default();
        assert_eq!(index.put(key(), Some(name("a"))), None);
        assert_eq!(index.put(key(), Some(name("a"))), Some(name("a")));
        assert_eq!(index.put(key(), Some(name("b"))), Some(name("a")));
        assert_eq!(index.keys.keys().collect::<Vec<_>>(), [&name("b")]);
        assert_eq!(index.put(key(), None), Some(name("b")));
        assert!(index.keys.is_empty() && index.pipelines.is_empty());
    }
}
