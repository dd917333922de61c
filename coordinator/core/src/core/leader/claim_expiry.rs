//! The end of claims by time: a handover whose deadline has passed, and leases that have expired.

use std::collections::BTreeSet;

use leasehold_types::{Moment, StreamKey, WorkerKey};

use super::{Leader, Timer};
use crate::effect::Freed;
use crate::ledger::Phase;

impl Leader {
    /// Checks the claims on a stream for the end of a handover's deadline or of a lease's time.
    pub(super) fn claim_due(&mut self, stream: &StreamKey, now: Moment) {
        self.keep_if_pinned(stream);
        let heard = self.replica.heard();
        let ledger = &self.ledger;
        let mut reminders = Vec::new();
        let mut lapsing = Vec::new();
        let mut on_hold = Vec::new();
        let mut over = false;
        let mut unconfirmed = false;
        for claim in ledger.claims(stream) {
            if let Phase::Revoking { deadline } = claim.phase {
                if deadline <= heard {
                    lapsing.push(claim.worker.clone());
                } else {
                    reminders.push(deadline);
                }
            }
            match ledger.claim_free_at(claim) {
                // The end of the hold checks it again.
                Some(at)
                    if at <= heard
                        && ledger.unreported().hold_of(&claim.worker.cluster, heard).is_some() =>
                {
                    on_hold.push(claim.worker.cluster.clone());
                }
                Some(at) if at <= heard && !ledger.confirmed_since(at) => unconfirmed = true,
                Some(at) if at <= heard => over = true,
                Some(at) if claim.phase != Phase::Held => reminders.push(at),
                Some(_) | None => {}
            }
        }
        for cluster in on_hold {
            self.pending_frees.hold_back(cluster, stream.clone());
        }
        for key in lapsing {
            self.lapse(stream, &key);
        }
        if over {
            let ended = self.ledger.free_by_time(stream, heard);
            let holders: BTreeSet<_> = ended.iter().map(|lease| lease.worker.clone()).collect();
            self.ended(ended, Freed::Expired, now);
            for key in &holders {
                self.check_left(key, now);
            }
        }
        if unconfirmed {
            self.renewal.delay(Timer::Claim(stream.clone()));
        }
        for at in reminders {
            self.timers.set(at, Timer::Claim(stream.clone()));
        }
    }

    /// The same if any of the claims is ending: claims that are held end by silence alone.
    pub(super) fn ending_due(&mut self, stream: &StreamKey, now: Moment) {
        let claims = self.ledger.claims(stream);
        if claims.iter().any(|claim| claim.phase != Phase::Held) {
            self.claim_due(stream, now);
        }
    }

    /// A handover took too long: the next grant says that the stream is no longer renewed.
    fn lapse(&mut self, stream: &StreamKey, key: &WorkerKey) {
        if let Some(worker) = self.worker_mut(key) {
            worker.streams_mut().revoke(stream.clone());
            self.outgoing.mark(key.clone());
        }
    }
}
