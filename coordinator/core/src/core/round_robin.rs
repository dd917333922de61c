//! Workers that are to be looked at, each in its turn.

use std::collections::BTreeSet;
use std::ops::Bound;

use leasehold_types::WorkerKey;

/// Workers by name, and who was taken last. Invariant: nobody is taken twice before everybody who
/// waited meanwhile was taken once.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundRobin {
    waiting: BTreeSet<WorkerKey>,
    after: Option<WorkerKey>,
}

impl RoundRobin {
    pub(super) fn insert(&mut self, key: WorkerKey) {
        self.waiting.insert(key);
    }

    pub(super) fn extend(&mut self, keys: impl IntoIterator<Item = WorkerKey>) {
        self.waiting.extend(keys);
    }

    pub(super) fn remove(&mut self, key: &WorkerKey) {
        self.waiting.remove(key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next ones, at most so many.
    pub(super) fn take(&mut self, most: usize) -> Vec<WorkerKey> {
        let after = self.after.take();
        let from = after.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.waiting.range((from, Bound::Unbounded));
        let mut keys: Vec<_> = behind.take(most).cloned().collect();
        if let Some(after) = after {
            let rest = self.waiting.range(..=after).take(most - keys.len());
            keys.extend(rest.cloned());
        }
        for key in &keys {
            self.waiting.remove(key);
        }
        self.after = keys.last().cloned();
        keys
    }
}
