//! The plan for one fleet: a pure decision from its observed state to the actions that bring it to
//! its desired state.

use std::sync::Arc;

use leasehold_driver::order::OrderKind;
use leasehold_types::{ClusterName, Moment, WorkerKey};
use serde_json::{Value, json};

use super::action::{Action, ActionKind};
use super::drains::DrainProgress;
use super::fleet::Fleet;
use super::node_drains::NodeDrains;
use super::restart::{self, StreamOwnership};
use super::scale_in::{self, ScaleInDecision};
use super::scaling::DesiredScale;
use super::state::ReconcilerState;
use super::worker_pod::{DRAINED_POD_COST, DrainReason, WorkerPod};
use super::workload::{self, WorkloadFacts, WorkloadRole, WorkloadState, WorkloadTarget};
use super::{node_drains, template};
use crate::events::EventReason;
use crate::nodes::ClosedNodes;

/// The input of a plan.
pub(super) struct FleetInput<'a> {
    pub(super) fleet: &'a Fleet,
    /// Its name in the core.
    pub(super) name: &'a ClusterName,
    /// Its pods, all of them.
    pub(super) worker_pods: Vec<WorkerPod>,
    pub(super) workload: Option<Arc<WorkloadFacts>>,
    /// How many workers it should have.
    pub(super) scale: DesiredScale,
    /// The owners of the streams of sets with `refresh: Restart`.
    pub(super) ownership: Option<&'a StreamOwnership>,
    /// The nodes that take no new pods.
    pub(super) nodes: &'a ClosedNodes,
    pub(super) now: Moment,
}

/// The plan for a fleet.
#[derive(Debug, Default)]
pub(super) struct FleetPlan {
    /// Workers to drain, and drains to take back.
    pub(super) orders: Vec<(OrderKind, WorkerKey)>,
    /// The calls to make.
    pub(super) actions: Vec<Action>,
    /// Steps of drains to report.
    pub(super) drain_progress: Vec<(WorkerPod, DrainProgress)>,
    /// The note of a scale-in that starts.
    pub(super) scale_in_started: Option<String>,
    /// The state of the workload.
    pub(super) state: Option<WorkloadState>,
    /// The reason that blocks a rollout or a scale-in.
    pub(super) blocked: Option<String>,
    /// Why the workload cannot even be sent to the API server.
    pub(super) refused: Option<String>,
    /// When to plan again although nothing changes: the earliest deadline that lies ahead.
    pub(super) due: Option<Moment>,
}

/// Decides what to do for a fleet.
pub(super) fn plan(input: FleetInput<'_>, state: &mut ReconcilerState) -> FleetPlan {
    let FleetInput { fleet, name, mut worker_pods, workload, scale, ownership, nodes, now } = input;
    let mut plan = FleetPlan::default();
    // Its objects are deleted with it.
    let is_active = !fleet.is_deleted();
    let target = workload::target(fleet).filter(|_| is_active);
    let facts = workload.as_deref();
    let is_own = |worker_pod: &WorkerPod| facts.is_some_and(|facts| facts.owns(&worker_pod.pod));
    worker_pods.sort_by_key(|worker_pod| !is_own(worker_pod));
    for worker in &mut worker_pods {
        if let Some(progress) = state.drains.observe(worker, fleet.drain_deadline(), now) {
            plan.drain_progress.push((worker.clone(), progress));
        }
        worker.is_released =
            fleet.releases_after_deadline() && state.drains.is_overdue(&worker.pod.uid);
        plan.is_due_at(state.drains.due(&worker.pod.uid, fleet.drain_deadline()), now);
    }
    let own_pods = worker_pods.iter().take_while(|worker_pod| is_own(worker_pod)).count();
    let yields_to = match (&target, facts) {
        (Some(target), Some(facts)) if target.role != WorkloadRole::Observed => {
            let written = state.applied.replicas(&target.reference(fleet.namespace()));
            let (manager, seen) = (facts.replicas_manager.as_ref(), facts.replicas_at());
            let yields_to = state.undone.yields_to(name, manager, seen, written, now);
            plan.is_due_at(state.undone.due(name), now);
            yields_to.map(|manager| manager.name.clone())
        }
        (Some(_) | None, _) => None,
    };
    let decision = match (&target, &yields_to) {
        (None, _) => ScaleInDecision::default(),
        // The rest of a created workload is applied with the replicas that it has.
        (Some(target), Some(_)) => ScaleInDecision {
            replicas: facts
                .filter(|_| target.role == WorkloadRole::Created)
                .map(|facts| facts.replicas),
            ..ScaleInDecision::default()
        },
        (Some(target), None) => {
            scale_in(fleet, target, facts, &scale, &worker_pods[..own_pods], &mut plan)
        }
    };
    let on_cordon = fleet.on_cordon();
    let node_drains = node_drains::decide(&worker_pods, own_pods, facts, on_cordon, nodes);
    for (index, worker) in worker_pods.iter().enumerate() {
        if let Some(busy) = state.idle.label_change(worker, now) {
            plan.actions.push(Action::on_pod(
                &worker.pod,
                ActionKind::SetBusyLabel(worker.pod.clone(), busy),
            ));
        }
        plan.is_due_at(state.idle.due(&worker.pod.uid), now);
        let order = if node_drains.take_back.contains(&index) {
            worker.needs_undrain_order(state.taken_back.contains(&worker.pod.uid)).then(|| {
                state.taken_back.insert(worker.pod.uid.clone());
                OrderKind::Undrain
            })
        } else {
            worker.needs_drain_order().then_some(OrderKind::Drain)
        };
        let order = order.zip(worker.view.as_ref().map(|view| view.key.clone()));
        plan.orders.extend(order);
    }
    for (index, worker) in worker_pods.iter().enumerate().filter(|_| is_active) {
        if let Some(action) = action_for_pod(index, worker, &decision, &node_drains) {
            plan.actions.push(Action::on_pod(&worker.pod, action));
        }
    }
    if let (Some(ownership), Some(facts)) = (ownership, facts) {
        plan_restarts(name, ownership, facts, &worker_pods[..own_pods], &mut plan, state);
    }
    if let Some(target) = &target {
        let replicas = decision.replicas;
        match apply(fleet, target, facts, replicas, state, now) {
            Ok(action) => {
                plan.actions.extend(action.map(|action| with_scale_reason(action, &scale)))
            }
            Err(why) => plan.refused = Some(why),
        }
        let reference = target.reference(fleet.namespace());
        let generation = facts.map(|facts| facts.generation);
        plan.is_due_at(state.applied.due(&reference, generation), now);
        plan.is_due_at(scale.due, now);
        let refused = plan.refused.as_deref().or(state.refusal(name));
        plan.scale_in_started = scale_in_note(&decision, &worker_pods, target, facts, &scale);
        let kept = decision.kept;
        let seen = workload::state(fleet, target, facts, refused, &scale, kept);
        plan.state = Some(WorkloadState { replicas_manager: yields_to, ..seen });
    }
    plan
}

