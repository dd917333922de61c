//! The end of sessions: by the agent, by the platform, by a broken rule, or because nothing can be
//! granted.

use leasehold_types::message::{DrainPhase, Jobs, RefusalReason};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, WorkerKey};

use super::Leader;
use super::sessions::EndedSession;
use crate::effect::Notice;
use crate::event::ConnId;
use crate::observed::{Session, Worker};

impl Leader {
    /// Forgets a connection that has ended; returns its worker.
    pub(super) fn forget_conn(&mut self, conn: ConnId) -> Option<WorkerKey> {
        let EndedSession { key, was_awaited, adoption } = self.sessions.end(conn)?;
        if was_awaited {
            self.record_present(&key, self.replica.heard());
        }
        if let Some(adoption) = adoption {
            self.drop_adoption(&adoption);
        }
        self.await_no_report(&key);
        Some(key)
    }

    pub(in crate::core) fn closed(&mut self, conn: ConnId) {
        let Some(key) = self.forget_conn(conn) else { return self.goodbyes.end(conn) };
        let Some(worker) = self.worker_mut(&key) else { return };
        let reported = worker.is_connected();
        worker.end_session();
        if self.absence_rules().is_missing(&key) {
            self.schedule_give_up(&key);
        }
        if reported {
            self.replica.notice(Notice::Disconnected(key.clone()));
            self.pool_changed(&key);
        }
    }

    /// Ends the connections of workers that the platform has removed and that may still run.
    pub(in crate::core) fn end_sessions(&mut self, removed: Vec<WorkerKey>) {
        if mutation::on(Mutation::RemovedIsGone) {
            return self.end_accounts(removed);
        }
        for key in removed {
            let session = self.observed(&key).and_then(|worker| worker.session());
            let Some(conn) = session.map(Session::conn) else { continue };
            self.closed(conn);
            let message = format!("the platform has removed worker {key}");
            self.replica.refuse(conn, RefusalReason::GoAway, message);
        }
    }

    /// Closes the connection of a worker's agent, which dials again.
    pub(super) fn disconnect(&mut self, key: &WorkerKey) {
        let session = self.worker_mut(key).and_then(Worker::end_session);
        if let Some(session) = session {
            self.forget_conn(session.conn());
            self.replica.close(session.conn());
        }
    }

    /// Sends an agent to look for another replica if it has reported, and nothing can be granted to
    /// it because the store does not answer: this replica may have been deposed without knowing.
    /// The registration that it waits for continues without its connection.
    pub(super) fn unserved_due(&mut self, conn: ConnId) {
        let Some(key) = self.sessions.worker(conn).cloned() else { return };
        let Some(worker) = self.observed(&key) else { return };
        let waits = worker
            .session()
            .is_some_and(|session| session.has_reported() && session.is_snapshot_due());
        let for_store = !self.grant_rules().is_confirmed(worker)
            || self.grant_rules().terms_for(&key).is_none();
        if waits && for_store {
            self.closed(conn);
            let message = "the store of leadership does not answer this replica".into();
            self.replica.refuse(conn, RefusalReason::NotLeader(None), message);
        }
    }

    /// Forgets a worker that has left, once nothing can be outstanding for it: neither leases that
    /// its agent reported nor unreported leases of an earlier agent. Returns whether it has.
    pub(super) fn check_left(&mut self, key: &WorkerKey, now: Moment) -> bool {
        let Some(worker) = self.observed(key) else { return false };
        let heard = worker.session().is_none_or(Session::has_reported);
        let left = worker.drain().phase() == DrainPhase::Leaving && worker.has_reported() && heard;
        let conn = worker.session().map(Session::conn);
        let unreported = self.ledger.unreported().until(key);
        if unreported.is_some() && !mutation::on(Mutation::GoodbyeForgetsUnreported) {
            return false;
        }
        let account = self.ledger.account(key);
        let empty = account.is_some_and(|account| {
            account.jobs() == Jobs::Running(0)
                && account.in_effect() == 0
                && account.unaccounted().is_none()
                && account.stream_count() == 0
        });
        if left && empty {
            if let Some(conn) = conn {
                self.forget_conn(conn);
                self.begin_goodbye(key, conn);
            }
            if let Some(worker) = self.worker_mut(key) {
                worker.end_session();
            }
            self.gone(key, now);
        }
        left && empty
    }

    /// The worker's agent has left, and is answered once its entry is removed.
    fn begin_goodbye(&mut self, key: &WorkerKey, conn: ConnId) {
        if mutation::on(Mutation::GoodbyeAnsweredEarly) {
            return self.answer_goodbye(key, conn);
        }
        // Its agent dials again, or another one has the name.
        if let Some(earlier) = self.goodbyes.begin(key.clone(), conn) {
            self.replica.close(earlier);
        }
    }

    /// The platform has removed these workers' entries, and leadership was confirmed after that.
    pub(in crate::core) fn unregistered(&mut self, workers: Vec<WorkerKey>) {
        for key in workers {
            self.entry_is_removed(&key);
        }
    }

    /// The store has no entry of an agent that said goodbye: it was removed, or that of another
    /// agent of the name was written in its place.
    pub(super) fn entry_is_removed(&mut self, key: &WorkerKey) {
        if let Some(conn) = self.goodbyes.take(key) {
            self.answer_goodbye(key, conn);
        }
    }

    fn answer_goodbye(&mut self, key: &WorkerKey, conn: ConnId) {
        self.replica.refuse(conn, RefusalReason::Left, format!("worker {key} has left"));
    }

    pub(super) fn disconnect_offender(
        &mut self,
        conn: ConnId,
        key: &WorkerKey,
        rule: &'static str,
    ) {
        self.replica.notice(Notice::ProtocolViolation { worker: key.clone(), rule });
        self.closed(conn);
        self.replica.refuse(conn, RefusalReason::Invalid, rule.into());
    }
}
