//! Events of fleets: about workers and leadership, from the core's notices ([`run`]), and about the
//! reconciler's own actions ([`FleetEvents`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource};
use leasehold_coordinator_core::effect::Notice;
use leasehold_driver::access::Caller;
use leasehold_driver::clock;
use leasehold_driver::history::FleetChange;
use leasehold_driver::order::{OrderKind, WorkerOrder};
use leasehold_driver::port::Stopped;
use leasehold_kube_api::names::LEASE;
use leasehold_platform_kube::api_call::{CALL_TIMEOUT, call};
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::{PodFacts, PodName, Pods};
use leasehold_types::{ClusterName, Epoch, Moment, WorkerKey, duration};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::interval;

use super::Context;
use super::action::{Action, ActionKind};
use super::drains::DrainProgress;
use super::fleet::Fleet;
use super::state::ReconcilerState;
use super::worker_pod::DrainReason;
use crate::events::{EventReason, EventRecorder, NewEvent};

/// How often to check for drains that take too long.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The most lost and the most draining workers that are tracked.
const TRACKED_MAX: usize = 10_000;

/// Records events of the core's notices until the driver ends.
pub(super) async fn run(context: Context) -> Result<(), Stopped> {
    let mut changes = context.handle.watch()?;
    let mut worker_events = WorkerEvents::default();
    let mut checks = interval(CHECK_INTERVAL);
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            _ = checks.tick() => {
                let lookup = ObjectLookup::of(&context);
                let overdue = worker_events.overdue(&lookup, clock::now());
                overdue.into_iter().for_each(|event| context.events.record(event));
                continue;
            }
        };
        let change = match change {
            Ok(change) => change,
            // The statuses show missed changes.
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return Err(Stopped),
        };
        match &change.change {
            FleetChange::Notice(Notice::Elected(epoch)) => {
                worker_events = WorkerEvents::default();
                context.events.record(leader_changed(&context, *epoch).await);
            }
            FleetChange::Notice(notice) => {
                let lookup = ObjectLookup::of(&context);
                let events = worker_events.events_for(notice, &lookup, clock::now());
                events.into_iter().for_each(|event| context.events.record(event));
            }
            FleetChange::Ordered(order) => {
                let events = events_for_order(order, &ObjectLookup::of(&context));
                events.into_iter().for_each(|event| context.events.record(event));
            }
            FleetChange::Manifests { .. } => {}
        }
    }
}

/// The event of the election's Lease that this replica leads.
async fn leader_changed(context: &Context, epoch: Epoch) -> NewEvent {
    let settings = &context.settings;
    let leases: Api<Lease> = Api::namespaced(context.client.clone(), &settings.namespace);
    // The event is also written without the UID.
    let lease = call(CALL_TIMEOUT, leases.get(LEASE)).await.ok();
    let regarding = ObjectReference {
        api_version: Some(Lease::api_version(&()).into()),
        kind: Some(Lease::kind(&()).into()),
        namespace: Some(settings.namespace.clone()),
        name: Some(LEASE.into()),
        uid: lease.and_then(|lease| lease.metadata.uid),
        ..ObjectReference::default()
    };
    let note =
        format!("{} at {} became the leader, epoch {epoch}", settings.identity, settings.address);
    NewEvent { regarding, related: None, reason: EventReason::LeaderChanged, note }
}

/// The objects that events are about.
struct ObjectLookup {
    objects: Arc<Objects>,
    pods: Pods,
}

impl ObjectLookup {
    fn of(context: &Context) -> Self {
        Self { objects: Arc::clone(&context.objects.borrow()), pods: context.pods.clone() }
    }
}

/// Looks objects up.
trait Lookup {
    /// The worker's pod, and whether the operator drains it.
    fn pod(&self, key: &WorkerKey) -> Option<(ObjectReference, bool)>;
    /// The worker's fleet, and its `drain.deadline`.
    fn fleet(&self, key: &WorkerKey) -> Option<(ObjectReference, Duration)>;
}

impl Lookup for ObjectLookup {
    fn pod(&self, key: &WorkerKey) -> Option<(ObjectReference, bool)> {
        let name = PodName::of(key)?;
        let pod = self.pods.find(&name.namespace, &name.name)?;
        Some((pod_reference(&pod), pod.drain.is_some()))
    }

    fn fleet(&self, key: &WorkerKey) -> Option<(ObjectReference, Duration)> {
        let fleet = Fleet::find(&self.objects, &key.cluster)?;
        Some((fleet.reference(), fleet.drain_deadline()))
    }
}

