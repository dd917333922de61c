//! The pods that are workers, by name and UID. A worker is reported gone when no container of its
//! pod runs any longer, and never after a later pod of that name was admitted.

mod busy_mark;
mod exposure_annotation;
mod facts;
mod node_end;
mod patch;
mod pod_watch;
mod store;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod tenant_tests;
mod tombstone_reaper;
mod writer;
#[cfg(test)]
mod writer_tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use leasehold_coordinator_core::event::Event;
use leasehold_driver::log_limit::LogLimit;
use leasehold_driver::port::Handle;
use leasehold_types::TimeBounds;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::timeout;

pub use self::busy_mark::BusyMark;
pub use self::facts::{Owner, Phase, PodFacts, PodName, version};
use self::store::PodStore;
use self::tombstone_reaper::TombstoneReaper;

/// The changes by which a receiver of [`Pods::changes`] may lag behind.
const CHANGES_MAX: usize = 4_096;

/// The settings of the watch of pods.
#[derive(Clone)]
pub struct PodsSettings {
    /// The client of the API server.
    pub client: Client,
    /// The namespaces that are watched; empty for all.
    pub watched: Vec<String>,
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
    /// The driver's handle, once it runs.
    pub handle: watch::Receiver<Option<Handle>>,
}

/// The pods that are workers; cheap to clone.
#[derive(Clone)]
pub struct Pods(Arc<Shared>);

struct Shared {
    settings: PodsSettings,
    store: Mutex<PodStore>,
    scopes: Mutex<ScopeStates>,
    changed: watch::Sender<u64>,
    changes: broadcast::Sender<PodChange>,
    events: mpsc::Sender<Event>,
    /// The warnings about writes that fail, by pod: each is tried again.
    failed_writes: LogLimit<PodName>,
}

/// What the watch of pods has found in its scopes: in namespaces, or in all of them.
#[derive(Default)]
struct ScopeStates {
    /// The scopes that were listed once.
    listed: BTreeSet<Option<String>>,
    /// Namespaces that were never listed, since the API server forbids it.
    forbidden: BTreeSet<String>,
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").field("watched", &self.0.settings.watched).finish_non_exhaustive()
    }
}

impl Pods {
    /// Starts the watch on the current runtime; it sends [`Event::Gone`] on `events`.
    pub fn start(settings: PodsSettings, events: mpsc::Sender<Event>) -> Self {
        let shared = Arc::new(Shared {
            settings,
            store: Mutex::default(),
            scopes: Mutex::default(),
            changed: watch::Sender::new(0),
            changes: broadcast::channel(CHANGES_MAX).0,
            failed_writes: LogLimit::default(),
            events: events.clone(),
        });
        for scope in shared.scopes() {
            tokio::spawn(pod_watch::watch_pods(Arc::clone(&shared), scope, events.clone()));
        }
        tokio::spawn(TombstoneReaper::new(Arc::clone(&shared), events).run());
        Self(shared)
    }

    /// The pod with this name, as last seen.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>> {
        let name = PodName { namespace: namespace.to_owned(), name: name.to_owned() };
        self.0.store().find(&name).cloned()
    }

    /// Waits until the pod of this name has this UID and no earlier pod of its name has a
    /// tombstone; after `within`, returns the reason.
    pub async fn await_uid(
        &self,
        name: &PodName,
        uid: &str,
        within: Duration,
    ) -> Result<Arc<PodFacts>, PodLookupError> {
        let mut changed = self.changed();
        let found = async {
            loop {
                let found = self.0.store().settled(name).cloned();
                if let Some(facts) = found.filter(|facts| facts.uid == uid) {
                    return facts;
                }
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        if let Ok(facts) = timeout(within, found).await {
            return Ok(facts);
        }
        let store = self.0.store();
        Err(match store.find(name) {
            Some(facts) if facts.uid != uid => PodLookupError::UidMismatch,
            Some(_) => PodLookupError::PredecessorMayRun,
            None if store.has_tombstone(name) => PodLookupError::Deleted,
            None => PodLookupError::NotFound,
        })
    }

    /// Every pod, as last seen, by namespace and name.
    pub fn all(&self) -> Vec<Arc<PodFacts>> {
        self.0.store().all().cloned().collect()
    }

    /// Whether the pods of all namespaces were listed once, but for namespaces of which the API
    /// server forbids it.
    pub fn is_synced(&self) -> bool {
        self.0.is_synced()
    }

    /// Whether the pods of this namespace were listed once: before that, a pod that is missing here
    /// may exist.
    pub fn is_listed(&self, namespace: &str) -> bool {
        self.0.is_listed(namespace)
    }

    /// Notifies of changes of [`Pods::all`].
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Every change from now on, one by one. A receiver that lags behind reads [`Pods::all`].
    pub fn changes(&self) -> broadcast::Receiver<PodChange> {
        self.0.changes.subscribe()
    }
}

/// A change of the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodChange {
    /// The pod of this name has changed, or no longer exists.
    Pod(PodName),
    /// More pods than these are known now: a namespace, or all, was listed once, or the API server
    /// forbids it.
    Listed,
}

/// Why no pod was found under a name and a UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLookupError {
    /// No pod of this name with the label has been seen.
    NotFound,
    /// The pod of this name was deleted, or lost its label.
    Deleted,
    /// The pod of this name has another UID.
    UidMismatch,
    /// An earlier pod of this name was deleted by force, and may still run.
    PredecessorMayRun,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, PodStore> {
        self.store.lock().expect("the lock is not poisoned")
    }

    fn has_tombstone(&self) -> bool {
        self.store().tombstones().next().is_some()
    }

    fn has_changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Notifies of changes one by one. There may be no receiver.
    fn send_changes(&self, changes: impl IntoIterator<Item = PodChange>) {
        changes.into_iter().for_each(|change| _ = self.changes.send(change));
    }

    fn api(&self, namespace: Option<&str>) -> Api<Pod> {
        let client = self.settings.client.clone();
        match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }

    fn scopes(&self) -> Vec<Option<String>> {
        if self.settings.watched.is_empty() {
            vec![None]
        } else {
            self.settings.watched.iter().cloned().map(Some).collect()
        }
    }

    fn mark_scope_listed(&self, namespace: Option<&str>) {
        let mut states = self.scope_states();
        states.listed.insert(namespace.map(str::to_owned));
        if let Some(namespace) = namespace {
            states.forbidden.remove(namespace);
        }
    }

    fn mark_namespace_forbidden(&self, namespace: &str) {
        let mut states = self.scope_states();
        if !states.listed.contains(&Some(namespace.to_owned())) {
            states.forbidden.insert(namespace.to_owned());
        }
    }

    fn is_synced(&self) -> bool {
        let ScopeStates { listed, forbidden } = &*self.scope_states();
        let is_done = |scope: &Option<String>| {
            listed.contains(scope) || scope.as_ref().is_some_and(|name| forbidden.contains(name))
        };
        self.scopes().iter().all(is_done)
    }

    fn is_listed(&self, namespace: &str) -> bool {
        let listed = &self.scope_states().listed;
        listed.contains(&None) || listed.contains(&Some(namespace.to_owned()))
    }

    fn scope_states(&self) -> MutexGuard<'_, ScopeStates> {
        self.scopes.lock().expect("the lock is not poisoned")
    }
}
