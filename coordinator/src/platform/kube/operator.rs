//! The operator: while this replica leads, it makes and scales the workloads of WorkerClusters,
//! drains the pods that have to go, keeps busy ones safe from evictions, and shows how everything
//! stands. It decides nothing about leases, and a pod that may hold something is never ended by it.

mod events;
mod status;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use leasehold_types::ClusterName;
use tokio::sync::watch;

pub(crate) use self::events::Recorder;
pub(crate) use self::workload::{Rollout, WorkloadState};
use super::Settings;
use super::desired::Objects;
use super::pods::Pods;
use crate::driver::Handle;

/// The workload of each cluster that has one, as last seen.
pub(crate) type Workloads = Arc<BTreeMap<ClusterName, WorkloadState>>;

/// What every part of the operator needs; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The way to the API server.
    pub(crate) client: Client,
    /// The way to the driver, which knows whether this replica leads.
    pub(crate) handle: Handle,
    /// WorkerClusters and StreamSets as last seen.
    pub(crate) objects: watch::Receiver<Arc<Objects>>,
    /// The pods that are workers.
    pub(crate) pods: Pods,
    /// Tells people what happens.
    pub(crate) events: Recorder,
    /// How this replica runs.
    pub(crate) settings: Arc<Settings>,
}

/// Runs until it is dropped. It does something only while this replica leads.
pub(crate) async fn run(context: Context) {
    let (_workloads, seen) = watch::channel(Workloads::default());
    status::run(context, seen).await;
}
