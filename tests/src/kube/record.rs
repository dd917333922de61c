//! A record of what became of objects: every version of each that a watch has shown, in the order
//! in which the API server wrote them, over all kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

/// One version of an object.
#[derive(Clone, Debug)]
pub struct Version {
    /// The store's revision.
    pub revision: u64,
    /// The object's kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The object, or `None` if it is deleted.
    pub object: Option<Value>,
}

/// A record that grows until it is dropped.
#[derive(Debug)]
pub struct Record {
    versions: Arc<Mutex<BTreeMap<u64, Version>>>,
    listed: Arc<Mutex<BTreeSet<&'static str>>>,
    kinds: usize,
    _watches: JoinSet<()>,
}

impl Record {
    /// Begins to record objects of these kinds, given as group, version and kind, in a namespace.
    #[must_use]
    pub fn begin(
        client: &Client,
        namespace: &str,
        kinds: &[(&'static str, &'static str, &'static str)],
    ) -> Self {
        let versions = Arc::default();
        let listed = Arc::default();
        let mut watches = JoinSet::new();
        for (group, version, kind) in kinds {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api = Api::namespaced_with(client.clone(), namespace, &resource);
            watches.spawn(follow(api, kind, Arc::clone(&versions), Arc::clone(&listed)));
        }
        Self { versions, listed, kinds: kinds.len(), _watches: watches }
    }

    /// Whether nothing from now on is missed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        lock(&self.listed).len() == self.kinds
    }

    /// All that was recorded so far, in order.
    #[must_use]
    pub fn versions(&self) -> Vec<Version> {
        lock(&self.versions).values().cloned().collect()
    }

    /// The newest revision that was recorded.
    #[must_use]
    pub fn newest(&self) -> u64 {
        lock(&self.versions).keys().next_back().copied().unwrap_or(0)
    }
}

async fn follow(
    api: Api<DynamicObject>,
    kind: &'static str,
    versions: Arc<Mutex<BTreeMap<u64, Version>>>,
    listed: Arc<Mutex<BTreeSet<&'static str>>>,
) {
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let (object, is_there) = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, true),
            Ok(Event::Delete(object)) => (object, false),
            Ok(Event::InitDone) => {
                lock(&listed).insert(kind);
                continue;
            }
            // The stream continues by itself, with a list.
            Ok(Event::Init) | Err(_) => continue,
        };
        let revision = object.resource_version().and_then(|version| version.parse().ok());
        let revision: u64 = revision.expect("the store's revision");
        let value = serde_json::to_value(&object).expect("an object");
        let object_now = is_there.then_some(value);
        let version = Version { revision, kind, name: object.name_any(), object: object_now };
        lock(&versions).insert(revision, version);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
