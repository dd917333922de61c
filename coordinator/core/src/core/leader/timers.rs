//! Timers. A timer is only a reminder: its handler checks the present state again.

use std::collections::BTreeSet;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, StreamKey, WorkerKey};

use super::Leader;
use super::sliced_work::ClaimCheck;
use crate::desired::Desired;
use crate::effect::{Freed, Notice, Order, WakeReason};
use crate::event::ConnId;
use crate::ledger::Phase;

/// A reminder to check something at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Timer {
    /// Leadership ends.
    Term,
    /// The unheard leases of a worker may have ended.
    Unheard(WorkerKey),
    /// A worker may have been silent for too long.
    Silence(WorkerKey),
    /// A worker may have been lost for so long that it counts as gone.
    GiveUp(WorkerKey),
    /// A claim's handover or time may be over.
    Claim(StreamKey),
    /// Streams are to be planned, or planned again.
    Plan(ClusterName),
    /// More pipelines are to be healed.
    Heal,
    /// The credit of a welcomed agent ends, so others may be welcomed.
    Credit,
    /// The store may be asked again whether the term stands.
    AskTerm,
    /// The agent on this connection has waited for the store for too long.
    Unserved(ConnId),
}

impl Timer {
    /// Whether it depends on a worker's silence. Such a timer runs only up to the moment before
    /// which every message has been handled.
    fn awaits_silence(&self) -> bool {
        match self {
            Self::Unheard(_) | Self::Silence(_) | Self::GiveUp(_) => true,
            Self::Claim(_) | Self::Credit => true,
            Self::Term | Self::Plan(_) | Self::Heal => false,
            Self::AskTerm | Self::Unserved(_) => false,
        }
    }

    pub(super) fn reason(&self) -> WakeReason {
        match self {
            Self::Term => WakeReason::TermEnd,
            Self::Unheard(_) => WakeReason::HoldEnd,
            Self::Silence(_) | Self::GiveUp(_) => WakeReason::Silence,
            Self::Claim(_) => WakeReason::LeaseEnd,
            Self::Plan(_) | Self::Heal => WakeReason::Settle,
            Self::Credit | Self::AskTerm | Self::Unserved(_) => WakeReason::Session,
        }
    }
}

