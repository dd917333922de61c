//! What happens by time. A timer is only a reminder: what it finds is judged anew.

use std::collections::BTreeSet;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, StreamKey, WorkerKey};

use super::Leader;
use super::slices::Look;
use crate::effect::{Freed, Notice, Order, WakeReason};
use crate::event::ConnId;
use crate::ledger::Phase;

/// A reminder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Leadership ends.
    Term,
    /// What a worker may hold unheard of has ended.
    Unheard(WorkerKey),
    /// A worker may have been silent for too long.
    Silence(WorkerKey),
    /// A worker may have been lost for so long that it counts as gone.
    Lost(WorkerKey),
    /// A claim's handover or time may be over.
    Claim(StreamKey),
    /// Streams are to be planned, or planned again.
    Plan(ClusterName),
    /// More pipelines are to be healed.
    Heal,
    /// An agent that was welcomed keeps others waiting no longer.
    Credit,
    /// The store may be asked again whether the term stands.
    AskTerm,
    /// The agent on this connection has waited for the store for too long.
    Unserved(ConnId),
}

impl Timer {
    /// Whether what it reminds of is judged by a worker's silence, and so only up to the moment
    /// up to which everything that arrived was taken in.
    fn awaits_silence(&self) -> bool {
        match self {
            Self::Unheard(_) | Self::Silence(_) | Self::Lost(_) => true,
            Self::Claim(_) | Self::Credit => true,
            Self::Term | Self::Plan(_) | Self::Heal => false,
            Self::AskTerm | Self::Unserved(_) => false,
        }
    }

    pub(super) fn reason(&self) -> WakeReason {
        match self {
            Self::Term => WakeReason::TermEnd,
            Self::Unheard(_) => WakeReason::HoldEnd,
            Self::Silence(_) | Self::Lost(_) => WakeReason::Silence,
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
                // Looked at in every settle.
                Timer::Term => {
                    if mutation::on(Mutation::GrantAfterTerm) {
                        continue;
                    }
                    early.push((at, Timer::Term));
                    break;
                }
                Timer::Unheard(key) => self.unheard_due(&key, now),
                Timer::Silence(key) => self.silence_due(&key, now),
                Timer::Lost(key) => self.lost_due(&key),
                Timer::Claim(stream) => self.claim_due(&stream, now),
                Timer::Plan(cluster) => self.plan_due(&cluster, now),
                Timer::AskTerm => self.ask_term(now),
                Timer::Unserved(conn) => self.unserved_due(conn),
                // Looked at in every settle.
                Timer::Heal | Timer::Credit => {}
            }
        }
        self.timers.extend(early);
    }

    /// Asks for a renewal of leadership, where something waits for one.
    pub(super) fn ask_confirmation(&mut self) {
        let waits = !(self.awaiting.is_empty() && self.unconfirmed.is_empty());
        if waits && !self.confirming {
            self.confirming = true;
            self.order(Order::Confirm);
        }
    }

    /// Whether no older leader can have granted, or grant, this agent anything.
    pub(super) fn is_confirmed(&self, worker: &crate::observed::Worker) -> bool {
        let confirmed = |at| self.ledger.confirmed_since(at);
        worker.forgetful_at.is_none_or(confirmed) || mutation::on(Mutation::SkipConfirm)
    }

    /// Reminds of the moment at which a worker counts as lost.
    pub(super) fn watch_silence(&mut self, key: &WorkerKey) {
        let ledger = &self.ledger;
        let at = ledger.free_at(key);
        self.timers.insert((at, Timer::Silence(key.clone())));
    }

    fn silence_due(&mut self, key: &WorkerKey, now: Moment) {
        let ledger = &self.ledger;
        let at = ledger.free_at(key);
        // What its agent said since may wait behind the report: it is looked at after that.
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
            self.lose_shares(key, now);
            self.pool_changed(key);
            self.plan_now(&key.cluster, now);
            self.watch_lost(key);
        }
        // Earlier agents' claims too: nobody else speaks of those.
        self.look_at_streams(key, Look::Ends);
    }

    /// Looks at the claims on a stream: a handover's deadline, or the end of a lease's time.
    pub(super) fn claim_due(&mut self, stream: &StreamKey, now: Moment) {
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
                // At the end of the hold it is looked at again.
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
            self.held_back.entry(cluster).or_default().insert(stream.clone());
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
            self.unconfirmed.insert(Timer::Claim(stream.clone()));
        }
        for at in reminders {
            self.timers.insert((at, Timer::Claim(stream.clone())));
        }
    }

    /// The same where any of them is on its way out: those that are owned end by silence alone.
    pub(super) fn ending_due(&mut self, stream: &StreamKey, now: Moment) {
        let claims = self.ledger.claims(stream);
        if claims.iter().any(|claim| claim.phase != Phase::Held) {
            self.claim_due(stream, now);
        }
    }

    /// A handover took too long: the next grant says that renewals leave the stream out.
    fn lapse(&mut self, stream: &StreamKey, key: &WorkerKey) {
        if let Some(worker) = self.worker_mut(key) {
            worker.news.insert(stream.clone());
            self.dirty.insert(key.clone());
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
                self.unconfirmed.insert(Timer::Unheard(key.clone()));
            }
        }
        if self.is_missing(key) {
            self.watch_lost(key);
        }
        self.pool_changed(key);
        self.plan_now(&key.cluster, now);
        self.wake_wants(now);
        self.check_left(key, now);
    }
}
