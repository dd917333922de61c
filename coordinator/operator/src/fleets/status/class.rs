//! The status of a WorkerClass, as a function of the facts.

use k8s_openapi::jiff::Timestamp;
use leasehold_coordinator_core::view::ClassView;
use leasehold_kube_api::names;
use leasehold_kube_api::status::{ClassLoad, WorkerClassStatus, WorkloadStatus};

use super::fleet::{FleetFacts, KindDetails, WorkerSummary, desired_conditions};
use crate::conditions::{ConditionReason, conditions, in_force_generation, without_messages};

/// The core's view of a class.
#[derive(Clone, Debug)]
pub(super) struct ClassSnapshot {
    pub(super) class: ClassView,
    /// While the new leader waits for reports: the number of workers that it knows.
    pub(super) held: Option<usize>,
}

/// The facts of a class.
pub(super) type ClassFacts = FleetFacts<ClassSnapshot>;

/// The status, where `before` is the one that was written last.
pub(super) fn status(
    facts: &ClassFacts,
    before: &WorkerClassStatus,
    now: Timestamp,
) -> WorkerClassStatus {
    let wanted = facts.view.as_ref().map_or(0, |view| view.class.workers_wanted);
    let desired = facts.workload.as_ref().map_or(wanted, |workload| workload.desired);
    let workers = WorkerSummary::of(facts, desired);
    let in_force =
        in_force_generation(facts.in_force, facts.view.is_some(), before.in_force_generation);
    let (progressing_by, degraded_by) = waiting(facts, &workers);
    let details = KindDetails {
        held: facts.view.as_ref().and_then(|view| view.held),
        lost_effect: "their shares go to other workers when their leases have ended",
        progressing_by,
        degraded_by,
        ready_message: complete(facts, &workers),
    };
    let desired_conditions = desired_conditions(facts, in_force, &workers, details);
    let mut status = WorkerClassStatus {
        observed_generation: facts.generation,
        in_force_generation: in_force,
        conditions: conditions(desired_conditions, &before.conditions, facts.generation, now),
        replicas: workers.counts.total,
        selector: Some(names::selector(&facts.name)),
        workload: facts.workload.as_ref().map(|workload| WorkloadStatus {
            kind: format!("{:?}", workload.kind),
            name: workload.name.clone(),
        }),
        workers: workers.counts,
        ..WorkerClassStatus::default()
    };
    if let Some(ClassSnapshot { class, .. }) = &facts.view {
        status.load = ClassLoad {
            request: class.request.to_string(),
            placed: class.placed.to_string(),
            utilization: utilization(class),
        };
        status.pipelines_waiting = u32::try_from(class.waiting).unwrap_or(u32::MAX);
    }
    status
}

/// The request, in percent of what the workers can take together, rounded up.
fn utilization(class: &ClassView) -> Option<u32> {
    let room = u128::from(class.capacity.milli()) * u128::from(class.workers);
    let request = u128::from(class.request.milli()) * 100;
    (room > 0).then(|| u32::try_from(request.div_ceil(room)).unwrap_or(u32::MAX))
}

/// Waiting pipelines: for workers that are being created, or for a user.
fn waiting(
    facts: &ClassFacts,
    workers: &WorkerSummary,
) -> (Option<ConditionReason>, Option<ConditionReason>) {
    let Some(ClassSnapshot { class, .. }) =
        facts.view.as_ref().filter(|snapshot| snapshot.class.waiting > 0)
    else {
        return (None, None);
    };
    let (waiting, ready) = (class.waiting, workers.counts.ready);
    let limited = facts.workload.as_ref().and_then(|workload| workload.limited.as_ref());
    match (limited, &facts.workload) {
        (Some((_, why)), _) => {
            let message = format!("{waiting} pipelines wait for more workers than {ready}: {why}");
            (None, Some(ConditionReason::new("PipelinesWait", message)))
        }
        (None, Some(_)) => {
            let message = format!("{waiting} pipelines wait for more workers than {ready}");
            (Some(ConditionReason::new("PipelinesWait", message)), None)
        }
        (None, None) => {
            let message = format!(
                "{waiting} pipelines wait for more workers than {ready}: start pods with the \
                 label {}",
                names::selector(&facts.name)
            );
            (None, Some(ConditionReason::new("PipelinesWait", message)))
        }
    }
}

fn complete(facts: &ClassFacts, workers: &WorkerSummary) -> String {
    let (ready, desired) = (workers.counts.ready, workers.counts.desired);
    let kept = facts.workload.as_ref().map_or(0, |workload| workload.kept);
    let why = match kept {
        0 => String::new(),
        kept => format!("; {kept} stay, because the other workers have no room for their shares"),
    };
    format!("{ready} workers are ready, {desired} are needed{why}")
}

/// The status without the figures and words that change all the time.
pub(super) fn without_figures(status: &WorkerClassStatus) -> WorkerClassStatus {
    WorkerClassStatus {
        conditions: without_messages(&status.conditions),
        load: ClassLoad::default(),
        ..status.clone()
    }
}

#[cfg(test)]
#[path = "class_tests.rs"]
mod tests;
