//! The operator: while this replica leads, it makes and scales the workloads of WorkerClusters
//! and WorkerClasses, drains the pods that have to go, keeps busy ones safe from evictions, and
//! shows how everything stands. It decides nothing about leases, and a pod that may hold something
//! is never ended by it.

mod action;
mod busy;
mod chronicle;
mod disruption;
mod drains;
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

use leasehold_types::ClusterName;
use tokio::sync::watch;

pub(crate) use self::injection::{Agents, Census};
use self::rounds::Rounds;
pub(crate) use self::workload::WorkloadState;
use crate::context::Context;

/// The workload of each fleet that has one, as last seen.
pub(crate) type Workloads = Arc<BTreeMap<ClusterName, WorkloadState>>;

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
