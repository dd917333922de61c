//! From what the plan wants of a stream to what has to be said to whom.

use leasehold_types::{Moment, StreamKey, WorkerKey};

use super::{Core, Role};
use crate::ledger::Phase;
use crate::planner::streams::Unplaced;

impl Core {
    /// Looks at one stream: whoever has it and should not is told, and whoever should have it
    /// and may is granted it.
    pub(super) fn touch(&mut self, stream: &StreamKey, now: Moment) {
        let Role::Leads(term) = &self.role else { return };
        let planned = self.planned(stream);
        let on = planned.and_then(|(set, planned)| {
            let worker = planned.on.clone()?;
            Some(WorkerKey { cluster: set.spec.cluster.clone(), worker })
        });
        let claims = term.ledger.claims(stream);
        // Nobody else can take it: then whoever works on it goes on.
        let stays = match planned {
            Some((_, planned)) => {
                planned.on.is_none() && matches!(planned.unplaced, None | Some(Unplaced::NoWorker))
            }
            None => self.desired.unread.contains(&stream.set),
        };
        let goes_on =
            |key: &WorkerKey| stays && self.observed(key).is_some_and(|it| it.is_working());
        let unwanted = claims.iter().filter(|claim| {
            claim.phase == Phase::Held
                && Some(&claim.worker) != on.as_ref()
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
        let Some(key) = on else { return };
        let owns = self.observed(&key).is_some_and(|worker| worker.owns_streams());
        if !owns {
            // It was to go to a worker that drains or is lost meanwhile: plan again, at once.
            if !mine {
                self.plan_at(&key.cluster, now, now);
            }
            return;
        }
        if mine && !self.has_ended_claim(stream, &key) {
            return;
        }
        if let Some(worker) = self.worker_mut(&key) {
            worker.wants.insert(stream.clone());
            self.dirty.insert(key);
        }
    }

    /// Looks at every stream of a worker.
    pub(super) fn touch_worker(&mut self, key: &WorkerKey, now: Moment) {
        let account = self.ledger().and_then(|ledger| ledger.account(key));
        let streams = account.map(|account| account.streams.clone()).unwrap_or_default();
        for stream in &streams {
            self.touch(stream, now);
        }
    }

    /// Has everybody looked at who waits for a stream: what somebody may have held unheard of is
    /// known better now, and grants may have waited for that.
    pub(super) fn wake_wants(&mut self) {
        self.wants_woken = true;
    }

    /// A stream was reported: where nobody else has it, the plan leaves it there; where two have
    /// it, the higher token is the newer owner.
    pub(super) fn adopt_plan(&mut self, stream: &StreamKey, key: &WorkerKey) {
        let Some(ledger) = self.ledger() else { return };
        let owns = self.observed(key).is_some_and(|worker| worker.owns_streams());
        let Some((set, planned)) = self.planned(stream) else { return };
        if !owns || set.spec.cluster != key.cluster {
            return;
        }
        let token = ledger.claim(stream, key).map(|claim| claim.token);
        let present = planned.on.as_ref().and_then(|worker| {
            let other = WorkerKey { cluster: key.cluster.clone(), worker: worker.clone() };
            ledger.claim(stream, &other).map(|claim| claim.token)
        });
        if token > present
            && let Some(planned) = self.planned_mut(stream)
        {
            planned.on = Some(key.worker.clone());
        }
    }

    /// Whether all that the worker has of a stream is on its way out, so that it needs a new
    /// lease to go on.
    fn has_ended_claim(&self, stream: &StreamKey, key: &WorkerKey) -> bool {
        let claim = self.ledger().and_then(|ledger| ledger.claim(stream, key));
        claim.is_none_or(|claim| claim.phase != Phase::Held)
    }
}
