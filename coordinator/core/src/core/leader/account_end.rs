//! The end of the accounts of workers that are gone.
//!
//! Invariant: from before the first of its leases ends, nothing is planned or granted on a worker
//! that is gone.

use leasehold_types::message::RefusalReason;
use leasehold_types::{Moment, WorkerKey};

use super::Leader;
use crate::core::turn_budget::STEP;
use crate::effect::{Freed, Notice};
use crate::observed::Session;

impl Leader {
    /// The platform has declared these workers gone: ends their accounts, one after the other.
    pub(in crate::core) fn end_accounts(&mut self, gone: Vec<WorkerKey>) {
        for key in gone {
            self.pending_frees.add_account(key);
        }
    }

    /// Whether the account of this worker has to end and has not ended yet.
    pub(in crate::core) fn is_ending(&self, key: &WorkerKey) -> bool {
        self.pending_frees.has_account(key)
    }

    /// Whether the account of this worker has ended while its entry waits for those of former
    /// agents.
    pub(in crate::core) fn has_entry_to_remove(&self, key: &WorkerKey) -> bool {
        self.ledger.account(key).is_none() && !self.agent_rules().are_former_written(key)
    }

    /// Ends the accounts of workers that are gone, one after the other.
    pub(super) fn end_accounts_of_gone(&mut self, now: Moment) {
        while self.replica.budget().is_left()
            && let Some((key, has_begun)) = self.pending_frees.next_account()
        {
            if !has_begun {
                self.begin_ending(&key, now);
            }
            let most = STEP.min(self.replica.budget().left());
            if self.end_slice(&key, most, now) {
                self.gone(&key, now);
            }
        }
    }

    /// From before the first of its leases ends, nothing is planned or granted on a worker that is
    /// gone, and none of its shares counts.
    fn begin_ending(&mut self, key: &WorkerKey, now: Moment) {
        self.pending_frees.begin_account(key);
        if let Some(worker) = self.worker_mut(key) {
            worker.set_lost();
            self.pool_changed(key);
        }
        self.lose_worker(key, now);
    }

    /// Ends some of the leases of a worker that is gone; returns whether all have ended.
    fn end_slice(&mut self, key: &WorkerKey, most: usize, now: Moment) -> bool {
        let streams: Vec<_> = self.ledger.streams_of(key, None).take(most).cloned().collect();
        self.replica.budget_mut().spend(1 + streams.len());
        if streams.len() < most {
            return true;
        }
        let ended = streams.iter().flat_map(|stream| self.ledger.end_all(stream, key));
        let ended = ended.collect();
        self.ended(ended, Freed::Gone, now);
        false
    }

    /// Ends a worker's account at once, because the next agent of that name has said hello already.
    pub(super) fn end_account_now(&mut self, key: &WorkerKey, now: Moment) {
        if self.pending_frees.remove_account(key) {
            self.gone(key, now);
        }
    }

    /// Ends a worker's account: it has left, or the platform says that it is gone.
    pub(super) fn gone(&mut self, key: &WorkerKey, now: Moment) {
        self.pending_frees.remove_account(key);
        let known = self.ledger.account(key).is_some();
        self.lose_worker(key, now);
        let ended = self.ledger.gone(key);
        self.ended(ended, Freed::Gone, now);
        let cluster = self.clusters.get_mut(&key.cluster);
        let worker = cluster.and_then(|cluster| cluster.remove_worker(&key.worker));
        let conn = worker.as_ref().and_then(|worker| worker.session());
        if let Some(conn) = conn.map(Session::conn) {
            self.forget_conn(conn);
            let message = format!("worker {key} was declared gone");
            self.replica.refuse(conn, RefusalReason::GoAway, message);
        }
        if !known && worker.is_none() {
            return;
        }
        self.outgoing.remove(key);
        self.epoch_ahead.forget(key);
        if self.agent_rules().are_former_written(key) {
            self.forget_entries(vec![key.clone()]);
        }
        self.replica.notice(Notice::Gone(key.clone()));
        if key.worker.is_former() {
            self.update_entry_of_name(&key.present());
        }
        self.pool_changed(key);
        self.plan_now(&key.cluster, now);
        self.recheck_blocked(now);
    }
}
