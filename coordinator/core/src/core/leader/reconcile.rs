//! Compares the plan of a stream with its claims, and marks the workers that need a message.

use std::sync::Arc;

use leasehold_types::message::HeldStream;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, StreamKey, WorkerKey};

use super::Leader;
use super::facts::Facts;
use super::planned_lease::is_newest_holder;
use super::sliced_tasks::{ClaimCheck, SlicedTask};
use crate::core::replica::PlannedWorker;
use crate::desired::Mode;
use crate::effect::{Freed, Notice};
use crate::ledger::{EndedLease, Phase};

impl Leader {
    /// Compares a stream's claims with the plan: a worker that should not have it is asked to give
    /// it back, and the worker that should have it wants it.
    pub(super) fn reconcile_stream(&mut self, stream: &StreamKey, now: Moment) {
        self.pipelines.leases_changed(stream);
        self.compare_claims(stream, now);
    }

    /// The same for a share whose binding the pipelines have marked as changed already.
    pub(super) fn compare_claims(&mut self, stream: &StreamKey, now: Moment) {
        self.keep_if_pinned(stream);
        let wanted = self.grant_rules().planned_lease(stream);
        let on = wanted.and_then(|wanted| wanted.owner());
        let claims = self.ledger.claims(stream);
        let stays = match wanted {
            Some(wanted) => wanted.on.is_none() && wanted.stays,
            None => self.replica.desired().unread.contains(&stream.set),
        };
        // The set runs on another cluster now, whether or not that one has a worker. A share whose
        // node moves to another class is the same work, and goes on meanwhile.
        let has_moved = |key: &WorkerKey| {
            let moved = wanted.is_some_and(|wanted| *wanted.cluster != key.cluster);
            moved && !stream.set.is_shares() && !mutation::on(Mutation::MovedSetStays)
        };
        let goes_on = |key: &WorkerKey| {
            stays && !has_moved(key) && self.observed(key).is_some_and(|worker| worker.is_working())
        };
        let unwanted = claims.iter().filter(|claim| {
            claim.phase == Phase::Held
                && !wanted.is_some_and(|wanted| wanted.is_met_by(claim))
                && !goes_on(&claim.worker)
        });
        let unwanted: Vec<_> = unwanted.map(|claim| WorkerKey::clone(&claim.worker)).collect();
        let mut mine =
            claims.iter().filter(|claim| on.as_ref().is_some_and(|on| *claim.worker == *on));
        let has_some = mine.clone().next().is_some();
        // A worker whose lease is ending needs a new lease to continue.
        let goes_on_there =
            mine.find(|claim| !claim.is_orphaned()).is_some_and(|claim| claim.phase == Phase::Held);
        for key in unwanted {
            if let Some(worker) = self.worker_mut(&key) {
                worker.streams_mut().revoke(stream.clone());
                self.outgoing.mark(key);
            }
        }
        let Some(key) = on else { return };
        let owns = self.observed(&key).is_some_and(|worker| worker.owns_streams());
        if !owns {
            // The planned worker drains or is lost: plan again at once. If that worker is back by
            // then, the new plan is still reconciled.
            if !has_some {
                if let Some(planned) = self.replica.planned_mut(stream) {
                    planned.take_off();
                }
                self.plan_now(&key.cluster, now);
            }
            return;
        }
        if goes_on_there {
            return;
        }
        if let Some(worker) = self.worker_mut(&key) {
            worker.streams_mut().want(stream.clone());
            self.outgoing.mark(key);
        }
    }

    /// Gives notices of ended leases, and reconciles the streams that are free now.
    pub(super) fn ended(&mut self, ended: Vec<EndedLease>, how: Freed, now: Moment) {
        for EndedLease { stream, worker, token } in ended {
            self.reconcile_stream(&stream, now);
            self.record_single_owner(&stream, now);
            if stream.set.is_shares() {
                // Its other shares may have waited for the capacity.
                self.outgoing.mark(worker.clone());
                self.outgoing.mark_all(self.pipelines.workers_beside(&stream));
            }
            let notice = Notice::StreamFreed { worker, stream, token, how };
            self.replica.notice(notice);
        }
    }

