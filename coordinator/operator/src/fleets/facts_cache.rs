//! Objects as a watch last showed them, kept as the few facts that are needed of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// The facts of each object, by namespace and name; the watches end with it.
#[derive(Debug)]
pub(super) struct FactsCache<F> {
    /// One for each watch; none before its first list is whole.
    scopes: Arc<Mutex<Vec<Option<Facts<F>>>>>,
    _watches: JoinSet<()>,
}

type Facts<F> = BTreeMap<Name, Arc<F>>;
type Name = (String, String);

impl<F: Send + Sync + 'static> FactsCache<F> {
    /// Watches what is in `apis`; objects without facts are not kept.
    pub(super) fn start<K>(
        apis: Vec<Api<K>>,
        config: &watcher::Config,
        facts: fn(&K) -> Option<F>,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let scopes = Arc::new(Mutex::new(apis.iter().map(|_| None).collect()));
        let mut watches = JoinSet::new();
        for (index, api) in apis.into_iter().enumerate() {
            watches.spawn(watch(api, config.clone(), facts, Arc::clone(&scopes), index));
        }
        Self { scopes, _watches: watches }
    }

    /// Whether all has been seen once.
    pub(super) fn is_synced(&self) -> bool {
        lock(&self.scopes).iter().all(Option::is_some)
    }

    /// One object.
    pub(super) fn find(&self, namespace: &str, name: &str) -> Option<Arc<F>> {
        let name = (namespace.to_owned(), name.to_owned());
        lock(&self.scopes).iter().flatten().find_map(|facts| facts.get(&name).cloned())
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<F>> {
        let scopes = lock(&self.scopes);
        scopes.iter().flatten().flat_map(|facts| facts.values()).cloned().collect()
    }

    /// The names of all that are not in a namespace.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let scopes = lock(&self.scopes);
        scopes.iter().flatten().flat_map(|facts| facts.keys()).map(|it| it.1.clone()).collect()
    }
}

async fn watch<K, F>(
    api: Api<K>,
    config: watcher::Config,
    facts: fn(&K) -> Option<F>,
    scopes: Arc<Mutex<Vec<Option<Facts<F>>>>>,
    index: usize,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = pin!(watcher(api, config).default_backoff());
    let mut listed = Facts::new();
    let mut is_well = true;
    while let Some(event) = events.next().await {
        if let Err(error) = &event {
            if std::mem::replace(&mut is_well, false) {
                let kind = std::any::type_name::<K>().rsplit("::").next();
                tracing::warn!(%error, kind, "the watch is broken; it is tried again");
            }
            continue;
        }
        let Ok(event) = event else { continue };
        is_well = true;
        match event {
            Event::Init => listed = Facts::new(),
            Event::InitApply(object) => put(&mut listed, &object, facts),
            Event::InitDone => lock(&scopes)[index] = Some(std::mem::take(&mut listed)),
            Event::Apply(object) => {
                put(lock(&scopes)[index].get_or_insert_default(), &object, facts);
            }
            Event::Delete(object) => {
                lock(&scopes)[index].get_or_insert_default().remove(&name(&object));
            }
        }
    }
}

fn put<K: ResourceExt, F>(into: &mut Facts<F>, object: &K, facts: fn(&K) -> Option<F>) {
    match facts(object) {
        Some(facts) => into.insert(name(object), Arc::new(facts)),
        None => into.remove(&name(object)),
    };
}

fn name<K: ResourceExt>(object: &K) -> Name {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is held")
}
