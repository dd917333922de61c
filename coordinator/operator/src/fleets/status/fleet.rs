//! The common part of the statuses of WorkerClusters and WorkerClasses: the facts, and the
//! conditions that follow from them. Each kind adds its own for load or budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_kube_api::names;
use leasehold_kube_api::status::{WORKERS_LISTED_MAX, WorkerCounts, WorkerPhase, WorkerStatus};
use leasehold_platform_kube::pods::PodFacts;

use super::super::InjectionCounts;
use super::super::workload::{Rollout, StuckReason, WorkloadState};
use crate::conditions::{
    AGENTS_OUTDATED, ConditionReason, DEGRADED, DesiredCondition, INJECTION_WARNINGS, PROGRESSING,
    READY, REPLICAS_MANAGED, SCALING_LIMITED, invalid_spec, stalled_or_reconciling,
};

/// The most workers that a message names.
const NAMED_MAX: usize = 5;

/// The facts of a fleet; `V` is the core's view of its kind.
#[derive(Clone, Debug)]
pub(super) struct FleetFacts<V> {
    /// The object's name.
    pub(super) name: String,
    /// The generation of the newest spec.
    pub(super) generation: Option<i64>,
    /// The generation of the spec in force; `None` if only the last status has it.
    pub(super) in_force: Option<i64>,
    /// The problem of the newest spec.
    pub(super) problem: Option<String>,
    /// The core's view; none if the object is not in force.
    pub(super) view: Option<V>,
    /// The core's view of its workers.
    pub(super) workers: Vec<WorkerView>,
    /// The pods that carry its label.
    pub(super) pods: Vec<Arc<PodFacts>>,
    /// Its workload, if it creates or adopts one.
    pub(super) workload: Option<WorkloadState>,
    /// The agents of its pods that asked for one.
    pub(super) agents: InjectionCounts,
}

/// The details that only one kind has.
#[derive(Clone, Debug, Default)]
pub(super) struct KindDetails {
    /// While the new leader waits for reports: the number of workers that it knows.
    pub(super) held: Option<usize>,
    /// What happens to a lost worker's leases.
    pub(super) lost_effect: &'static str,
    /// A change in progress besides pods.
    pub(super) progressing_by: Option<ConditionReason>,
    /// A problem besides workers.
    pub(super) degraded_by: Option<ConditionReason>,
    /// The message of `Ready`.
    pub(super) ready_message: String,
}

/// The conditions of a fleet.
pub(super) fn desired_conditions<V>(
    facts: &FleetFacts<V>,
    in_force: Option<i64>,
    workers: &WorkerSummary,
    details: KindDetails,
) -> Vec<DesiredCondition> {
    let stalled = stalled(facts, in_force);
    let KindDetails { held, lost_effect, progressing_by: more, degraded_by, ready_message } =
        details;
    let progressing_by = progressing_by(facts, workers, held).or(more);
    let degraded = stalled.clone().or_else(|| pods_refused(facts));
    let degraded = degraded.or_else(|| without_agent(facts));
    let degraded = degraded.or_else(|| lost(workers, lost_effect)).or(degraded_by);
    let ready = match (&stalled, &progressing_by, &degraded) {
        (Some(why), ..) | (None, Some(why), _) | (None, None, Some(why)) => {
            DesiredCondition::new(READY, false, why.clone())
        }
        (None, None, None) => {
            DesiredCondition::new(READY, true, ConditionReason::new("Ready", ready_message))
        }
    };
    let reconciling = progressing_by.clone();
    let progressing = match (progressing_by, &stalled) {
        (Some(why), _) => DesiredCondition::new(PROGRESSING, true, why),
        (None, Some(why)) => DesiredCondition::new(PROGRESSING, false, why.clone()),
        (None, None) => DesiredCondition::new(
            PROGRESSING,
            false,
            ConditionReason::new("Complete", "no change is in progress"),
        ),
    };
    let degraded = match degraded {
        Some(why) => DesiredCondition::new(DEGRADED, true, why),
        None => DesiredCondition::new(
            DEGRADED,
            false,
            ConditionReason::new("AsExpected", "nothing is wrong"),
        ),
    };
    let mut conditions = vec![ready, progressing, degraded];
    conditions.extend(stalled_or_reconciling(stalled, reconciling));
    conditions.extend(outdated(facts).map(|why| DesiredCondition::new(AGENTS_OUTDATED, true, why)));
    conditions
        .extend(warned(facts).map(|why| DesiredCondition::new(INJECTION_WARNINGS, true, why)));
    let limited = facts.workload.as_ref().and_then(|workload| workload.limited.clone());
    let limited = limited.map(|(reason, message)| ConditionReason::new(reason, message));
    conditions.extend(limited.map(|why| DesiredCondition::new(SCALING_LIMITED, true, why)));
    let managed = facts.workload.as_ref().and_then(replicas_managed);
    conditions.extend(managed.map(|why| DesiredCondition::new(REPLICAS_MANAGED, true, why)));
    conditions
}

