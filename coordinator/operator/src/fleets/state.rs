//! The state of the fleet reconciler between two reconciliations. It may be lost: the reconciler
//! reads it again from the objects, at the cost of writes that change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::{ClusterName, Moment};
use serde_json::Value;

use super::action::ObjectRef;
use super::drains::DrainTracker;
use super::evictions::IdleTracker;
use super::replicas::{ReplicasAt, UndoneWrites};
use super::restart::RestartRound;
use super::scaling::StabilizationWindow;
use super::worker_pod::DrainReason;
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

/// After a call an object is left alone until the watch shows a change of it, and at most for this
/// time: before, a plan does not see what the call has done.
const SHOWN_WITHIN: Duration = Duration::from_millis(250);

/// The state.
#[derive(Debug)]
pub(super) struct ReconcilerState {
    pub(super) idle: IdleTracker,
    pub(super) drains: DrainTracker,
    pub(super) applied: AppliedBodies,
    /// The objects whose last call failed, and why.
    pub(super) failures: Failures<ObjectRef, String>,
    /// The objects whose last call the watch does not show yet.
    pub(super) recent: RecentCalls,
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

/// The objects of calls that were answered a moment ago, and when.
#[derive(Debug, Default)]
pub(super) struct RecentCalls(BTreeMap<ObjectRef, Moment>);

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
            recent: RecentCalls::default(),
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

    /// Compares what is stored of a pod with what the watch shows of it.
    pub(super) fn observe(&mut self, pod: &PodFacts) {
        let shown = pod.drain.as_deref().map(DrainReason::parse);
        if self.drain_marks.get(&pod.uid) == Some(&shown) {
            self.drain_marks.remove(&pod.uid);
        }
        if shown.is_none() {
            self.taken_back.remove(&pod.uid);
        }
    }

    /// Forgets a pod that no longer exists.
    pub(super) fn forget_pod(&mut self, uid: &str) {
        self.drain_marks.remove(uid);
        self.taken_back.remove(uid);
        self.idle.forget(uid);
        self.drains.forget(uid);
    }

    /// Forgets a fleet that no longer exists.
    pub(super) fn forget_fleet(&mut self, name: &ClusterName) {
        self.refusals.remove(name);
        self.restarts.remove(name);
        self.undone.forget(name);
        self.windows.remove(name);
        self.blocked.remove(name);
    }

    /// Forgets old entries.
    pub(super) fn forget_old(&mut self, now: Moment) {
        self.applied.forget_old(now);
        self.failures.retain(|_, retry_at| now.since(retry_at) < 2 * RETRY_DELAYS.longest);
        self.recent.forget_old(now);
    }

    /// From when on an object may be written: its last call has failed, or was a moment ago.
    pub(super) fn writable_from(&self, target: &ObjectRef) -> Option<Moment> {
        self.failures.retry_at(target).max(self.recent.until(target))
    }
}

impl RecentCalls {
    /// Stores a call that was answered.
    pub(super) fn note(&mut self, target: ObjectRef, now: Moment) {
        self.0.insert(target, now);
    }

    /// The watch shows a change of this object.
    pub(super) fn seen(&mut self, target: &ObjectRef) {
        self.0.remove(target);
    }

    /// Until when the watch may take to show what the last call has done.
    fn until(&self, target: &ObjectRef) -> Option<Moment> {
        self.0.get(target).map(|at| *at + SHOWN_WITHIN)
    }

    fn forget_old(&mut self, now: Moment) {
        self.0.retain(|_, at| now.since(*at) < SHOWN_WITHIN);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleets::fixtures::pod;

    const START: Moment = Moment(1_000_000_000_000);

    #[test]
    fn an_object_is_left_alone_until_its_last_call_is_shown_or_may_be_repeated() {
        let mut state = ReconcilerState::default();
        let target = ObjectRef::Pod(pod("a").pod.pod.clone());
        assert_eq!(state.writable_from(&target), None);
        state.recent.note(target.clone(), START);
        assert_eq!(state.writable_from(&target), Some(START + SHOWN_WITHIN));
        state.recent.seen(&target);
        assert_eq!(state.writable_from(&target), None, "the watch shows it");
        state.recent.note(target.clone(), START);
        state.failures.failed(target.clone(), "away".into(), START);
        assert_eq!(state.writable_from(&target), Some(START + RETRY_DELAYS.first));
        state.failures.succeeded(&target);
        state.forget_old(START + SHOWN_WITHIN);
        assert_eq!(state.writable_from(&target), None);
    }

    #[test]
    fn a_written_mark_counts_until_the_watch_shows_it() {
        let mut state = ReconcilerState::default();
        let mut facts = PodFacts::clone(&pod("a").pod);
        state.drain_marks.insert(facts.uid.clone(), Some(DrainReason::Node));
        state.observe(&facts);
        assert!(state.drain_marks.contains_key(&facts.uid), "the watch does not show it yet");
        facts.drain = Some(DrainReason::Node.text().into());
        state.observe(&facts);
        assert!(state.drain_marks.is_empty());
        state.taken_back.insert(facts.uid.clone());
        state.observe(&facts);
        assert!(!state.taken_back.is_empty());
        facts.drain = None;
        state.observe(&facts);
        assert!(state.taken_back.is_empty());
    }
}
