//! The pods that are workers: watched, and known by name and UID. It says of a worker that it is
//! gone when nothing of its pod runs any more, and never once a later pod of that name was let in.

mod exposure_annotation;
mod facts;
mod patch;
mod pod_watch;
mod store;
#[cfg(test)]
mod store_tests;
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
use leasehold_driver::port::Handle;
use leasehold_types::TimeBounds;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

pub use self::facts::{Owner, Phase, PodFacts, PodName, version};
use self::store::PodStore;
use self::tombstone_reaper::TombstoneReaper;

/// What the watch of pods needs.
#[derive(Clone)]
pub struct PodsSettings {
    /// The way to the API server.
    pub client: Client,
    /// The namespaces that are watched; all where it is empty.
    pub watched: Vec<String>,
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
    /// The way to the driver, once there is one.
    pub handle: watch::Receiver<Option<Handle>>,
}

/// The pods that are workers; cheap to clone.
#[derive(Clone)]
pub struct Pods(Arc<Shared>);

struct Shared {
    settings: PodsSettings,
    store: Mutex<PodStore>,
    /// The scopes that have been seen whole once.
    seen: Mutex<BTreeSet<Option<String>>>,
    changed: watch::Sender<u64>,
    events: mpsc::Sender<Event>,
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").field("watched", &self.0.settings.watched).finish_non_exhaustive()
    }
}

impl Pods {
    /// Starts the watch, which says [`Event::Gone`] on `events`, on the present runtime.
    pub fn start(settings: PodsSettings, events: mpsc::Sender<Event>) -> Self {
        let shared = Arc::new(Shared {
            settings,
            store: Mutex::default(),
            seen: Mutex::default(),
            changed: watch::Sender::new(0),
            events: events.clone(),
        });
        for scope in shared.scopes() {
            tokio::spawn(pod_watch::watch_pods(Arc::clone(&shared), scope, events.clone()));
        }
        tokio::spawn(TombstoneReaper::new(Arc::clone(&shared), events).run());
        Self(shared)
    }

    /// The pod that bears this name, as last seen.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>> {
        let name = PodName { namespace: namespace.to_owned(), name: name.to_owned() };
        self.0.store().find(&name).cloned()
    }

    /// The pod of this name once it has this UID and no tombstone of an earlier pod of its name is
    /// left; after `within`, the reason.
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

    /// Whether every pod has been seen once: before that, a pod that is missing here may exist.
    pub fn is_synced(&self) -> bool {
        self.0.is_synced()
    }

    /// Counts the changes of what [`Pods::all`] gives.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }
}

/// Why a pod is not known under a UID.
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
        self.store.lock().expect("no panic while it is held")
    }

    fn has_tombstone(&self) -> bool {
        self.store().tombstones().next().is_some()
    }

    fn has_changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn api(&self, namespace: Option<&str>) -> Api<Pod> {
        let client = self.settings.client.clone();
        match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }

    fn scopes(&self) -> Vec<Option<String>> {
        match self.settings.watched.is_empty() {
            true => vec![None],
            false => self.settings.watched.iter().cloned().map(Some).collect(),
        }
    }

    fn mark_scope_listed(&self, namespace: Option<&str>) {
        let mut seen = self.seen.lock().expect("no panic while it is held");
        seen.insert(namespace.map(str::to_owned));
    }

    fn is_synced(&self) -> bool {
        let seen = self.seen.lock().expect("no panic while it is held");
        self.scopes().iter().all(|scope| seen.contains(scope))
    }
}