/// Another manager that the workload's replicas are left to.
fn replicas_managed(workload: &WorkloadState) -> Option<ConditionReason> {
    let WorkloadState { kind, name, desired, replicas, replicas_manager, .. } = workload;
    let manager = replicas_manager.as_ref()?;
    let message = format!(
        "{manager} sets the replicas of {kind:?} {name}, so the coordinator does not: it has \
         {replicas}, and {desired} are wanted; remove the autoscaler, or take spec.replicas out of \
         what {manager} applies, or set workloadRef.scale to false"
    );
    Some(ConditionReason::new("AnotherManager", message))
}

/// A problem that stays until a user acts.
fn stalled<V>(facts: &FleetFacts<V>, in_force: Option<i64>) -> Option<ConditionReason> {
    if let Some(problem) = &facts.problem {
        return Some(invalid_spec(problem, in_force));
    }
    let workload = facts.workload.as_ref()?;
    if let Some((reason, message)) = &workload.problem {
        return Some(ConditionReason::new(reason, message.clone()));
    }
    let WorkloadState { kind, name, .. } = workload;
    match &workload.rollout {
        Rollout::Stuck(StuckReason::Paused) => {
            let message = format!(
                "the rollout of {kind:?} {name} is paused, so its newest template has to wait; to \
                 go on: kubectl rollout resume deployment/{name}"
            );
            Some(ConditionReason::new("RolloutPaused", message))
        }
        Rollout::Stuck(StuckReason::Reported(why)) => {
            let message = format!(
                "the rollout of {kind:?} {name} makes no progress: {why}; look at its newest \
                 pods, and change the template or undo the change"
            );
            Some(ConditionReason::new("RolloutBlocked", message))
        }
        Rollout::Complete | Rollout::Progressing => None,
    }
}

/// A change in progress that ends by itself.
fn progressing_by<V>(
    facts: &FleetFacts<V>,
    workers: &WorkerSummary,
    held: Option<usize>,
) -> Option<ConditionReason> {
    if facts.view.is_none() {
        let message = "the coordinator has not read this object yet";
        return facts.problem.is_none().then(|| ConditionReason::new("NotInForce", message));
    }
    let counts = &workers.counts;
    if let Some(known) = held {
        let message = format!(
            "the new leader grants nothing new until every worker has reported to it; {} of \
             {known} have not",
            counts.unreported
        );
        return Some(ConditionReason::new("LeaderHolds", message));
    }
    if let Some(workload) = &facts.workload {
        let WorkloadState { desired, replicas, updated, .. } = workload;
        // The replicas of an adopted workload that is not scaled are its owner's choice.
        if replicas > desired && counts.draining > 0 {
            let message = format!(
                "from {replicas} to {desired} replicas once the {} workers that drain are idle",
                counts.draining
            );
            return Some(ConditionReason::new("ScalingIn", message));
        }
        if workload.rollout == Rollout::Progressing {
            let refused = pods_refused(facts).map(|why| format!("; {}", why.message));
            let message = format!(
                "{updated} of {replicas} pods have the newest template, {} workers are draining{}",
                counts.draining,
                refused.unwrap_or_default()
            );
            return Some(ConditionReason::new("RollingOut", message));
        }
    }
    (counts.ready < counts.desired).then(|| missing(facts, workers))
}

