//! Tasks whose work grows with the fleet, and that are done in slices.
//!
//! Invariant: a pass over all connections or over all blocked workers that has not begun covers
//! every later reason for it, so there is at most one of each that has not begun.

use std::collections::{BTreeSet, VecDeque};
use std::mem::discriminant;
use std::sync::Arc;

use leasehold_types::{ClusterName, SetName, StreamKey, WorkerKey, WorkerName};

use crate::desired::StreamSet;
use crate::event::ConnId;

/// A task that continues where its last slice ended.
#[derive(Clone, Debug)]
pub(super) enum SlicedTask {
    /// Over all streams that a worker has a claim on, after this one.
    ClaimsOfWorker { key: WorkerKey, after: Option<StreamKey>, check: ClaimCheck },
    /// Over all streams of these sets with a claim, from this slot on.
    ClaimsOfSets { sets: BTreeSet<SetName>, slot: usize },
    /// Over streams that have another planned worker now, by their positions in the set, from this
    /// one on.
    ReplannedStreams { set: SetName, spec: Arc<StreamSet>, streams: Vec<u32>, next: usize },
    /// Over the workers of a cluster whose pools were planned again, from the last one on.
    PoolTargets { cluster: ClusterName, workers: Vec<WorkerName> },
    /// Over all connections, after this one, because the desired state has changed.
    Connections { after: Option<ConnId> },
    /// Over all workers that wait for a stream that may be free now, after this one.
    BlockedWorkers { after: Option<WorkerKey> },
}

/// What is checked of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimCheck {
    /// Whether the plan wants the stream on that worker.
    Plan,
    /// Whether the lease's time is over.
    Expiry,
    /// Whether the plan wants the stream there; for a lease that ends, whether its time is over.
    PlanAndExpiry,
}

impl SlicedTask {
    /// Whether it is a pass over all of a kind that has not begun.
    fn is_unbegun_pass(&self) -> bool {
        matches!(self, Self::Connections { after: None } | Self::BlockedWorkers { after: None })
    }
}

/// The tasks that are not done, in the order of their next slices.
#[derive(Clone, Debug, Default)]
pub(super) struct SlicedTasks {
    tasks: VecDeque<SlicedTask>,
}

impl SlicedTasks {
    /// Adds a task, or the rest of one, behind the others.
    pub(super) fn add(&mut self, task: SlicedTask) {
        let covers = |other: &SlicedTask| {
            other.is_unbegun_pass() && discriminant(other) == discriminant(&task)
        };
        if !(task.is_unbegun_pass() && self.tasks.iter().any(covers)) {
            self.tasks.push_back(task);
        }
    }

    /// Takes the task whose next slice is to be done.
    pub(super) fn next(&mut self) -> Option<SlicedTask> {
        self.tasks.pop_front()
    }

    /// Whether all tasks are done.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The sets that the tasks refer to, when no slice is done any more.
    pub(super) fn into_sets(self) -> impl Iterator<Item = (SetName, Arc<StreamSet>)> {
        self.tasks.into_iter().filter_map(|task| match task {
            SlicedTask::ReplannedStreams { set, spec, .. } => Some((set, spec)),
            SlicedTask::ClaimsOfWorker { .. } | SlicedTask::ClaimsOfSets { .. } => None,
            SlicedTask::PoolTargets { .. } => None,
            SlicedTask::Connections { .. } | SlicedTask::BlockedWorkers { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_has_not_begun_covers_a_later_reason_for_it() {
        let mut tasks = SlicedTasks::default();
        tasks.add(SlicedTask::Connections { after: None });
        tasks.add(SlicedTask::BlockedWorkers { after: None });
        tasks.add(SlicedTask::Connections { after: None });
        let first = tasks.next();
        assert!(matches!(first, Some(SlicedTask::Connections { after: None })), "{first:?}");
        // The first slice is done, so a new reason needs a pass from the start.
        tasks.add(SlicedTask::Connections { after: Some(ConnId(7)) });
        tasks.add(SlicedTask::Connections { after: None });
        let rest: Vec<_> = std::iter::from_fn(|| tasks.next()).collect();
        let [SlicedTask::BlockedWorkers { .. }, later @ ..] = &*rest else { panic!("{rest:?}") };
        assert!(matches!(later, [SlicedTask::Connections { after: Some(_) }, _]), "{later:?}");
        assert!(tasks.is_empty());
    }
}
