//! What a WorkerClass's status says, as a function of the facts.

use k8s_openapi::jiff::Timestamp;
use leasehold_coordinator_core::view::ClassView;
use leasehold_kube_api::names;
use leasehold_kube_api::status::{ClassLoad, WorkerClassStatus, WorkloadStatus};

use super::fleet::{FleetFacts, Outlook, Workers, aspects};
use crate::conditions::{Why, conditions, outline, still_in_force};

/// What the core says of a class.
#[derive(Clone, Debug)]
pub(super) struct ClassWord {
    pub(super) class: ClassView,
    /// The new leader waits for its workers, of which it knows so many.
    pub(super) held: Option<usize>,
}

/// What is known of a class.
pub(super) type ClassFacts = FleetFacts<ClassWord>;

/// The status, where `before` is the one that was written last.
pub(super) fn status(
    facts: &ClassFacts,
    before: &WorkerClassStatus,
    now: Timestamp,
) -> WorkerClassStatus {
    let wanted = facts.view.as_ref().map_or(0, |view| view.class.workers_wanted);
    let desired = facts.workload.as_ref().map_or(wanted, |workload| workload.desired);
    let workers = Workers::of(facts, desired);
    let in_force = still_in_force(facts.in_force, facts.view.is_some(), before.observed_generation);
    let (under_way, wrong) = waiting(facts, &workers);
    let outlook = Outlook {
        held: facts.view.as_ref().and_then(|view| view.held),
        of_lost: "what they served goes to others when their leases have ended",
        under_way,
        wrong,
        well: complete(facts, &workers),
    };
    let aspects = aspects(facts, in_force, &workers, outlook);
    let mut status = WorkerClassStatus {
        observed_generation: in_force,
        conditions: conditions(aspects, &before.conditions, facts.generation, now),
        replicas: workers.counts.total,
        selector: Some(names::selector(&facts.name)),
        workload: facts.workload.as_ref().map(|workload| WorkloadStatus {
            kind: format!("{:?}", workload.kind),
            name: workload.name.clone(),
        }),
        workers: workers.counts,
        ..WorkerClassStatus::default()
    };
    if let Some(ClassWord { class, .. }) = &facts.view {
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

/// Pipelines that wait: for workers that come by themselves, or for somebody.
fn waiting(facts: &ClassFacts, workers: &Workers) -> (Option<Why>, Option<Why>) {
    let Some(ClassWord { class, .. }) = facts.view.as_ref().filter(|it| it.class.waiting > 0)
    else {
        return (None, None);
    };
    let (waiting, ready) = (class.waiting, workers.counts.ready);
    let limited = facts.workload.as_ref().and_then(|workload| workload.limited.as_ref());
    match (limited, &facts.workload) {
        (Some((_, why)), _) => {
            let message = format!("{waiting} pipelines wait for more workers than {ready}: {why}");
            (None, Some(Why::new("PipelinesWait", message)))
        }
        (None, Some(_)) => {
            let message = format!("{waiting} pipelines wait for more workers than {ready}");
            (Some(Why::new("PipelinesWait", message)), None)
        }
        (None, None) => {
            let message = format!(
                "{waiting} pipelines wait for more workers than {ready}: start pods with the \
                 label {}",
                names::selector(&facts.name)
            );
            (None, Some(Why::new("PipelinesWait", message)))
        }
    }
}

fn complete(facts: &ClassFacts, workers: &Workers) -> String {
    let (ready, desired) = (workers.counts.ready, workers.counts.desired);
    let kept = facts.workload.as_ref().map_or(0, |workload| workload.kept);
    let why = match kept {
        0 => String::new(),
        kept => format!("; {kept} stay, since what they serve would find no room with the others"),
    };
    format!("{ready} workers are ready, {desired} are wanted{why}")
}

/// The status without the figures and words that change all the time.
pub(super) fn outlined(status: &WorkerClassStatus) -> WorkerClassStatus {
    WorkerClassStatus {
        conditions: outline(&status.conditions),
        load: ClassLoad::default(),
        ..status.clone()
    }
}

#[cfg(test)]
#[path = "class_tests.rs"]
mod tests;
