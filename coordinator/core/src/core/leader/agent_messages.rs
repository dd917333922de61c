//! The messages of agents after their hello: reports and beats.
//!
//! Invariant: a message that breaks the protocol ends its session and changes nothing else.

use std::time::Duration;

use leasehold_types::message::{Beat, DrainPhase, Report, WorkerFailure};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, WorkerKey};

use super::sliced_tasks::ClaimCheck;
use super::{Leader, Timer};
use crate::effect::{Freed, Notice};
use crate::event::ConnId;
use crate::observed::{BeatChanges, FailureChange, Worker};

/// The rule that an agent breaks which reports again.
const SECOND_REPORT: &str = "a second report on one connection";

impl Leader {
    pub(in crate::core) fn report(&mut self, conn: ConnId, report: Report, now: Moment) {
        let Some(key) = self.sessions.worker(conn).cloned() else { return };
        let epoch = self.ledger.epoch();
        let Some(worker) = self.clusters.worker_mut(&key) else { return };
        let Some(session) = worker.session() else { return };
        if session.has_reported() || report.epoch != epoch {
            let rule =
                if session.has_reported() { SECOND_REPORT } else { "a report of another epoch" };
            return self.disconnect_offender(conn, &key, rule);
        }
        if self.sessions.adoption(conn).is_some() {
            return self.disconnect_offender(conn, &key, SECOND_REPORT);
        }
        self.begin_adoption(conn, &key, report, now);
    }

    /// Notes whether a worker fails its check, and says so where that has changed.
    pub(super) fn record_failure(&mut self, key: &WorkerKey, failure: Option<WorkerFailure>) {
        let change = self.worker_mut(key).and_then(|worker| worker.set_failure(failure));
        match change {
            Some(FailureChange::Fails(failure)) => {
                self.replica.notice(Notice::Failing { worker: key.clone(), failure });
            }
            Some(FailureChange::Works) => self.replica.notice(Notice::Recovered(key.clone())),
            None => {}
        }
    }

    /// Acts on a report that is adopted.
    pub(super) fn after_report(&mut self, conn: ConnId, key: &WorkerKey, now: Moment) {
        self.replica.notice(Notice::Joined(key.clone()));
        if self.check_left(key, now) {
            return;
        }
        self.register_if_needed(key);
        self.schedule_silence_check(key);
        self.outgoing.mark(key.clone());
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
        let patience = self
            .clusters
            .get(&key.cluster)
            .map_or(Duration::ZERO, |cluster| cluster.spec().ttl / 2);
        self.timers.set(now + patience, Timer::Unserved(conn));
    }

    pub(in crate::core) fn beat(&mut self, conn: ConnId, beat: Beat, now: Moment) {
        let Some(key) = self.sessions.worker(conn).cloned() else { return };
        let Some(beat) = self.wait_for_adoption(conn, beat, now) else { return };
        let Some(worker) = self.clusters.worker_mut(&key) else { return };
        let Some(session) = worker.session() else { return };
        if session.has_reported() && beat.nonce <= session.nonce() {
            return;
        }
        let is_next =
            beat.nonce == session.nonce().next() || mutation::on(Mutation::GapInBeatsTaken);
        let rule = if !session.has_reported() {
            Some("a beat before the report")
        } else if beat.epoch != self.ledger.epoch() {
            Some("a beat of another epoch")
        } else {
            (!is_next).then_some("a gap in the beats")
        };
        if let Some(rule) = rule {
            return self.disconnect_offender(conn, &key, rule);
        }
        let had_begun = worker.drain().has_begun();
        let BeatChanges { is_back, takes_nothing } = worker.record_beat(&beat);
        let mut account = self.ledger.open(&key, now);
        account.record_beat(&beat, now);
        drop(account);
        for release in beat.released {
            let ended = self.ledger.release(&key, &release.stream, release.token);
            self.ended(ended, Freed::Released, now);
        }
        if beat.drain == DrainPhase::Leaving {
            let ended = self.ledger.release_unapplied(&key, beat.applied);
            self.ended(ended, Freed::Released, now);
        }
        self.outgoing.mark_unanswered(key.clone());
        let worker = self.worker_mut(&key);
        let acknowledged = worker.map(|worker| worker.streams_mut().acknowledge(beat.applied));
        for stream in acknowledged.unwrap_or_default() {
            self.pipelines.leases_changed(&stream);
        }
        self.record_failure(&key, beat.failure);
        let has_begun = self.observed(&key).is_some_and(|worker| worker.drain().has_begun());
        let begins = !had_begun && has_begun;
        if begins {
            self.replica.notice(Notice::DrainStarted(key.clone()));
        }
        if begins || takes_nothing {
            self.drain_changed(&key);
        }
        if takes_nothing {
            self.check_claims_of(&key, ClaimCheck::Plan);
        }
        if takes_nothing || is_back {
            self.pool_changed(&key);
            self.plan_soon(&key.cluster, now);
        }
        if is_back {
            self.schedule_silence_check(&key);
            self.pipelines.recheck_class(&key.cluster, &self.replica);
        }
        self.check_left(&key, now);
    }

    /// The connection takes a message again.
    pub(in crate::core) fn sent(&mut self, conn: ConnId) {
        let Some(key) = self.sessions.worker(conn).cloned() else { return };
        let session = self.worker_mut(&key).and_then(Worker::session_mut);
        let Some(session) = session.filter(|session| session.conn() == conn) else { return };
        session.written();
        if self.sessions.written(conn) {
            self.outgoing.mark_unanswered(key);
        }
    }
}
