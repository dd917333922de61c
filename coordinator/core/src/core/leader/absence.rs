//! Workers that are absent: silent for longer than their leases last, not connected under this
//! leader, or missing for so long that they are given up.
//!
//! Invariant: absence is measured up to the moment before which every message is handled, and frees
//! something only once leadership was renewed after it.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, WorkerKey};

use super::facts::Facts;
use super::sessions::Sessions;
use super::sliced_tasks::ClaimCheck;
use super::{Leader, Timer};
use crate::desired::Desired;
use crate::effect::Notice;
use crate::ledger::Account;

/// What absence is judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct AbsenceRules<'a> {
    facts: Facts<'a>,
    sessions: &'a Sessions,
    /// When the term began: nothing was heard of any agent before.
    began_at: Moment,
}

impl Leader {
    /// The rules for absence now.
    pub(super) fn absence_rules(&self) -> AbsenceRules<'_> {
        AbsenceRules { facts: self.facts(), sessions: &self.sessions, began_at: self.began_at }
    }

    /// Sets a timer for the moment at which a worker counts as lost.
    pub(super) fn schedule_silence_check(&mut self, key: &WorkerKey) {
        let ledger = &self.ledger;
        let at = ledger.free_at(key);
        self.timers.set(at, Timer::Silence(key.clone()));
    }

    /// A worker may have been silent for longer than its leases last: then it counts as lost.
    pub(super) fn silence_due(&mut self, key: &WorkerKey, now: Moment) {
        let ledger = &self.ledger;
        let at = ledger.free_at(key);
        // Later messages of the agent may wait behind the report; the end of the adoption checks
        // this again.
        if ledger.account(key).is_some_and(Account::is_adopting) {
            return;
        }
        let Some(worker) = self.observed(key) else { return };
        if self.replica.heard() < at {
            self.timers.set(at, Timer::Silence(key.clone()));
            return;
        }
        if !worker.is_lost() {
            if let Some(mut account) = self.ledger.account_mut(key) {
                account.silent();
            }
            if let Some(worker) = self.worker_mut(key) {
                worker.set_lost();
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

    /// The unreported leases of a worker may have ended, or plans no longer wait for its report.
    pub(super) fn unreported_due(&mut self, key: &WorkerKey, now: Moment) {
        let heard = self.replica.heard();
        let ledger = &mut self.ledger;
        ledger.settle_unreported(key, heard);
        if let Some(mut account) = ledger.account_mut(key) {
            account.settle_unknown(heard);
        }
        let ledger = &self.ledger;
        if let Some(until) = ledger.unreported().until(key) {
            let confirmed = ledger.confirmed_since(until);
            if until > heard {
                self.timers.set(until, Timer::Unreported(key.clone()));
            } else if !confirmed {
                self.renewal.delay(Timer::Unreported(key.clone()));
            }
        }
        if self.absence_rules().is_missing(key) {
            self.schedule_give_up(key);
        }
        self.pool_changed(key);
        self.plan_now(&key.cluster, now);
        self.recheck_blocked(now);
        self.check_left(key, now);
    }

    /// Sets a timer for the moment at which a missing worker counts as gone.
    pub(super) fn schedule_give_up(&mut self, key: &WorkerKey) {
        if let Some(at) = self.absence_rules().give_up_at(key) {
            self.timers.set(at, Timer::GiveUp(key.clone()));
        }
    }

    /// The same for workers that are missing already, if their cluster's `lost_after` differs from
    /// `before`.
    pub(super) fn reschedule_give_ups(&mut self, before: &Desired) {
        let ledger = &self.ledger;
        let after = |desired: &Desired, name: &ClusterName| desired.clusters.get(name)?.lost_after;
        let clusters = self.replica.desired().clusters.keys();
        let changed =
            clusters.filter(|name| after(before, name) != after(self.replica.desired(), name));
        let workers = changed.flat_map(|name| ledger.accounts().of(name));
        let missing =
            workers.map(|(key, _)| key).filter(|key| self.absence_rules().is_missing(key));
        for key in missing.cloned().collect::<Vec<_>>() {
            self.schedule_give_up(&key);
        }
    }

    /// A worker may have been missing for so long that it counts as gone.
    pub(super) fn give_up_due(&mut self, key: &WorkerKey) {
        let Some(at) =
            self.absence_rules().give_up_at(key).filter(|_| self.absence_rules().is_missing(key))
        else {
            return;
        };
        if self.pending_frees.has_account(key) {
            return;
        }
        if self.replica.heard() < at {
            self.timers.set(at, Timer::GiveUp(key.clone()));
            return;
        }
        // Its agent may have dialled a successor of this leader.
        if !self.ledger.confirmed_since(at) {
            self.renewal.delay(Timer::GiveUp(key.clone()));
            return;
        }
        let cluster = self.clusters.get(&key.cluster);
        let after = cluster.and_then(|cluster| cluster.spec().lost_after).unwrap_or_default();
        self.replica.notice(Notice::GivenUp { worker: key.clone(), after });
        self.end_accounts(vec![key.clone()]);
    }

    /// A worker's agent runs, though it may not have reported.
    pub(super) fn record_present(&mut self, key: &WorkerKey, at: Moment) {
        if let Some(mut account) = self.ledger.account_mut(key) {
            account.record_present(at);
        }
    }
}

impl AbsenceRules<'_> {
    /// When a missing worker counts as gone, if the cluster defines that. A new leader counts from
    /// the end of the leases granted before its term, and not from before its term: agents may have
    /// dialled all the time without a leader to hear them. A sign that the agent runs ends its
    /// silence, also if the agent was refused.
    pub(super) fn give_up_at(&self, key: &WorkerKey) -> Option<Moment> {
        let after = self.facts.clusters.get(&key.cluster)?.spec().lost_after?;
        let ledger = self.facts.ledger;
        let account = ledger.account(key)?;
        let unreported = ledger.unreported().until(key).unwrap_or_default();
        let ignores_term = mutation::on(Mutation::SilentWithoutLeader);
        let hearing_since = if ignores_term { Moment::EARLIEST } else { self.began_at };
        let leases_end = ledger.free_at(key).max(unreported);
        Some(leases_end.max(account.present_until()).max(hearing_since) + after)
    }

    /// Whether a worker that has an account is lost or has not connected, its agent waits for no
    /// welcome, and no report of it waits.
    pub(super) fn is_missing(&self, key: &WorkerKey) -> bool {
        let account = self.facts.ledger.account(key);
        if account.is_none_or(Account::is_adopting) {
            return false;
        }
        let Some(worker) = self.facts.observed(key) else { return true };
        let session = worker.session();
        let is_awaited = session.is_some_and(|session| self.sessions.awaits(session.conn()));
        !is_awaited && (worker.is_lost() || (!worker.has_reported() && session.is_none()))
    }
}
