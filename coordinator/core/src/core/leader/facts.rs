//! What plans and rules read of a leader's other owners.

use leasehold_types::WorkerKey;

use super::clusters::Clusters;
use crate::core::replica::ReplicaState;
use crate::ledger::Ledger;
use crate::observed::Worker;

/// The facts that something is planned from. Nothing is changed through them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) replica: &'a ReplicaState,
    pub(super) ledger: &'a Ledger,
    pub(super) clusters: &'a Clusters,
}

impl<'a> Facts<'a> {
    /// A worker, as observed in this term.
    pub(super) fn observed(&self, key: &WorkerKey) -> Option<&'a Worker> {
        self.clusters.worker(key)
    }
}
