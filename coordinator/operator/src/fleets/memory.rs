//! What a leader keeps in mind from look to look. All of it may be lost: the objects tell the rest,
//! and what is forgotten costs a write that changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::{ClusterName, Moment};
use serde_json::Value;

use super::action::Target;
use super::busy::Idle;
use super::drains::Drains;
use super::restart::Round;
use super::scaling::Window;
use super::standing::{Mark, Standing};
use crate::digest::digest;

/// An object that nobody has touched is written again after so long: not every change shows.
const REPAIR_EVERY: Duration = Duration::from_secs(60);
/// The wait after a failure, doubled with each up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(500);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What is kept in mind.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) idle: Idle,
    pub(super) drains: Drains,
    pub(super) applied: Applied,
    pub(super) setbacks: Setbacks,
    /// Marks that were written, by UID, until they are seen on the pods.
    pub(super) marks: BTreeMap<String, Mark>,
    /// What the API server has against a fleet's workload.
    pub(super) refusals: BTreeMap<ClusterName, String>,
    /// Restarts of pods that cannot reload.
    pub(super) restarts: BTreeMap<ClusterName, Round>,
    /// What the load of each class has asked for lately.
    pub(super) windows: BTreeMap<ClusterName, Window>,
    /// What people were told that a fleet is blocked by.
    pub(super) blocked: BTreeMap<ClusterName, String>,
}

/// What was applied, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Applied(BTreeMap<Target, Written>);

#[derive(Debug)]
struct Written {
    digest: String,
    generation: Option<i64>,
    at: Moment,
}

/// What went wrong, and when it is tried again.
#[derive(Debug, Default)]
pub(super) struct Setbacks(BTreeMap<Target, Setback>);

#[derive(Debug)]
struct Setback {
    why: String,
    count: u32,
    until: Moment,
}

impl Memory {
    /// Why the API server refuses a fleet's workload, if it does.
    pub(super) fn refusal(&self, fleet: &ClusterName) -> Option<&str> {
        self.refusals.get(fleet).map(String::as_str)
    }

    /// Forgets what is seen by now, and pods that are there no more.
    pub(super) fn tidy(&mut self, seen: &BTreeMap<String, Option<Mark>>) {
        self.marks.retain(|uid, mark| seen.get(uid).is_some_and(|it| *it != Some(*mark)));
        self.idle.retain(|uid| seen.contains_key(uid));
        self.drains.retain(|uid| seen.contains_key(uid));
    }

    /// What is written on a pod, by its UID.
    pub(super) fn seen(it: &Standing) -> (String, Option<Mark>) {
        (it.pod.uid.clone(), it.pod.drain.as_deref().map(Mark::parse))
    }
}

impl Applied {
    /// Whether a body is to be applied to an object that is seen in this generation; none where
    /// it is not seen.
    pub(super) fn is_due(
        &self,
        target: &Target,
        body: &Value,
        generation: Option<i64>,
        now: Moment,
    ) -> bool {
        let Some(written) = self.0.get(target) else { return true };
        let is_old = now.since(written.at) >= REPAIR_EVERY;
        let is_changed = match (generation, written.generation) {
            (Some(seen), Some(written)) => seen > written,
            // Not seen yet, or gone: that is found out soon enough.
            (None, _) => now.since(written.at) >= RETRY_MIN,
            (Some(_), None) => false,
        };
        is_old || is_changed || written.digest != digest(body)
    }

    /// A body was applied; this came of it.
    pub(super) fn note(
        &mut self,
        target: Target,
        mut body: Value,
        generation: Option<i64>,
        now: Moment,
    ) {
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        self.0.insert(target, Written { digest: digest(&body), generation, at: now });
    }

    /// Forgets objects of fleets that are there no more, which would have been written again.
    pub(super) fn tidy(&mut self, now: Moment) {
        self.0.retain(|_, written| now.since(written.at) < 2 * REPAIR_EVERY);
    }
}

impl Setbacks {
    /// Whether an object may be tried again.
    pub(super) fn allows(&self, target: &Target, now: Moment) -> bool {
        self.0.get(target).is_none_or(|setback| setback.until <= now)
    }

    /// It went well.
    pub(super) fn clear(&mut self, target: &Target) {
        self.0.remove(target);
    }

    /// It went wrong; returns whether that is news.
    pub(super) fn note(&mut self, target: &Target, why: &str, now: Moment) -> bool {
        let fresh = Setback { why: String::new(), count: 0, until: now };
        let setback = self.0.entry(target.clone()).or_insert(fresh);
        let wait = RETRY_MIN.saturating_mul(1 << setback.count.min(16)).min(RETRY_MAX);
        setback.count += 1;
        setback.until = now + wait;
        std::mem::replace(&mut setback.why, why.to_owned()) != why
    }

    /// Forgets what has not gone wrong again for a while.
    pub(super) fn tidy(&mut self, now: Moment) {
        self.0.retain(|_, setback| now.since(setback.until) < 2 * RETRY_MAX);
    }
}
