//! What a leader has yet to write down. What failed is tried again only after all else was tried,
//! so that pods that cannot be written keep none of the others waiting.

use std::collections::BTreeMap;

use leasehold_coordinator_core::event::Exposure;
use leasehold_types::WorkerKey;

/// What a worker may hold; none where it is to be struck.
pub(super) type Change = (WorkerKey, Option<Exposure>);

/// The changes that are not done, at most one a worker.
#[derive(Debug, Default)]
pub(super) struct Changes {
    due: BTreeMap<WorkerKey, Option<Exposure>>,
    failed: BTreeMap<WorkerKey, Option<Exposure>>,
}

impl Changes {
    /// Takes what is asked for, in place of what was asked for before.
    pub(super) fn ask(&mut self, changes: impl IntoIterator<Item = Change>) {
        for (key, change) in changes {
            self.failed.remove(&key);
            self.due.insert(key, change);
        }
    }

    /// Takes back what failed, but for what was asked for anew since.
    pub(super) fn fail(&mut self, changes: impl IntoIterator<Item = Change>) {
        for (key, change) in changes {
            if !self.due.contains_key(&key) {
                self.failed.insert(key, change);
            }
        }
    }

    /// What failed is due again, unless something has not even been tried.
    pub(super) fn retry(&mut self) {
        if self.due.is_empty() {
            self.due = std::mem::take(&mut self.failed);
        }
    }

    /// At most `max` that are due.
    pub(super) fn take(&mut self, max: usize) -> Vec<Change> {
        std::iter::from_fn(|| self.due.pop_first()).take(max).collect()
    }

    /// Whether any is due.
    pub(super) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, WorkerName};

    use super::*;

    fn change(worker: usize, jobs: Option<u32>) -> Change {
        let cluster = ClusterName::new("ci/builds").expect("a name");
        let worker = WorkerName::new(&format!("w-{worker}")).expect("a name");
        let exposure = jobs.map(|jobs_max| Exposure { jobs_max, ..Exposure::default() });
        (WorkerKey { cluster, worker }, exposure)
    }

    #[test]
    fn what_fails_keeps_nothing_waiting_and_is_tried_again() {
        let mut changes = Changes::default();
        changes.ask((0..5).map(|worker| change(worker, Some(1))));
        let mut tried = Vec::new();
        for _ in 0..3 {
            // The first pods can never be written, and beats come between.
            let some = changes.take(2);
            changes.fail(some.clone());
            tried.extend(some);
            changes.retry();
        }
        assert_eq!(tried, (0..5).map(|worker| change(worker, Some(1))).collect::<Vec<_>>());
        assert_eq!(changes.take(2), [change(0, Some(1)), change(1, Some(1))]);
    }

    #[test]
    fn what_failed_waits_for_the_next_beat() {
        let mut changes = Changes::default();
        changes.fail([change(0, Some(1))]);
        assert!(!changes.are_due());
        changes.retry();
        assert!(changes.are_due());
    }

    #[test]
    fn what_was_asked_for_since_replaces_what_failed() {
        let mut changes = Changes::default();
        changes.fail([change(0, Some(1))]);
        changes.ask([change(0, None)]);
        assert_eq!(changes.take(9), [change(0, None)]);
        changes.retry();
        assert_eq!(changes.take(9), []);
        changes.ask([change(0, Some(2))]);
        changes.fail([change(0, None)]);
        assert_eq!(changes.take(9), [change(0, Some(2))]);
        changes.retry();
        assert_eq!(changes.take(9), []);
    }
}