impl FleetPlan {
    /// The fleet is to be planned again at `at`, if that lies ahead.
    pub(super) fn is_due_at(&mut self, at: Option<Moment>, now: Moment) {
        let at = at.filter(|at| *at > now);
        self.due = self.due.into_iter().chain(at).min();
    }
}

/// The scale-in of a workload that the coordinator may scale.
fn scale_in(
    fleet: &Fleet,
    target: &WorkloadTarget,
    facts: Option<&WorkloadFacts>,
    scale: &DesiredScale,
    own_pods: &[WorkerPod],
    plan: &mut FleetPlan,
) -> ScaleInDecision {
    let desired = scale.replicas;
    let is_ours = workload::problem(fleet, target, facts).is_none();
    if target.role == WorkloadRole::Observed || !is_ours {
        return ScaleInDecision::default();
    }
    let Some(facts) = facts.filter(|facts| !facts.is_deleted) else {
        return ScaleInDecision { replicas: Some(desired), ..ScaleInDecision::default() };
    };
    let decision = scale_in::decide(facts, scale, own_pods);
    let WorkloadFacts { kind, name, replicas, stuck, .. } = facts;
    let holds = |_: &&String| *replicas > desired && (stuck.is_some() || !facts.is_rolling_out());
    plan.blocked = match (decision.waits.as_ref().filter(holds), stuck) {
        (None, stuck) => stuck.as_ref().map(|why| format!("{kind:?} {name}: {why}")),
        (Some(waits), stuck) => {
            let why = stuck.as_ref().map_or_else(String::new, |why| format!("; {why}"));
            Some(format!(
                "{kind:?} {name} should have {desired} replicas and has {replicas}: {waits}{why}"
            ))
        }
    };
    decision
}

/// The decision for workers that cannot reload.
fn plan_restarts(
    name: &ClusterName,
    ownership: &StreamOwnership,
    facts: &WorkloadFacts,
    own_pods: &[WorkerPod],
    plan: &mut FleetPlan,
    state: &mut ReconcilerState,
) {
    if facts.is_rolling_out() {
        return;
    }
    let round = state.restarts.entry(name.clone()).or_default();
    let decided = restart::decide(ownership, facts.replicas, own_pods, round);
    for (index, streams) in decided.record {
        let pod = &own_pods[index].pod;
        plan.actions.push(Action::on_pod(pod, ActionKind::RecordStreams(pod.clone(), streams)));
    }
    if let Some(index) = decided.restart {
        let pod = &own_pods[index].pod;
        plan.actions
            .push(Action::on_pod(pod, ActionKind::MarkForDrain(pod.clone(), DrainReason::Restart)));
    }
    plan.blocked = plan.blocked.take().or(decided.waits);
}