impl Leader {
    pub(super) fn run_timers(&mut self, now: Moment) {
        let mut early = Vec::new();
        self.timers_wait = false;
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            if !self.replica.budget.is_left() {
                self.timers_wait = true;
                break;
            }
            let Some((at, timer)) = self.timers.pop_first() else { break };
            if timer.awaits_silence() && at > self.replica.heard {
                early.push((at, timer));
                continue;
            }
            self.replica.budget.spend(1);
            match timer {
                // Every settle checks this.
                Timer::Term => {
                    if mutation::on(Mutation::GrantAfterTerm) {
                        continue;
                    }
                    early.push((at, Timer::Term));
                    break;
                }
                Timer::Unheard(key) => self.unheard_due(&key, now),
                Timer::Silence(key) => self.silence_due(&key, now),
                Timer::GiveUp(key) => self.give_up_due(&key),
                Timer::Claim(stream) => self.claim_due(&stream, now),
                Timer::Plan(cluster) => self.plan_due(&cluster, now),
                Timer::AskTerm => self.ask_term(now),
                Timer::Unserved(conn) => self.unserved_due(conn),
                // Every settle checks this.
                Timer::Heal | Timer::Credit => {}
            }
        }
        self.timers.extend(early);
    }

    /// Requests a renewal of leadership if something waits for one.
    pub(super) fn ask_confirmation(&mut self) {
        let waits =
            !(self.workers_awaiting_renewal.is_empty() && self.timers_awaiting_renewal.is_empty());
        if waits && !self.renewal_requested {
            self.renewal_requested = true;
            self.order(Order::Confirm);
        }
    }

    /// Whether no other leader can have granted, or can still grant, this agent anything.
    pub(super) fn is_confirmed(&self, worker: &crate::observed::Worker) -> bool {
        let confirmed = |at| self.ledger.confirmed_since(at);
        worker.no_epoch_since.is_none_or(confirmed) || mutation::on(Mutation::SkipConfirm)
    }

    /// Sets a timer for the moment at which a worker counts as lost.
    pub(super) fn schedule_silence_check(&mut self, key: &WorkerKey) {
        let ledger = &self.ledger;
        let at = ledger.free_at(key);
        self.timers.insert((at, Timer::Silence(key.clone())));
    }

    fn silence_due(&mut self, key: &WorkerKey, now: Moment) {
        let ledger = &self.ledger;
        let at = ledger.free_at(key);
        // Later messages of the agent may wait behind the report; the end of the adoption checks
        // this again.
        if ledger.account(key).is_some_and(|account| account.adopting) {
            return;
        }
        let Some(worker) = self.observed(key) else { return };
        if self.replica.heard < at {
            self.timers.insert((at, Timer::Silence(key.clone())));
            return;
        }
        if !worker.lost {
            if let Some(mut account) = self.ledger.account_mut(key) {
                account.silent();
            }
            if let Some(worker) = self.worker_mut(key) {
                worker.lost = true;
            }
            self.replica.notice(Notice::Lost(key.clone()));
            self.lose_worker(key, now);
            self.pool_changed(key);
            self.plan_now(&key.cluster, now);
            self.schedule_give_up(key);
        }
        // This includes the claims of earlier agents, which no other check covers.
        self.check_claims_of(key, ClaimCheck::Expiry);
    }

    /// Checks the claims on a stream for the end of a handover's deadline or of a lease's time.
    pub(super) fn claim_due(&mut self, stream: &StreamKey, now: Moment) {
        self.keep_if_pinned(stream);
        let heard = self.replica.heard;
        let ledger = &self.ledger;
        let mut reminders = Vec::new();
        let mut lapsing = Vec::new();
        let mut held = Vec::new();
        let mut over = false;
        let mut unconfirmed = false;
        for claim in ledger.claims(stream) {
            if let Phase::Revoking { deadline } = claim.phase {
                match deadline <= heard {
                    true => lapsing.push(claim.worker.clone()),
                    false => reminders.push(deadline),
                }
            }
            match ledger.claim_free_at(claim) {
                // The end of the hold checks it again.
                Some(at)
                    if at <= heard && ledger.held_by(&claim.worker.cluster, heard).is_some() =>
                {
                    held.push(claim.worker.cluster.clone());
                }
                Some(at) if at <= heard && !ledger.confirmed_since(at) => unconfirmed = true,
                Some(at) if at <= heard => over = true,
                Some(at) if claim.phase != Phase::Held => reminders.push(at),
                Some(_) | None => {}
            }
        }
        for cluster in held {
            self.ended_during_hold.entry(cluster).or_default().insert(stream.clone());
        }
        for key in lapsing {
            self.lapse(stream, &key);
        }
        if over {
            let ended = self.ledger.free_by_time(stream, heard);
            let holders: BTreeSet<_> = ended.iter().map(|it| it.worker.clone()).collect();
            self.ended(ended, Freed::Expired, now);
            for key in &holders {
                self.check_left(key, now);
            }
        }
        if unconfirmed {
            self.timers_awaiting_renewal.insert(Timer::Claim(stream.clone()));
        }
        for at in reminders {
            self.timers.insert((at, Timer::Claim(stream.clone())));
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
            worker.revoking.insert(stream.clone());
            self.outgoing.mark(key.clone());
        }
    }

    fn unheard_due(&mut self, key: &WorkerKey, now: Moment) {
        let heard = self.replica.heard;
        let ledger = &mut self.ledger;
        ledger.settle_unheard(key, heard);
        if let Some(mut account) = ledger.account_mut(key) {
            account.settle_unknown(heard);
        }
        let ledger = &self.ledger;
        if let Some(until) = ledger.unheard_until(key) {
            let confirmed = ledger.confirmed_since(until);
            if until > heard {
                self.timers.insert((until, Timer::Unheard(key.clone())));
            } else if !confirmed {
                self.timers_awaiting_renewal.insert(Timer::Unheard(key.clone()));
            }
        }
        if self.is_missing(key) {
            self.schedule_give_up(key);
        }
        self.pool_changed(key);
        self.plan_now(&key.cluster, now);
        self.recheck_blocked(now);
        self.check_left(key, now);
    }

    /// Sets a timer for the moment at which a missing worker counts as gone.
    pub(super) fn schedule_give_up(&mut self, key: &WorkerKey) {
        if let Some(at) = self.give_up_at(key) {
            self.timers.insert((at, Timer::GiveUp(key.clone())));
        }
    }

    /// The same for workers that are missing already, if their cluster's `lost_after` differs from
    /// `before`.
    pub(super) fn reschedule_give_ups(&mut self, before: &Desired) {
        let ledger = &self.ledger;
        let after = |desired: &Desired, name: &ClusterName| desired.clusters.get(name)?.lost_after;
        let clusters = self.replica.desired.clusters.keys();
        let changed =
            clusters.filter(|name| after(before, name) != after(&self.replica.desired, name));
        let workers = changed.flat_map(|name| ledger.accounts_of(name));
        let missing = workers.map(|(key, _)| key).filter(|key| self.is_missing(key));
        for key in missing.cloned().collect::<Vec<_>>() {
            self.schedule_give_up(&key);
        }
    }

    pub(super) fn give_up_due(&mut self, key: &WorkerKey) {
        let Some(at) = self.give_up_at(key).filter(|_| self.is_missing(key)) else { return };
        if self.is_ending(key) {
            return;
        }
        if self.replica.heard < at {
            self.timers.insert((at, Timer::GiveUp(key.clone())));
            return;
        }
        // Its agent may have dialled a successor of this leader.
        if !self.ledger.confirmed_since(at) {
            self.timers_awaiting_renewal.insert(Timer::GiveUp(key.clone()));
            return;
        }
        let cluster = self.clusters.get(&key.cluster);
        let after = cluster.and_then(|cluster| cluster.spec.lost_after).unwrap_or_default();
        self.replica.notice(Notice::GivenUp { worker: key.clone(), after });
        self.end_accounts(vec![key.clone()]);
    }

    /// When a missing worker counts as gone, if the cluster defines that. A new leader counts from
    /// the end of the leases granted before its term, and not from before its term: agents may have
    /// dialled all the time without a leader to hear them. A sign that the agent runs ends its
    /// silence, also if the agent was refused.
    fn give_up_at(&self, key: &WorkerKey) -> Option<Moment> {
        let after = self.clusters.get(&key.cluster)?.spec.lost_after?;
        let ledger = &self.ledger;
        let account = ledger.account(key)?;
        let unheard = ledger.unheard_until(key).unwrap_or_default();
        let hearing_since = match mutation::on(Mutation::SilentWithoutLeader) {
            true => Moment(0),
            false => self.began_at,
        };
        let leases_end = ledger.free_at(key).max(unheard);
        Some(leases_end.max(account.present_until).max(hearing_since) + after)
    }

    /// A worker's agent runs, though it may not have reported.
    pub(super) fn note_present(&mut self, key: &WorkerKey, at: Moment) {
        if let Some(mut account) = self.ledger.account_mut(key) {
            account.present_until = account.present_until.max(at);
        }
    }

    /// Whether a worker that has an account is lost or has not connected, its agent waits for no
    /// welcome, and no report of it waits.
    pub(super) fn is_missing(&self, key: &WorkerKey) -> bool {
        let account = self.ledger.account(key);
        if account.is_none_or(|account| account.adopting) {
            return false;
        }
        let Some(worker) = self.observed(key) else { return true };
        let session = worker.session.as_ref();
        let is_awaited = session.is_some_and(|session| self.admission.awaits(session.conn));
        !is_awaited && (worker.lost || (!worker.reported && session.is_none()))
    }
}