/// The events of an order. The operator's own have events of their own.
fn events_for_order(order: &WorkerOrder, lookup: &impl Lookup) -> Vec<NewEvent> {
    let WorkerOrder { kind, worker: key, by } = order;
    let (reason, what) = match (kind, by) {
        (_, Caller::Operator) => return Vec::new(),
        (OrderKind::Drain, _) => (EventReason::DrainOrdered, "to drain"),
        (OrderKind::Undrain, _) => (EventReason::DrainTakenBack, "to drain no longer"),
        (OrderKind::DeclareGone, _) => {
            (EventReason::WorkerDeclaredGone, "to count as gone, and freed what it held")
        }
    };
    let note = format!("{by} ordered worker {} {what}", key.worker);
    pod_and_fleet_events(key, lookup, reason, &note)
}

/// Lost workers and drains that are in progress.
#[derive(Debug, Default)]
struct WorkerEvents {
    lost: BTreeSet<WorkerKey>,
    drains: BTreeMap<WorkerKey, Drain>,
}

/// A drain that the operator did not order.
#[derive(Debug)]
struct Drain {
    pod: Option<ObjectReference>,
    since: Moment,
    is_overdue: bool,
}

impl WorkerEvents {
    /// The events of a notice.
    fn events_for(&mut self, notice: &Notice, lookup: &impl Lookup, now: Moment) -> Vec<NewEvent> {
        match notice {
            Notice::Lost(key) => {
                if self.lost.len() < TRACKED_MAX {
                    self.lost.insert(key.clone());
                }
                let note = format!(
                    "worker {} has been silent for longer than its leases: its slots and pinned \
                     streams stay reserved until it reports again or its pod is gone; check its \
                     agent's logs and its network, or delete the pod",
                    key.worker
                );
                pod_and_fleet_events(key, lookup, EventReason::WorkerLost, &note)
            }
            Notice::GivenUp { worker: key, after } => {
                let note = format!(
                    "worker {} has been lost for {}, the limit of spec.lost.after: its slots and \
                     streams go to other workers, although its jobs may still run; check its node, \
                     and delete the pod if the node is lost",
                    key.worker,
                    duration::format(*after)
                );
                pod_and_fleet_events(key, lookup, EventReason::WorkerGivenUp, &note)
            }
            Notice::Joined(key) if self.lost.remove(key) => {
                let note = format!("worker {} reports again", key.worker);
                pod_and_fleet_events(key, lookup, EventReason::WorkerFound, &note)
            }
            Notice::DrainStarted(key) => self.drain_started(key, lookup, now),
            Notice::Failing { worker: key, failure } => {
                let note = format!(
                    "worker {} fails, so it gets no job, and its streams go to other \
                     workers: {failure}",
                    key.worker
                );
                pod_and_fleet_events(key, lookup, EventReason::WorkerFailing, &note)
            }
            Notice::Recovered(key) => {
                let note = format!("worker {} works again", key.worker);
                pod_and_fleet_events(key, lookup, EventReason::WorkerRecovered, &note)
            }
            Notice::Gone(key) => {
                self.lost.remove(key);
                let Some(drain) = self.drains.remove(key) else { return Vec::new() };
                let note = format!("worker {} has drained and no longer holds leases", key.worker);
                pair_of_events(key, drain.pod, lookup, EventReason::DrainCompleted, &note)
            }
            Notice::EpochAhead { worker, seen } => {
                let note = format!(
                    "the agent of worker {} has seen epoch {seen}, which is above the leader's: it \
                     accepts no lower epoch, so no leader with one can serve it",
                    worker.worker
                );
                pod_and_fleet_events(worker, lookup, EventReason::EpochAhead, &note)
            }
            Notice::EpochRepeated { worker, epoch } => {
                let note = format!(
                    "the agent of worker {} has obeyed another leader of epoch {epoch}: the store \
                     of leadership was put back from a copy, and a later term follows",
                    worker.worker
                );
                pod_and_fleet_events(worker, lookup, EventReason::EpochAhead, &note)
            }
            Notice::ProtocolViolation { worker, rule } => {
                let note = format!(
                    "the agent of worker {} broke a rule of the protocol and was disconnected: \
                     {rule}; report this with the logs of the agent and the leader",
                    worker.worker
                );
                pod_and_fleet_events(worker, lookup, EventReason::AgentMisbehaved, &note)
            }
            Notice::Deposed(_) => {
                *self = Self::default();
                Vec::new()
            }
            // The platform says who has a pod's name, so none is refused for it.
            Notice::NameRefused { .. } => Vec::new(),
            Notice::Elected(_)
            | Notice::HoldEnded(_)
            | Notice::Joined(_)
            | Notice::Disconnected(_)
            | Notice::PoolGranted { .. }
            | Notice::StreamGranted { .. }
            | Notice::StreamRevoked { .. }
            | Notice::StreamFreed { .. }
            | Notice::Pipeline { .. }
            | Notice::Binding { .. }
            | Notice::Endpoints { .. } => Vec::new(),
        }
    }

