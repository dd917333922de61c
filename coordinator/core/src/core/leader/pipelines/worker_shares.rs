//! The shares that count in the plan, by worker.
//!
//! Invariant: the load of a worker is the sum of the loads of its shares.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{ClusterName, Load, ShareKey, WorkerKey, WorkerName};

use super::state::PlannedShare;

/// The planned shares of all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct SharesByWorker(BTreeMap<WorkerKey, WorkerShares>);

/// The planned shares of one worker.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerShares {
    load: Load,
    shares: BTreeSet<ShareKey>,
}

impl SharesByWorker {
    /// Counts a share on its worker.
    pub(super) fn add(&mut self, key: &ShareKey, class: &ClusterName, share: &PlannedShare) {
        let worker = WorkerKey { cluster: class.clone(), worker: share.on.clone() };
        let worker_shares = self.0.entry(worker).or_default();
        if worker_shares.shares.insert(key.clone()) {
            worker_shares.load += share.load;
        }
    }

    /// The share no longer counts.
    pub(super) fn remove(&mut self, key: &ShareKey, class: &ClusterName, share: &PlannedShare) {
        let worker = WorkerKey { cluster: class.clone(), worker: share.on.clone() };
        let Some(worker_shares) = self.0.get_mut(&worker) else { return };
        if worker_shares.shares.remove(key) {
            worker_shares.load -= share.load;
        }
        if worker_shares.shares.is_empty() {
            self.0.remove(&worker);
        }
    }

    /// The shares of a worker; none if it has no share.
    pub(super) fn of(&self, worker: &WorkerKey) -> Option<&WorkerShares> {
        self.0.get(worker)
    }

    /// The shares of a worker, by name.
    pub(super) fn keys_of(&self, worker: &WorkerKey) -> impl Iterator<Item = &ShareKey> {
        self.of(worker).into_iter().flat_map(|worker_shares| &worker_shares.shares)
    }

    /// The planned load of a worker.
    pub(super) fn load_of(&self, worker: &WorkerKey) -> Load {
        self.of(worker).map_or(Load::ZERO, |worker_shares| worker_shares.load)
    }

    /// The shares of one class's workers, by worker.
    pub(super) fn of_class<'a>(
        &'a self,
        class: &'a ClusterName,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a WorkerShares)> {
        let first = WorkerKey { cluster: class.clone(), worker: WorkerName::first() };
        self.0.range(first..).take_while(move |(key, _)| key.cluster == *class)
    }
}

impl WorkerShares {
    /// The sum of their loads.
    pub(super) fn load(&self) -> Load {
        self.load
    }

    /// All of them.
    pub(super) fn keys(&self) -> &BTreeSet<ShareKey> {
        &self.shares
    }
}
