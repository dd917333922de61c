//! Orders to drain a worker, and to end its drain.

use leasehold_types::message::{DrainOrder, DrainPhase};
use leasehold_types::{Moment, WorkerKey};

use super::Leader;

impl Leader {
    /// Has a worker drained.
    pub(in crate::core) fn order_drain(&mut self, key: &WorkerKey, now: Moment) {
        let Some(worker) = self.worker_mut(key) else { return };
        worker.drain_order = Some(DrainOrder::Drain);
        self.outgoing.mark(key.clone());
        self.drain_changed(key);
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
    }

    /// Takes the order to drain back. The worker works again once its agent reports so: until then
    /// a drain that the agent has begun counts.
    pub(in crate::core) fn take_drain_back(&mut self, key: &WorkerKey, now: Moment) {
        let Some(worker) = self.worker_mut(key).filter(|_| !key.worker.is_former()) else { return };
        let drain_unsent = worker.session.as_ref().is_some_and(|session| {
            session.reported && session.drain_sent != Some(DrainOrder::Drain)
        });
        let never_began = drain_unsent && worker.drain == DrainPhase::Working;
        worker.drain_order = (!never_began).then_some(DrainOrder::Undrain);
        self.outgoing.mark(key.clone());
        self.drain_changed(key);
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
    }
}