    /// Leases of a stream do not end by time while its set is pinned, whatever the set's mode was
    /// when they were granted.
    pub(super) fn keep_if_pinned(&mut self, stream: &StreamKey) {
        // Most sets are not pinned, and every stream comes by here.
        let set = self.replica.sets().get(&stream.set);
        if set.is_none_or(|set| set.spec().mode != Mode::Pinned) {
            return;
        }
        let pinned = self.grant_rules().planned_lease(stream).is_some_and(|wanted| wanted.pinned);
        if !pinned || stream.set.is_shares() || mutation::on(Mutation::FormerModeHolds) {
            return;
        }
        // A successor learns of that from the workers' entries.
        for key in self.ledger.make_timeless(stream) {
            self.register_if_needed(&key);
        }
    }

    /// A claim on a stream has ended. If only its planned worker has a claim now, a move has ended
    /// without a grant.
    pub(super) fn record_single_owner(&mut self, stream: &StreamKey, now: Moment) {
        let Some((set, planned)) = self.replica.planned(stream).filter(|(set, _)| set.is_limited())
        else {
            return;
        };
        let Some(on) = planned.planned_on(&set.spec().cluster, &self.ledger) else { return };
        let owner = WorkerKey { cluster: set.spec().cluster.clone(), worker: on.name.clone() };
        let claims = self.ledger.claims(stream);
        if !claims.is_empty() && claims.iter().all(|claim| *claim.worker == owner) {
            self.plan_now(&owner.cluster, now);
        }
    }

    /// Checks every stream that a worker has a claim on, in slices.
    pub(super) fn check_claims_of(&mut self, key: &WorkerKey, check: ClaimCheck) {
        self.sliced_tasks.add(SlicedTask::ClaimsOfWorker { key: key.clone(), after: None, check });
    }

    /// Has every worker that waits for a stream checked, because unreported leases have changed.
    /// Grants and plans may have waited for that, in other clusters too.
    pub(super) fn recheck_blocked(&mut self, now: Moment) {
        for cluster in self.plans.take_awaiting_reports() {
            if mutation::on(Mutation::PassedOverForgotten) {
                continue;
            }
            self.plan_now(&cluster, now);
        }
        self.sliced_tasks.add(SlicedTask::BlockedWorkers { after: None });
    }

    /// Plans reported streams on the worker that reported them, unless a worker with a higher token
    /// has them. A stream that is revoked keeps its planned worker.
    pub(super) fn plan_where_reported(&mut self, streams: &[HeldStream], key: &WorkerKey) {
        let owns_streams = self.observed(key).is_some_and(|worker| worker.owns_streams());
        let account_id = self.ledger.accounts().id_of(&key.cluster, &key.worker);
        let owner = account_id
            .filter(|_| owns_streams)
            .map(|account_id| Arc::new(PlannedWorker { name: key.worker.clone(), account_id }));
        for HeldStream { stream, .. } in streams {
            if stream.set.is_shares() {
                let Self { pipelines, replica, ledger, clusters, .. } = self;
                pipelines.plan_where_held(stream, key, Facts { replica, ledger, clusters });
            } else if let Some(owner) = &owner {
                self.plan_stream_where_held(stream, key, owner);
            }
        }
    }

    fn plan_stream_where_held(
        &mut self,
        stream: &StreamKey,
        key: &WorkerKey,
        owner: &Arc<PlannedWorker>,
    ) {
        let Some((set, planned)) = self.replica.planned(stream) else { return };
        let on = planned.planned_on(&set.spec().cluster, &self.ledger).map(|on| &on.name);
        let is_here = set.spec().cluster == key.cluster;
        if is_here
            && is_newest_holder(&self.ledger, stream, key, on)
            && let Some(planned) = self.replica.planned_mut(stream)
        {
            planned.keep_on(Arc::clone(owner));
        }
    }
}
