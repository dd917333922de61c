//! The operator: while this replica leads, it makes and scales the workloads of WorkerClusters
//! and WorkerClasses, drains the pods that have to go, keeps busy ones safe from evictions, and
//! shows how everything stands. It decides nothing about leases, and a pod that may hold something
//! is never ended by it.

mod action;
mod busy;
mod chronicle;
mod disruption;
mod drains;
pub(crate) mod events;
#[cfg(test)]
pub(crate) mod fixtures;
mod fleet;
mod injection;
mod memory;
mod nodes;
mod restart;
mod rounds;
mod scale_in;
mod scaling;
mod seen;
mod standing;
pub(crate) mod status;
mod tell;
mod template;
mod turn;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use leasehold_types::ClusterName;
use tokio::sync::watch;

pub(crate) use self::events::Recorder;
pub(crate) use self::injection::{Agents, Census};
use self::rounds::Rounds;
pub(crate) use self::template::digest;
pub(crate) use self::workload::WorkloadState;
use super::Settings;
use super::desired::Objects;
use super::pods::Pods;
use crate::driver::Handle;
use crate::webhook::Injector;

/// The workload of each fleet that has one, as last seen.
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
    /// What opted-in pods get.
    pub(crate) injector: Injector,
    /// How this replica runs.
    pub(crate) settings: Arc<Settings>,
}

/// Runs until the driver ends. It does something only while this replica leads.
pub(crate) async fn run(context: Context) {
    let (states, workloads) = watch::channel(Workloads::default());
    let (census, agents) = watch::channel(Agents::default());
    let rounds = Rounds::new(context.clone(), states);
    // All of them end with the driver, and with nothing else.
    let _ = tokio::join!(
        rounds.run(),
        rounds::mind_joins(context.clone()),
        chronicle::run(context.clone()),
        injection::run(context.clone(), census),
        status::run(context, workloads, agents),
    );
}
