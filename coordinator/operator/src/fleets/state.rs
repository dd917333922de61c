//! The state of the fleet reconciler between two reconciliations. It may be lost: the reconciler
//! reads it again from the objects, at the cost of writes that change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_types::{ClusterName, Moment};
use serde_json::Value;

use super::action::ObjectRef;
use super::drains::DrainTracker;
use super::evictions::IdleTracker;
use super::replicas::{ReplicasAt, UndoneWrites};
use super::restart::RestartRound;
use super::scaling::StabilizationWindow;
use super::worker_pod::{DrainReason, WorkerPod};
use crate::digest::digest;
use crate::workqueue::{Delays, Failures};

/// An unchanged object is written again after this time: not every change by others is visible in
/// its generation.
const REPAIR_EVERY: Duration = Duration::from_secs(600);
/// How long an object waits after a failure.
const RETRY_DELAYS: Delays =
    Delays { first: Duration::from_millis(500), longest: Duration::from_secs(30) };
/// A written object that the watch does not show is written again after this time.
const UNSEEN_AFTER: Duration = Duration::from_millis(500);

/// The state.
#[derive(Debug)]
pub(super) struct ReconcilerState {
    pub(super) idle: IdleTracker,
    pub(super) drains: DrainTracker,
    pub(super) applied: AppliedBodies,
    /// The objects whose last call failed, and why.
    pub(super) failures: Failures<ObjectRef, String>,
    /// Drain marks that were written or removed, by UID, until the watch shows it.
    pub(super) drain_marks: BTreeMap<String, Option<DrainReason>>,
    /// Marked pods whose drain was taken back, by UID, until the mark is removed.
    pub(super) taken_back: BTreeSet<String>,
    /// Why the API server refuses a fleet's workload.
    pub(super) refusals: BTreeMap<ClusterName, String>,
    /// Restarts of pods that cannot reload.
    pub(super) restarts: BTreeMap<ClusterName, RestartRound>,
    /// Writes of replicas that others have undone.
    pub(super) undone: UndoneWrites,
    /// The recent recommendations for each class.
    pub(super) windows: BTreeMap<ClusterName, StabilizationWindow>,
    /// The reason that blocks each fleet, as last recorded in an event.
    pub(super) blocked: BTreeMap<ClusterName, String>,
}

/// The bodies that were applied, by object.
#[derive(Debug, Default)]
pub(super) struct AppliedBodies(BTreeMap<ObjectRef, AppliedBody>);

#[derive(Debug)]
struct AppliedBody {
    digest: String,
    /// `spec.replicas`.
    replicas: Option<u64>,
    generation: Option<i64>,
    at: Moment,
}

impl Default for ReconcilerState {
    fn default() -> Self {
        Self {
            idle: IdleTracker::default(),
            drains: DrainTracker::default(),
            applied: AppliedBodies::default(),
            failures: Failures::new(RETRY_DELAYS),
            drain_marks: BTreeMap::new(),
            taken_back: BTreeSet::new(),
            refusals: BTreeMap::new(),
            restarts: BTreeMap::new(),
            undone: UndoneWrites::default(),
            windows: BTreeMap::new(),
            blocked: BTreeMap::new(),
        }
    }
}

impl ReconcilerState {
    /// Why the API server refuses a fleet's workload, if it does.
    pub(super) fn refusal(&self, fleet: &ClusterName) -> Option<&str> {
        self.refusals.get(fleet).map(String::as_str)
    }

    /// Forgets marks that the watch shows, pods that no longer exist, and old entries.
    pub(super) fn forget_old(&mut self, seen: &BTreeMap<String, Option<DrainReason>>, now: Moment) {
        self.applied.forget_old(now);
        self.failures.retain(|_, retry_at| now.since(retry_at) < 2 * RETRY_DELAYS.longest);
        self.drain_marks.retain(|uid, mark| seen.get(uid).is_some_and(|shown| shown != mark));
        self.taken_back.retain(|uid| seen.get(uid).is_some_and(Option::is_some));
        self.idle.retain(|uid| seen.contains_key(uid));
        self.drains.retain(|uid| seen.contains_key(uid));
    }

    /// The mark on a pod, by its UID.
    pub(super) fn seen(it: &WorkerPod) -> (String, Option<DrainReason>) {
        (it.pod.uid.clone(), it.pod.drain.as_deref().map(DrainReason::parse))
    }
}

impl AppliedBodies {
    /// Whether to apply a body to an object that the watch shows in this generation; `None` if the
    /// watch does not show it.
    pub(super) fn is_due(
        &self,
        target: &ObjectRef,
        body: &Value,
        generation: Option<i64>,
        now: Moment,
    ) -> bool {
        let Some(applied) = self.0.get(target) else { return true };
        let is_old = now.since(applied.at) >= REPAIR_EVERY;
        let is_changed = match (generation, applied.generation) {
            (Some(seen), Some(applied)) => seen > applied,
            // The watch does not show it yet, or it was deleted: it is applied again after a while.
            (None, _) => now.since(applied.at) >= UNSEEN_AFTER,
            (Some(_), None) => false,
        };
        is_old || is_changed || applied.digest != digest(body)
    }

    /// When a body that was applied to an object in this generation is due again without a change;
    /// `None` if the object was never applied.
    pub(super) fn due(&self, target: &ObjectRef, generation: Option<i64>) -> Option<Moment> {
        let applied = self.0.get(target)?;
        let after = if generation.is_some() { REPAIR_EVERY } else { UNSEEN_AFTER };
        Some(applied.at + after)
    }

    /// The replicas that were applied last.
    pub(super) fn replicas(&self, target: &ObjectRef) -> Option<ReplicasAt> {
        let AppliedBody { replicas, generation, .. } = self.0.get(target)?;
        Some(ReplicasAt { replicas: (*replicas)?, generation: (*generation)? })
    }

    /// Stores the outcome of an apply.
    pub(super) fn note(
        &mut self,
        target: ObjectRef,
        mut body: Value,
        generation: Option<i64>,
        now: Moment,
    ) {
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let replicas = body["spec"]["replicas"].as_u64();
        let digest = digest(&body);
        self.0.insert(target, AppliedBody { digest, replicas, generation, at: now });
    }

    /// Forgets objects of deleted fleets; those of others are written more often than this.
    fn forget_old(&mut self, now: Moment) {
        self.0.retain(|_, applied| now.since(applied.at) < 2 * REPAIR_EVERY);
    }
}
