//! Reconciles WorkerClusters and WorkerClasses while this replica leads: it creates and scales
//! their workloads, drains pods that must leave, protects busy pods from evictions, and writes
//! statuses. It decides nothing about leases, and never deletes a pod that may hold one. Every
//! replica tells its core which workers are on cordoned nodes.

mod action;
mod avoidance;
mod calls;
mod core_reads;
mod drains;
mod events;
mod evictions;
#[cfg(test)]
pub(crate) mod fixtures;
mod fleet;
mod fleet_index;
mod injection;
mod node_drains;
mod orphans;
mod plan;
mod pod_index;
mod reconciler;
mod replicas;
mod rescan;
mod restart;
mod scale_in;
mod scaling;
mod state;
pub(crate) mod status;
mod template;
mod turns;
mod worker_pod;
mod workload;
mod workload_caches;

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_types::ClusterName;
use tokio::sync::watch;

pub(crate) use self::injection::{InjectionByCluster, InjectionCounts};
use self::reconciler::FleetReconciler;
pub(crate) use self::workload::WorkloadState;
use crate::context::Context;

/// The workload of each fleet that has one, as last seen.
pub(crate) type Workloads = Arc<BTreeMap<ClusterName, WorkloadState>>;

/// Runs until the driver ends. It does something only while this replica leads.
pub(crate) async fn run(context: Context) {
    let (states, workloads) = watch::channel(Workloads::default());
    let (census, agents) = watch::channel(InjectionByCluster::default());
    let reconciler = FleetReconciler::new(context.clone(), states);
    // Each of them runs until the driver ends.
    let _ = tokio::join!(
        reconciler.run(),
        drains::drain_on_join(context.clone()),
        avoidance::run(context.clone()),
        events::run(context.clone()),
        injection::run(context.clone(), census),
        status::run(context, workloads, agents),
    );
}
