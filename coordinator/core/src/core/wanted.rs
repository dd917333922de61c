//! What the plan wants of a stream lease, be it a stream of a set or a share of a pipeline: the one
//! answer that grants, revocations and adoption rest on.

use std::time::Duration;

use leasehold_types::{ClusterName, Load, ShareKey, StreamKey, WorkerKey, WorkerName};

use super::Core;
use crate::desired::Mode;
use crate::ledger::Claim;
use crate::planner::streams::Unplaced;

/// What the plan wants of a stream or share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// The cluster whose workers it is for.
    pub(super) cluster: &'a ClusterName,
    /// The worker that is to have it; none where nobody is chosen.
    pub(super) on: Option<&'a WorkerName>,
    /// A share's load; none for an ordinary stream.
    pub(super) load: Option<Load>,
    /// Where nobody is chosen: whoever works on it goes on for now.
    pub(super) stays: bool,
    /// Its lease goes on without renewals.
    pub(super) pinned: bool,
    /// How long a worker may take to let it go.
    pub(super) handover: Duration,
}

impl Wanted<'_> {
    /// The worker that is to have it.
    pub(super) fn owner(&self) -> Option<WorkerKey> {
        let worker = self.on?.clone();
        Some(WorkerKey { cluster: self.cluster.clone(), worker })
    }

    /// Whether this worker is to have it.
    pub(super) fn is_for(&self, key: &WorkerKey) -> bool {
        *self.cluster == key.cluster && self.on == Some(&key.worker)
    }

    /// Whether a lease is what the plan wants: at that worker, with that load.
    pub(super) fn is_met_by(&self, claim: &Claim) -> bool {
        self.is_for(&claim.worker) && self.load == claim.load
    }
}

impl Core {
    /// What the plan wants of a stream; none where it is desired no more.
    pub(super) fn wanted(&self, stream: &StreamKey) -> Option<Wanted<'_>> {
        if stream.set.is_class() {
            return self.wanted_share(stream);
        }
        let (set, planned) = self.planned(stream)?;
        Some(Wanted {
            cluster: &set.spec.cluster,
            on: planned.on.as_ref(),
            load: None,
            // Nobody else can take it.
            stays: matches!(planned.unplaced, None | Some(Unplaced::NoWorker)),
            pinned: set.spec.mode == Mode::Pinned,
            handover: set.spec.handover_deadline,
        })
    }

    fn wanted_share(&self, stream: &StreamKey) -> Option<Wanted<'_>> {
        let (cluster, state) = self.clusters.get_key_value(&stream.set.class()?)?;
        let handover = state.spec.class.as_ref()?.handover_deadline;
        let key = ShareKey::of(stream);
        let planned = key.as_ref().and_then(|key| self.pipelines.planned(key, cluster));
        Some(Wanted {
            cluster,
            on: planned.and_then(|planned| planned.share).map(|share| &share.on),
            load: planned.and_then(|planned| planned.share).map(|share| share.load),
            stays: planned.is_some_and(|planned| planned.stays),
            pinned: false,
            handover,
        })
    }

    /// Has the plan leave a stream where it is.
    pub(super) fn leave_on(&mut self, stream: &StreamKey, key: &WorkerKey, load: Option<Load>) {
        if let (Some(share), Some(load)) = (ShareKey::of(stream), load) {
            self.pipelines.adopt(&share, key, load);
        } else if let Some(planned) = self.planned_mut(stream) {
            planned.on = Some(key.worker.clone());
        }
    }
}