    fn drain_started(
        &mut self,
        key: &WorkerKey,
        lookup: &impl Lookup,
        now: Moment,
    ) -> Vec<NewEvent> {
        let pod = lookup.pod(key);
        let is_ordered = pod.as_ref().is_some_and(|(_, is_ordered)| *is_ordered);
        if is_ordered || self.drains.contains_key(key) || self.drains.len() >= TRACKED_MAX {
            return Vec::new();
        }
        let pod = pod.map(|(pod, _)| pod);
        let drain = Drain { pod: pod.clone(), since: now, is_overdue: false };
        self.drains.insert(key.clone(), drain);
        let note = format!(
            "worker {} is draining: its pod is terminating, or a drain was requested",
            key.worker
        );
        pair_of_events(key, pod, lookup, EventReason::DrainStarted, &note)
    }

    /// The events of drains that have just passed their deadline.
    fn overdue(&mut self, lookup: &impl Lookup, now: Moment) -> Vec<NewEvent> {
        let mut events = Vec::new();
        for (key, drain) in &mut self.drains {
            let Some((_, deadline)) = lookup.fleet(key) else { continue };
            if drain.is_overdue || now.since(drain.since) < deadline {
                continue;
            }
            drain.is_overdue = true;
            let (worker, seconds) = (&key.worker, deadline.as_secs());
            let note = format!(
                "worker {worker} has been draining for longer than {seconds} s (drain.deadline): \
                 it still runs jobs or holds streams; end them, or raise the \
                 deadline"
            );
            let pod = drain.pod.clone();
            events.extend(pair_of_events(
                key,
                pod,
                lookup,
                EventReason::DrainDeadlineExceeded,
                &note,
            ));
        }
        events
    }
}

fn pod_and_fleet_events(
    key: &WorkerKey,
    lookup: &impl Lookup,
    reason: EventReason,
    note: &str,
) -> Vec<NewEvent> {
    let pod = lookup.pod(key).map(|(pod, _)| pod);
    pair_of_events(key, pod, lookup, reason, note)
}

/// One event of the pod and one of the fleet, each naming the other.
fn pair_of_events(
    key: &WorkerKey,
    pod: Option<ObjectReference>,
    lookup: &impl Lookup,
    reason: EventReason,
    note: &str,
) -> Vec<NewEvent> {
    let fleet = lookup.fleet(key).map(|(fleet, _)| fleet);
    let event = |regarding: Option<ObjectReference>, related: Option<ObjectReference>| {
        let note = note.to_owned();
        regarding.map(|regarding| NewEvent { regarding, related, reason, note })
    };
    let events = [event(pod.clone(), fleet.clone()), event(fleet, pod)];
    events.into_iter().flatten().collect()
}

/// Records the events of fleets.
#[derive(Debug)]
pub(super) struct FleetEvents {
    events: EventRecorder,
}

impl FleetEvents {
    pub(super) fn new(events: EventRecorder) -> Self {
        Self { events }
    }

    /// Records a step of a drain.
    pub(super) fn drain_progress(&self, fleet: &Fleet, pod: &PodFacts, progress: DrainProgress) {
        let name = &pod.pod.name;
        match progress {
            DrainProgress::StartedByEviction => {
                let note = format!("worker {name} is draining: {}", DrainReason::Eviction.why());
                self.record_for_pod_and_fleet(fleet, pod, EventReason::DrainStarted, &note);
            }
            DrainProgress::Completed => {
                let note = format!("worker {name} has drained and holds no leases");
                self.record_for_pod_and_fleet(fleet, pod, EventReason::DrainCompleted, &note);
            }
            DrainProgress::Overdue => {
                let deadline = fleet.drain_deadline().as_secs();
                let what = if fleet.releases_after_deadline() {
                    "its pod may end although jobs run (drain.afterDeadline: Release)"
                } else {
                    "its pod stays while it runs jobs or holds streams; end them, or raise the \
                     deadline"
                };
                let note = format!(
                    "worker {name} has been draining for longer than {deadline} s \
                     (drain.deadline): {what}"
                );
                self.record_for_pod_and_fleet(
                    fleet,
                    pod,
                    EventReason::DrainDeadlineExceeded,
                    &note,
                );
            }
        }
    }

