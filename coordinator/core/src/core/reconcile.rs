//! From what the plan wants of a stream to what has to be said to whom.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, StreamKey, WorkerKey};

use super::slices::{Look, Walk};
use super::{Core, Role};
use crate::ledger::Phase;

impl Core {
    /// Looks at one stream: whoever has it and should not is told, and whoever should have it
    /// and may is granted it.
    pub(super) fn touch(&mut self, stream: &StreamKey, now: Moment) {
        let Role::Leads(term) = &self.role else { return };
        let wanted = self.wanted(stream);
        let on = wanted.and_then(|wanted| wanted.owner());
        let claims = term.ledger.claims(stream);
        let stays = match wanted {
            Some(wanted) => wanted.on.is_none() && wanted.stays,
            None => self.desired.unread.contains(&stream.set),
        };
        let goes_on =
            |key: &WorkerKey| stays && self.observed(key).is_some_and(|it| it.is_working());
        let unwanted = claims.iter().filter(|claim| {
            claim.phase == Phase::Held
                && !wanted.is_some_and(|wanted| wanted.is_met_by(claim))
                && !goes_on(&claim.worker)
        });
        let unwanted: Vec<_> = unwanted.map(|claim| claim.worker.clone()).collect();
        let mine = on.as_ref().is_some_and(|on| claims.iter().any(|it| it.worker == *on));
        for key in unwanted {
            if let Some(worker) = self.worker_mut(&key) {
                worker.news.insert(stream.clone());
                self.dirty.insert(key);
            }
        }
        self.note_share(stream);
        let Some(key) = on else { return };
        let owns = self.observed(&key).is_some_and(|worker| worker.owns_streams());
        if !owns {
            // It was to go to a worker that drains or is lost meanwhile: plan again, at once. If
            // that worker is back by then, the plan is news nevertheless.
            if !mine {
                if let Some(planned) = self.planned_mut(stream) {
                    planned.on = None;
                }
                self.plan_at(&key.cluster, now, now);
            }
            return;
        }
        if mine && !self.has_ended_claim(stream, &key) {
            return;
        }
        if let Some(worker) = self.worker_mut(&key) {
            worker.blocked.remove(stream);
            worker.wants.insert(stream.clone());
            self.dirty.insert(key);
        }
    }

    /// Looks at every stream of a worker.
    pub(super) fn touch_worker(&mut self, key: &WorkerKey) {
        let (key, after, look) = (key.clone(), None, Look::Wanted);
        self.walks.push_back(Walk::Worker { key, after, look });
    }

    /// Has everybody looked at who waits for a stream: what somebody may have held unheard of is
    /// known better now, and grants and plans may have waited for that, of other clusters too.
    pub(super) fn wake_wants(&mut self, now: Moment) {
        if self.ledger().is_none() {
            return;
        }
        for cluster in std::mem::take(&mut self.unheard_of) {
            if mutation::on(Mutation::PassedOverForgotten) {
                continue;
            }
            self.plan_at(&cluster, now, now);
        }
        let waits = self.walks.iter().any(|walk| matches!(walk, Walk::Waiting { after: None }));
        if !waits {
            self.walks.push_back(Walk::Waiting { after: None });
        }
    }

    /// A stream was reported: where nobody else has it, the plan leaves it there; where two have
    /// it, the higher token is the newer owner.
    pub(super) fn adopt_plan(&mut self, stream: &StreamKey, key: &WorkerKey) {
        let Some(ledger) = self.ledger() else { return };
        let Some(worker) = self.observed(key) else { return };
        // A share's place is left to it until it drains; a stream's is another's at once.
        let owns = worker.owns_streams() || (stream.set.is_shares() && !worker.lost);
        let Some(wanted) = self.wanted(stream) else { return };
        if !owns || *wanted.cluster != key.cluster {
            return;
        }
        let claim = ledger.claim(stream, key);
        let present = wanted.owner().and_then(|other| ledger.claim(stream, &other));
        let load = claim.and_then(|claim| claim.load);
        if claim.map(|claim| claim.token) > present.map(|claim| claim.token) {
            self.leave_on(stream, key, load);
        }
    }

    /// Whether all that the worker has of a stream is on its way out, so that it needs a new
    /// lease to go on.
    fn has_ended_claim(&self, stream: &StreamKey, key: &WorkerKey) -> bool {
        let claim = self.ledger().and_then(|ledger| ledger.claim(stream, key));
        claim.is_none_or(|claim| claim.phase != Phase::Held)
    }
}