/// Missing workers, and where to look.
fn missing<V>(facts: &FleetFacts<V>, workers: &WorkerSummary) -> ConditionReason {
    let counts = &workers.counts;
    let mut message = format!("{} of {} workers are ready", counts.ready, counts.desired);
    if counts.draining > 0 {
        message += &format!("; {} are draining", counts.draining);
    }
    if workers.pending > 0 {
        message += &format!(
            "; the agents of {} pods have not connected: see these pods, and their agents' logs",
            workers.pending
        );
    }
    if counts.total < counts.desired {
        let short = counts.desired - counts.total;
        message += &match &facts.workload {
            Some(WorkloadState { kind, name, .. }) => {
                format!("; {short} pods are missing: see the events of {kind:?} {name}")
            }
            None => format!(
                "; {short} pods are missing: start pods with the label {}",
                names::selector(&facts.name)
            ),
        };
    }
    ConditionReason::new("WorkersMissing", message)
}

/// Pods that the API server does not let the workload's controller create.
fn pods_refused<V>(facts: &FleetFacts<V>) -> Option<ConditionReason> {
    let WorkloadState { kind, name, pods_refused, .. } = facts.workload.as_ref()?;
    let why = pods_refused.as_ref()?;
    let message = format!("the controller of {kind:?} {name} cannot create pods: {why}");
    Some(ConditionReason::new("PodsRefused", message))
}

/// Pods whose workers have no agent and so get no leases.
fn without_agent<V>(facts: &FleetFacts<V>) -> Option<ConditionReason> {
    let InjectionCounts { missing, missing_pods, .. } = &facts.agents;
    (*missing > 0).then(|| {
        let message = format!(
            "{missing} pods ask for an agent and have none, so their workers get no leases: {}; \
             see their events InjectionSkipped, and delete them once the webhook works",
            named(missing_pods, *missing)
        );
        ConditionReason::new("AgentMissing", message)
    })
}

/// Pods with another agent than a new pod gets.
fn outdated<V>(facts: &FleetFacts<V>) -> Option<ConditionReason> {
    let InjectionCounts { injected, outdated, outdated_pods, .. } = &facts.agents;
    let (_, has, wanted) = outdated_pods.first()?;
    let names: Vec<String> = outdated_pods.iter().map(|(name, ..)| name.clone()).collect();
    let message = format!(
        "{outdated} of {injected} pods have an outdated agent, for example {has} instead of \
         {wanted}: {}; new pods get the new one: restart the workload at a convenient time",
        named(&names, *outdated)
    );
    Some(ConditionReason::new("ImageDiffers", message))
}

/// Settings of pods that work and may surprise. The webhook's warnings are part of its answer to
/// the creator of a pod, which mostly is a controller.
fn warned<V>(facts: &FleetFacts<V>) -> Option<ConditionReason> {
    let InjectionCounts { warned, warnings, .. } = &facts.agents;
    let quoted = warnings.iter().map(|(pod, warning)| format!("{pod}: {warning}"));
    let quoted: Vec<_> = quoted.collect();
    (!quoted.is_empty()).then(|| {
        let message = format!(
            "{warned} pods were injected with a warning, for example {}; change the pod template, \
             and new pods have none",
            quoted.join("; ")
        );
        ConditionReason::new("PodSettings", message)
    })
}

/// Names for a message; `all` is their full number.
fn named(names: &[String], all: u32) -> String {
    let more = if names.len() < all as usize { ", …" } else { "" };
    names.join(", ") + more
}

