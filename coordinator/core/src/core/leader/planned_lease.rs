//! The planned lease of a stream, for a stream of a set or a share of a pipeline. Grants,
//! revocations and adoption all rest on this one answer.

use std::time::Duration;

use leasehold_types::{ClusterName, Load, StreamKey, WorkerKey, WorkerName};

use crate::core::replica::ReplicaState;
use crate::ledger::{Claim, Ledger, Phase};

/// The lease that the plan wants for a stream or share.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedLease<'a> {
    /// The cluster whose workers it is for; of a share the class of its node in the plan.
    pub(super) cluster: &'a ClusterName,
    /// The worker that is to have it; none where no worker is chosen.
    pub(super) on: Option<&'a WorkerName>,
    /// A share's load; none for an ordinary stream.
    pub(super) load: Option<Load>,
    /// If `on` is `None`, the present owner keeps the lease.
    pub(super) stays: bool,
    /// Its lease goes on without renewals.
    pub(super) pinned: bool,
}

/// The handover deadline of a stream whose set is unknown.
const HANDOVER_DEFAULT: Duration = Duration::from_secs(30);

impl PlannedLease<'_> {
    /// The worker that is to have it.
    pub(super) fn owner(&self) -> Option<WorkerKey> {
        let worker = self.on?.clone();
        Some(WorkerKey { cluster: self.cluster.clone(), worker })
    }

    /// Whether this worker is to have it.
    pub(super) fn is_for(&self, key: &WorkerKey) -> bool {
        *self.cluster == key.cluster && self.on == Some(&key.worker)
    }

    /// Whether a lease is as planned: on that worker, with that load.
    pub(super) fn is_met_by(&self, claim: &Claim) -> bool {
        self.is_for(&claim.worker) && self.load == claim.load
    }
}

/// How long a worker may take to release a stream: the deadline of its set, even if the set is
/// gone, or for a share that of the worker's own class.
pub(super) fn handover(stream: &StreamKey, key: &WorkerKey, replica: &ReplicaState) -> Duration {
    let known = if stream.set.is_shares() {
        replica.class(&key.cluster).map(|class| class.handover_deadline)
    } else {
        let set = replica.sets().get(&stream.set).map(|set| set.spec().handover_deadline);
        set.or_else(|| replica.former_handover(&stream.set))
    };
    known.unwrap_or(HANDOVER_DEFAULT)
}

/// Whether a worker holds a stream by a newer claim than its planned worker, of the same cluster.
pub(super) fn is_newest_holder(
    ledger: &Ledger,
    stream: &StreamKey,
    key: &WorkerKey,
    planned: Option<&WorkerName>,
) -> bool {
    let token = |worker: &WorkerName| {
        let key = WorkerKey { cluster: key.cluster.clone(), worker: worker.clone() };
        ledger.claim(stream, &key).map(|claim| claim.token)
    };
    let held = ledger.claim(stream, key).filter(|claim| claim.phase == Phase::Held);
    let held = held.map(|claim| claim.token);
    planned != Some(&key.worker) && held > planned.and_then(token)
}
