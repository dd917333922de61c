//! What a leader keeps in mind from look to look. All of it may be lost: the objects tell the rest,
//! and what is forgotten costs a write that changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::{ClusterName, Moment};
use serde_json::Value;

use super::action::ObjectRef;
use super::drains::DrainTracker;
use super::evictions::IdleTracker;
use super::restart::RestartRound;
use super::scaling::StabilizationWindow;
use super::worker_pod::{DrainReason, WorkerPod};
use crate::digest::digest;

/// An object that nobody has touched is written again after so long: not every change shows.
const REPAIR_EVERY: Duration = Duration::from_secs(60);
/// The wait after a failure, doubled with each up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(500);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What is kept in mind.
#[derive(Debug, Default)]
pub(super) struct ReconcilerState {
    pub(super) idle: IdleTracker,
    pub(super) drains: DrainTracker,
    pub(super) applied: AppliedBodies,
    pub(super) backoffs: Backoffs,
    /// Marks that were written, by UID, until they are seen on the pods.
    pub(super) drain_marks: BTreeMap<String, DrainReason>,
    /// What the API server has against a fleet's workload.
    pub(super) refusals: BTreeMap<ClusterName, String>,
    /// Restarts of pods that cannot reload.
    pub(super) restarts: BTreeMap<ClusterName, RestartRound>,
    /// What the load of each class has asked for lately.
    pub(super) windows: BTreeMap<ClusterName, StabilizationWindow>,
    /// What people were told that a fleet is blocked by.
    pub(super) blocked: BTreeMap<ClusterName, String>,
}

/// What was applied, and what came of it.
#[derive(Debug, Default)]
pub(super) struct AppliedBodies(BTreeMap<ObjectRef, AppliedBody>);

#[derive(Debug)]
struct AppliedBody {
    digest: String,
    generation: Option<i64>,
    at: Moment,
}

/// What went wrong, and when it is tried again.
#[derive(Debug, Default)]
pub(super) struct Backoffs(BTreeMap<ObjectRef, Backoff>);

#[derive(Debug)]
struct Backoff {
    why: String,
    count: u32,
    until: Moment,
}

impl ReconcilerState {
    /// Why the API server refuses a fleet's workload, if it does.
    pub(super) fn refusal(&self, fleet: &ClusterName) -> Option<&str> {
        self.refusals.get(fleet).map(String::as_str)
    }

    /// Forgets what is seen by now, and pods that are there no more.
    pub(super) fn forget_old(&mut self, seen: &BTreeMap<String, Option<DrainReason>>) {
        self.drain_marks.retain(|uid, mark| seen.get(uid).is_some_and(|it| *it != Some(*mark)));
        self.idle.retain(|uid| seen.contains_key(uid));
        self.drains.retain(|uid| seen.contains_key(uid));
    }

    /// What is written on a pod, by its UID.
    pub(super) fn seen(it: &WorkerPod) -> (String, Option<DrainReason>) {
        (it.pod.uid.clone(), it.pod.drain.as_deref().map(DrainReason::parse))
    }
}

impl AppliedBodies {
    /// Whether a body is to be applied to an object that is seen in this generation; none where
    /// it is not seen.
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
            // Not seen yet, or gone: that is found out soon enough.
            (None, _) => now.since(applied.at) >= RETRY_MIN,
            (Some(_), None) => false,
        };
        is_old || is_changed || applied.digest != digest(body)
    }

    /// A body was applied; this came of it.
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
        self.0.insert(target, AppliedBody { digest: digest(&body), generation, at: now });
    }

    /// Forgets objects of fleets that are there no more, which would have been written again.
    pub(super) fn forget_old(&mut self, now: Moment) {
        self.0.retain(|_, applied| now.since(applied.at) < 2 * REPAIR_EVERY);
    }
}

impl Backoffs {
    /// Whether an object may be tried again.
    pub(super) fn allows(&self, target: &ObjectRef, now: Moment) -> bool {
        self.0.get(target).is_none_or(|backoff| backoff.until <= now)
    }

    /// It went well.
    pub(super) fn clear(&mut self, target: &ObjectRef) {
        self.0.remove(target);
    }

    /// It went wrong; returns whether that is news.
    pub(super) fn note(&mut self, target: &ObjectRef, why: &str, now: Moment) -> bool {
        let fresh = Backoff { why: String::new(), count: 0, until: now };
        let backoff = self.0.entry(target.clone()).or_insert(fresh);
        let wait = RETRY_MIN.saturating_mul(1 << backoff.count.min(16)).min(RETRY_MAX);
        backoff.count += 1;
        backoff.until = now + wait;
        std::mem::replace(&mut backoff.why, why.to_owned()) != why
    }

    /// Forgets what has not gone wrong again for a while.
    pub(super) fn forget_old(&mut self, now: Moment) {
        self.0.retain(|_, backoff| now.since(backoff.until) < 2 * RETRY_MAX);
    }
}