/// The note of the event when the first pods are marked for a scale-in.
fn scale_in_note(
    decision: &ScaleInDecision,
    worker_pods: &[WorkerPod],
    target: &WorkloadTarget,
    facts: Option<&WorkloadFacts>,
    scale: &DesiredScale,
) -> Option<String> {
    let is_first = worker_pods.iter().all(|worker_pod| {
        worker_pod.drain_reason != Some(DrainReason::ScaleIn) || !worker_pod.pod.is_active()
    });
    let replicas = facts?.replicas;
    let count = decision.mark.len();
    (is_first && count > 0).then(|| {
        let (kind, name) = (target.kind, &target.name);
        let why = scale_reason(scale);
        format!(
            "{kind:?} {name} has {replicas} replicas, {count} too many: those workers drain \
             first{why}"
        )
    })
}

/// The action for a pod, if any.
fn action_for_pod(
    index: usize,
    worker: &WorkerPod,
    decision: &ScaleInDecision,
    node_drains: &NodeDrains,
) -> Option<ActionKind> {
    let pod = || worker.pod.clone();
    if decision.mark.contains(&index) {
        return Some(ActionKind::MarkForDrain(pod(), DrainReason::ScaleIn));
    }
    if decision.cost.contains(&index) {
        return Some(ActionKind::SetDeletionCost(pod(), DRAINED_POD_COST));
    }
    if decision.victims.contains(&index) {
        return None;
    }
    if node_drains.take_back.contains(&index) {
        // The mark keeps what has to be done until the worker works.
        return (!worker.is_draining()).then(|| ActionKind::Unmark(pod()));
    }
    if node_drains.mark.contains(&index) {
        return Some(ActionKind::MarkForDrain(pod(), DrainReason::Node));
    }
    if restart::is_restart_requested(worker) {
        return Some(ActionKind::MarkForDrain(pod(), DrainReason::Restart));
    }
    if !(worker.is_drained() && worker.pod.is_active() && worker.has_controller()) {
        return None;
    }
    match worker.drain_reason {
        // The user's budgets hold for every client that empties a node. The label is removed first.
        Some(DrainReason::Node | DrainReason::Eviction) => {
            (!worker.pod.busy).then(|| ActionKind::EvictPod(pod()))
        }
        Some(DrainReason::ScaleIn | DrainReason::Restart) | None => {
            Some(ActionKind::DeletePod(pod()))
        }
    }
}

/// The server-side apply of the workload, if one is due.
fn apply(
    fleet: &Fleet,
    target: &WorkloadTarget,
    facts: Option<&WorkloadFacts>,
    replicas: Option<u32>,
    state: &mut ReconcilerState,
    now: Moment,
) -> Result<Option<Action>, String> {
    let Some(mut replicas) = replicas else { return Ok(None) };
    if facts.is_some_and(|facts| facts.is_deleted) {
        return Ok(None);
    }
    let current = facts.map_or(0, |facts| facts.replicas);
    let mut body = match target.role {
        WorkloadRole::Observed => return Ok(None),
        WorkloadRole::Scaled if facts.is_none() || replicas == current => return Ok(None),
        WorkloadRole::Scaled => scaled(fleet, target, replicas),
        WorkloadRole::Created => {
            let body = template::body(fleet, facts, replicas)?;
            // With a new template and fewer replicas at once, it is unknown which pods would be
            // removed.
            match facts {
                Some(present) if replicas < current && is_new_template(&body, present) => {
                    replicas = current;
                    template::body(fleet, facts, replicas)?
                }
                Some(_) | None => body,
            }
        }
    };
    let generation = facts.map(|facts| facts.generation);
    let action = Action::apply(body.clone());
    if !state.applied.is_due(&action.target, &body, generation, now) {
        return Ok(None);
    }
    if let Some(facts) = facts {
        // Bound to the version that was read: an old number of replicas could remove pods.
        body["metadata"]["resourceVersion"] = facts.resource_version.as_str().into();
    }
    let action = Action::apply(body);
    Ok(Some(if replicas == current {
        action
    } else {
        action.with_event(resize_event(target, current, replicas))
    }))
}

/// The event of a changed number of replicas.
fn resize_event(target: &WorkloadTarget, before: u32, after: u32) -> (EventReason, String) {
    let reason =
        if after < before { EventReason::ScaleInCompleted } else { EventReason::ScaledOut };
    let (kind, name) = (target.kind, &target.name);
    (reason, format!("{kind:?} {name} had {before} replicas and has {after} now"))
}

/// Adds to the event how the number of workers was computed.
fn with_scale_reason(action: Action, scale: &DesiredScale) -> Action {
    match action.event.clone() {
        Some((reason, note)) => action.with_event((reason, note + &scale_reason(scale))),
        None => action,
    }
}

/// How the number of workers was computed, as the end of a sentence.
fn scale_reason(scale: &DesiredScale) -> String {
    scale.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
}

fn is_new_template(body: &Value, facts: &WorkloadFacts) -> bool {
    let digest = &body["metadata"]["annotations"][leasehold_kube_api::names::TEMPLATE_DIGEST];
    digest.as_str() != facts.digest.as_deref()
}

/// Only the replicas of an adopted workload.
fn scaled(fleet: &Fleet, target: &WorkloadTarget, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": format!("{:?}", target.kind),
        "metadata": { "name": target.name, "namespace": fleet.namespace() },
        "spec": { "replicas": replicas },
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "plan_due_tests.rs"]
mod due_tests;
