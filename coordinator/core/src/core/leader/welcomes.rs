//! Welcomes agents in the order of their places, as far as there are credits for their reports.

use std::time::Duration;

use leasehold_types::message::{CoordinatorMessage, Terms, Welcome};
use leasehold_types::{Moment, WorkerKey};

use super::{Leader, Timer};
use crate::event::ConnId;
use crate::observed::Worker;

/// How long a welcomed agent that has not reported uses up a credit.
const CREDIT_MAX: Duration = Duration::from_secs(1);

impl Leader {
    /// The agent's hello was accepted: it is welcomed when its turn comes.
    pub(super) fn await_welcome(&mut self, conn: ConnId, key: &WorkerKey) {
        let place = self.observed(key).and_then(Worker::welcome_place);
        let place = self.sessions.await_welcome(conn, key, place);
        if let Some(worker) = self.worker_mut(key) {
            worker.set_welcome_place(place);
        }
    }

    /// Welcomes as many as there are credits for, in the order in which they came.
    pub(super) fn welcome_waiting(&mut self, now: Moment) {
        self.end_credits();
        while let Some((conn, key)) = self.sessions.next_welcome(&self.replica.config()) {
            self.welcome(conn, &key, now);
        }
        if let Some(at) = self.sessions.next_credit_end() {
            self.timers.set(at, Timer::Credit);
        }
    }

    /// Takes back the credits of agents that have not reported in time.
    fn end_credits(&mut self) {
        let heard = self.replica.heard();
        for key in self.sessions.end_credits(heard) {
            self.await_no_report(&key);
            self.record_present(&key, heard);
            if self.absence_rules().is_missing(&key) {
                self.schedule_give_up(&key);
            }
        }
    }

    /// Plans no longer wait for this worker's report longer than for that of a worker without a
    /// connection.
    pub(super) fn await_no_report(&mut self, key: &WorkerKey) {
        if self.ledger.await_no_report(key) {
            self.timers.set(self.replica.heard(), Timer::Unreported(key.clone()));
        }
    }

    fn welcome(&mut self, conn: ConnId, key: &WorkerKey, now: Moment) {
        let epoch = self.ledger.epoch();
        let Some(spec) = self.clusters.get(&key.cluster).map(|cluster| cluster.spec().clone())
        else {
            return;
        };
        let terms = Terms {
            reserve: self.grant_rules().reserve(key, spec.ttl),
            ..self.replica.terms(&spec)
        };
        let Some(session) = self.worker_mut(key).and_then(Worker::session_mut) else { return };
        session.welcome_sent();
        let protocol = session.protocol();
        self.sessions.welcome(conn, now + CREDIT_MAX);
        let (term, cell) = (self.term, self.cell);
        let welcome = Welcome { epoch, term, cell, answers_goodbye: true, protocol, terms };
        self.replica.send(conn, CoordinatorMessage::Welcome(welcome));
    }
}
