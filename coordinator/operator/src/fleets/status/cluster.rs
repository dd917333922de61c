//! The status of a WorkerCluster, as a function of the facts.

use k8s_openapi::jiff::Timestamp;
use leasehold_coordinator_core::desired::workers_for;
use leasehold_coordinator_core::view::ClusterView;
use leasehold_kube_api::names;
use leasehold_kube_api::status::{
    AgentCounts, JobCounts, WorkerClusterStatus, WorkerStatus, WorkloadStatus,
};

use super::fleet::{FleetFacts, KindDetails, WorkerSummary, desired_conditions};
use crate::conditions::{conditions, in_force_generation, without_messages};

/// The facts of a cluster.
pub(super) type ClusterFacts = FleetFacts<ClusterView>;

/// The status, where `before` is the one that was written last.
pub(super) fn status(
    facts: &ClusterFacts,
    before: &WorkerClusterStatus,
    now: Timestamp,
) -> WorkerClusterStatus {
    let desired = |view: &ClusterView| workers_for(view.jobs_max, view.jobs_per_worker_max);
    let workers = WorkerSummary::of(facts, facts.view.as_ref().map_or(0, desired));
    let in_force =
        in_force_generation(facts.in_force, facts.view.is_some(), before.in_force_generation);
    let held = facts.view.as_ref().filter(|view| view.held.is_some());
    let details = KindDetails {
        held: held.map(|view| view.workers),
        lost_effect: "their slots and pinned streams stay reserved until they report again or \
                      their pods are gone",
        ready_message: complete(&workers),
        ..KindDetails::default()
    };
    let desired_conditions = desired_conditions(facts, in_force, &workers, details);
    let mut status = WorkerClusterStatus {
        observed_generation: facts.generation,
        in_force_generation: in_force,
        conditions: conditions(desired_conditions, &before.conditions, facts.generation, now),
        selector: Some(names::selector(&facts.name)),
        workload: facts.workload.as_ref().map(|workload| WorkloadStatus {
            kind: format!("{:?}", workload.kind),
            name: workload.name.clone(),
        }),
        workers: workers.counts,
        agents: AgentCounts {
            injected: facts.agents.injected,
            missing: facts.agents.missing,
            outdated: facts.agents.outdated,
        },
        worker_list: workers.list,
        workers_omitted: workers.omitted,
        ..WorkerClusterStatus::default()
    };
    if let Some(view) = &facts.view {
        let room = u64::from(workers.counts.ready) * u64::from(view.jobs_per_worker_max);
        status.max_jobs = Some(view.jobs_max);
        status.jobs = JobCounts {
            running: view.running.into(),
            granted: view.granted.into(),
            committed: view.committed.into(),
            capacity: room.min(view.jobs_max.into()),
        };
    }
    status
}

fn complete(workers: &WorkerSummary) -> String {
    match workers.counts.desired {
        0 => "maxJobs is 0: no workers are needed".into(),
        _ => format!(
            "{} workers are ready, {} are needed",
            workers.counts.ready, workers.counts.desired
        ),
    }
}

/// The status without the figures and words that change all the time.
pub(super) fn without_figures(status: &WorkerClusterStatus) -> WorkerClusterStatus {
    let bare = |worker: &WorkerStatus| WorkerStatus {
        name: worker.name.clone(),
        phase: worker.phase,
        ..WorkerStatus::default()
    };
    WorkerClusterStatus {
        conditions: without_messages(&status.conditions),
        jobs: JobCounts::default(),
        worker_list: status.worker_list.iter().map(bare).collect(),
        ..status.clone()
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
