//! The pods that are workers: watched, and known by name and UID. It says of a worker that it is
//! gone when nothing of its pod runs any more, and never once a later pod of that name was let in.

mod facts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use leasehold_coordinator_core::event::{Event, Exposure};
use leasehold_types::{TimeBounds, WorkerKey};
use tokio::sync::{mpsc, watch};

use crate::driver::Handle;

pub(crate) use self::facts::{Owner, Phase, PodFacts, PodName};

/// What the watch of pods needs.
#[derive(Clone)]
pub(crate) struct PodsSettings {
    /// The way to the API server.
    pub(crate) client: Client,
    /// The namespaces that are watched; all where it is empty.
    pub(crate) watched: Vec<String>,
    /// How far clocks may be apart.
    pub(crate) bounds: TimeBounds,
    /// The way to the driver, once there is one.
    pub(crate) handle: watch::Receiver<Option<Handle>>,
}

/// The pods that are workers; cheap to clone.
#[derive(Clone)]
pub(crate) struct Pods(Arc<Shared>);

struct Shared {
    settings: PodsSettings,
    changed: watch::Sender<u64>,
}

impl Pods {
    /// Starts the watch, which says [`Event::Gone`] on `events`.
    pub(crate) fn start(settings: PodsSettings, events: mpsc::Sender<Event>) -> Self;

    /// Every worker that may hold anything: of pods that are there as the API server has them now
    /// and are not over, and of pods that vanished while they may have run. A leader calls it
    /// after it has taken its epoch.
    ///
    /// # Errors
    /// Where the API server does not answer: try again.
    pub(crate) async fn list_exposed(&self)
    -> Result<BTreeMap<WorkerKey, Exposure>, kube::Error>;

    /// Writes down what these workers may hold; one answer an entry: whether it is written. An
    /// entry whose pod is there no more counts as written: nobody speaks for it, and its
    /// [`Event::Gone`] follows.
    pub(crate) async fn expose(&self, entries: &[(WorkerKey, Exposure)]) -> Vec<bool>;

    /// Strikes what is written down for these workers; what fails stays written, which is safe.
    pub(crate) async fn conceal(&self, keys: &[WorkerKey]);

    /// The pod that bears this name, as last seen.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>>;

    /// The pod of this name once it is the one with this UID, and all has been said of earlier
    /// ones of its name; none where that is not so within `within`.
    pub(crate) async fn await_uid(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        within: Duration,
    ) -> Option<Arc<PodFacts>>;

    /// Every pod, as last seen, by namespace and name.
    pub(crate) fn all(&self) -> Vec<Arc<PodFacts>>;

    /// Whether every pod has been seen once: before that, a pod that is missing here may exist.
    pub(crate) fn is_synced(&self) -> bool;

    /// Counts the changes of what [`Pods::all`] gives.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }
}