fn lost(workers: &WorkerSummary, lost_effect: &str) -> Option<ConditionReason> {
    let lost = workers.counts.lost;
    (lost > 0).then(|| {
        let names = workers.list.iter().filter(|worker| worker.phase == WorkerPhase::Lost);
        let names: Vec<&str> = names.take(NAMED_MAX).map(|worker| worker.name.as_str()).collect();
        let message = format!("{lost} workers are silent, and {lost_effect}: {}", names.join(", "));
        ConditionReason::new("WorkersLost", message)
    })
}

/// The workers of a fleet.
#[derive(Debug)]
pub(super) struct WorkerSummary {
    pub(super) counts: WorkerCounts,
    /// Pods whose agent has not connected.
    pub(super) pending: u32,
    /// At most [`WORKERS_LISTED_MAX`], by phase and name.
    pub(super) list: Vec<WorkerStatus>,
    /// How many are not listed.
    pub(super) omitted: u32,
}

impl WorkerSummary {
    /// The workers of a fleet that should have `desired` of them.
    pub(super) fn of<V>(facts: &FleetFacts<V>, desired: u32) -> Self {
        let mut counts = WorkerCounts { desired, ..WorkerCounts::default() };
        let mut workers: BTreeMap<&str, WorkerStatus> = BTreeMap::new();
        for pod in facts.pods.iter().filter(|pod| !pod.over) {
            counts.total += 1;
            let phase =
                if pod.is_terminating() { WorkerPhase::Draining } else { WorkerPhase::Pending };
            let name = pod.pod.name.clone();
            let worker = WorkerStatus { name, phase, ..WorkerStatus::default() };
            workers.insert(&pod.pod.name, worker);
        }
        for view in &facts.workers {
            let name = view.key.worker.as_str();
            let leaves =
                workers.get(name).is_some_and(|worker| worker.phase == WorkerPhase::Draining);
            let worker = worker(view, leaves);
            counts.connected += u32::from(view.presence == Presence::Connected);
            workers.insert(name, worker);
        }
        let mut list: Vec<WorkerStatus> = workers.into_values().collect();
        list.sort_by(|a, b| (a.phase, &a.name).cmp(&(b.phase, &b.name)));
        let count = |phase| {
            let count = list.iter().filter(|worker| worker.phase == phase).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        counts.draining = count(WorkerPhase::Draining);
        counts.lost = count(WorkerPhase::Lost);
        counts.unreported = count(WorkerPhase::Unreported);
        let ready = facts.workers.iter().filter(|view| view.presence == Presence::Connected);
        let running: Vec<&str> = list
            .iter()
            .filter(|worker| worker.phase == WorkerPhase::Running)
            .map(|worker| worker.name.as_str())
            .collect();
        let ready = ready.filter(|view| running.binary_search(&view.key.worker.as_str()).is_ok());
        counts.ready = u32::try_from(ready.count()).unwrap_or(u32::MAX);
        let pending = count(WorkerPhase::Pending);
        let omitted = list.len().saturating_sub(WORKERS_LISTED_MAX);
        list.truncate(WORKERS_LISTED_MAX);
        Self { counts, pending, list, omitted: u32::try_from(omitted).unwrap_or(u32::MAX) }
    }
}

/// The status of a worker that the core knows; `leaves` means that its pod is terminating.
fn worker(view: &WorkerView, leaves: bool) -> WorkerStatus {
    let drains = leaves || view.drains();
    let phase = match view.presence {
        Presence::Lost => WorkerPhase::Lost,
        Presence::Unreported => WorkerPhase::Unreported,
        Presence::Connected | Presence::Silent if drains => WorkerPhase::Draining,
        Presence::Connected | Presence::Silent if view.failure.is_some() => WorkerPhase::Failing,
        Presence::Connected | Presence::Silent => WorkerPhase::Running,
    };
    WorkerStatus {
        name: view.key.worker.to_string(),
        phase,
        current: view.in_effect,
        granted: view.granted,
        running: view.running.unwrap_or(0),
        streams: u32::try_from(view.streams).unwrap_or(u32::MAX),
    }
}