    /// Records once what blocks a fleet's rollout or scale-in.
    pub(super) fn rollout_blocked(
        &self,
        state: &mut ReconcilerState,
        name: &ClusterName,
        fleet: &Fleet,
        blocked: Option<String>,
    ) {
        let Some(why) = blocked else {
            state.blocked.remove(name);
            return;
        };
        if state.blocked.get(name) != Some(&why) {
            self.record_for_fleet(fleet, None, EventReason::RolloutBlocked, &why);
            state.blocked.insert(name.clone(), why);
        }
    }

    /// Records why a fleet's workload is rejected.
    pub(super) fn workload_rejected(&self, fleet: &Fleet, why: &str) {
        self.record_for_fleet(fleet, None, EventReason::WorkloadRejected, why);
    }

    /// Records why the pod of a drained worker cannot be evicted.
    pub(super) fn eviction_refused(&self, fleet: &Fleet, pod: &PodFacts, why: &str) {
        let note = format!(
            "worker {} has drained, and its pod cannot be evicted: {why}; it is tried again",
            pod.pod.name
        );
        self.record_for_pod_and_fleet(fleet, pod, EventReason::EvictionRefused, &note);
    }

    /// Records an action that succeeded.
    pub(super) fn action_done(&self, fleet: &Fleet, action: &Action) {
        if let Some((reason, note)) = &action.event {
            self.record_for_fleet(fleet, None, *reason, note);
        }
        match &action.kind {
            ActionKind::MarkForDrain(pod, mark) => {
                let note = format!("worker {} is draining: {}", pod.pod.name, mark.why());
                self.record_for_pod_and_fleet(fleet, pod, EventReason::DrainStarted, &note);
            }
            ActionKind::Unmark(pod) => {
                let note = format!(
                    "worker {} works on: its node takes pods again, so its drain was taken back",
                    pod.pod.name
                );
                self.record_for_pod_and_fleet(fleet, pod, EventReason::DrainTakenBack, &note);
            }
            ActionKind::DeletePod(pod) | ActionKind::EvictPod(pod) => {
                let note = format!("pod {} is replaced after its drain", pod.pod.name);
                self.record_for_pod_and_fleet(fleet, pod, EventReason::PodReplaced, &note);
            }
            ActionKind::Apply(_) if action.is_workload() => {
                tracing::info!(workload = %action.target, "workload applied");
            }
            ActionKind::DeleteBudget(_) => {
                tracing::info!(budget = %action.target, "budget of an earlier version deleted");
            }
            ActionKind::Apply(_)
            | ActionKind::RemoveMarks(_)
            | ActionKind::RecordStreams(..)
            | ActionKind::SetDeletionCost(..)
            | ActionKind::SetBusyLabel(..) => {}
        }
    }

    /// Records that a scale-in starts.
    pub(super) fn scale_in_started(&self, fleet: &Fleet, note: &str) {
        self.record_for_fleet(fleet, None, EventReason::ScaleInStarted, note);
    }

    fn record_for_pod_and_fleet(
        &self,
        fleet: &Fleet,
        pod: &PodFacts,
        reason: EventReason,
        note: &str,
    ) {
        let regarding = pod_reference(pod);
        let related = Some(fleet.reference());
        let note_owned = note.to_owned();
        self.events.record(NewEvent { regarding, related, reason, note: note_owned });
        self.record_for_fleet(fleet, Some(pod_reference(pod)), reason, note);
    }

    fn record_for_fleet(
        &self,
        fleet: &Fleet,
        related: Option<ObjectReference>,
        reason: EventReason,
        note: &str,
    ) {
        let regarding = fleet.reference();
        self.events.record(NewEvent { regarding, related, reason, note: note.to_owned() });
    }
}

/// A pod, as events name it.
pub(super) fn pod_reference(pod: &PodFacts) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.pod.namespace.clone()),
        name: Some(pod.pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
