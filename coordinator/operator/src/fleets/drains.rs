//! Tracks the drains of marked pods for their events. It ends nothing: a drain that takes too long
//! is reported and continues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_types::Moment;

use super::worker_pod::WorkerPod;

/// The drains under way, by UID.
#[derive(Debug, Default)]
pub(super) struct DrainTracker(BTreeMap<String, Drain>);

#[derive(Clone, Copy, Debug)]
struct Drain {
    since: Moment,
    is_over: bool,
    is_overdue: bool,
}

/// A step of a drain that is worth an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainProgress {
    /// It holds nothing.
    Completed,
    /// It takes longer than the cluster's `drain.deadline`.
    Overdue,
}

impl DrainTracker {
    /// Takes in a pod; returns the new step of its drain.
    pub(super) fn observe(
        &mut self,
        it: &WorkerPod,
        deadline: Duration,
        now: Moment,
    ) -> Option<DrainProgress> {
        let uid = &it.pod.uid;
        if it.drain_reason.is_none() || !it.pod.is_active() {
            self.0.remove(uid);
            return None;
        }
        let begun = Drain { since: now, is_over: false, is_overdue: false };
        let drain = self.0.entry(uid.clone()).or_insert(begun);
        if it.is_drained() {
            return (!std::mem::replace(&mut drain.is_over, true))
                .then_some(DrainProgress::Completed);
        }
        drain.is_over = false;
        if now.since(drain.since) < deadline {
            return None;
        }
        (!std::mem::replace(&mut drain.is_overdue, true)).then_some(DrainProgress::Overdue)
    }

    /// Forgets pods that no longer exist.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_there(uid));
    }
}

/// Whether a pod is to be drained because of its node. A DaemonSet's is not: the next one would
/// come to the same node.
pub(super) fn must_leave_node(it: &WorkerPod, cordoned: &BTreeSet<String>) -> bool {
    let on_cordoned = it.pod.node.as_ref().is_some_and(|node| cordoned.contains(node));
    let is_daemon = it.pod.owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet");
    it.drain_reason.is_none() && it.pod.is_active() && on_cordoned && !is_daemon
}
