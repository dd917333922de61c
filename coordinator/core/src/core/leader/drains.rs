//! Orders to drain a worker, and to end its drain.

use leasehold_types::{Moment, WorkerKey};

use super::Leader;

impl Leader {
    /// Has a worker drained.
    pub(in crate::core) fn order_drain(&mut self, key: &WorkerKey, now: Moment) {
        let Some(worker) = self.worker_mut(key) else { return };
        worker.drain_mut().set_ordered();
        self.outgoing.mark(key.clone());
        self.drain_changed(key);
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
    }

    /// Takes the order to drain back.
    pub(in crate::core) fn take_drain_back(&mut self, key: &WorkerKey, now: Moment) {
        let Some(worker) = self.worker_mut(key).filter(|_| !key.worker.is_former()) else { return };
        worker.take_drain_back();
        self.outgoing.mark(key.clone());
        self.drain_changed(key);
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
    }
}
