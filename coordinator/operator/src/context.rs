//! What every reconciler shares.

use std::sync::Arc;

use kube::Client;
use leasehold_driver::port::Handle;
use leasehold_platform_kube::Settings;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::Pods;
use leasehold_platform_kube::webhook::Injector;
use tokio::sync::watch;

use crate::applier::Applier;
use crate::events::EventRecorder;
use crate::nodes::Nodes;

/// What every reconciler shares; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The client of the API server.
    pub(crate) client: Client,
    /// Writes objects.
    pub(crate) applier: Applier,
    /// The handle of the driver, which knows whether this replica leads.
    pub(crate) handle: Handle,
    /// WorkerClusters and StreamSets as last seen.
    pub(crate) objects: watch::Receiver<Arc<Objects>>,
    /// The nodes that are cordoned or in a zone.
    pub(crate) nodes: Nodes,
    /// The pods that are workers.
    pub(crate) pods: Pods,
    /// Records events.
    pub(crate) events: EventRecorder,
    /// What opted-in pods get.
    pub(crate) injector: Injector,
    /// How this replica runs.
    pub(crate) settings: Arc<Settings>,
}
