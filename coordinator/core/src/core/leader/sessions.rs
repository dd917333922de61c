//! Agents' connections: the handshake, beats and their end. A coordinator adopts from the report,
//! never from the hello.

use std::sync::Arc;
use std::time::Duration;

use leasehold_types::limits::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, WORKERS_MAX};
use leasehold_types::message::{
    Beat, DrainOrder, DrainPhase, Hello, Jobs, RefusalReason, Report, WorkerFailure,
};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, WorkerKey};

use super::sliced_tasks::ClaimCheck;
use super::{Leader, Timer};
use crate::effect::{Effect, Freed, Notice};
use crate::event::ConnId;
use crate::observed::{Session, Worker};

pub(super) type HelloRefusal = (RefusalReason, String);

impl Leader {
    pub(in crate::core) fn hello(
        &mut self,
        conn: ConnId,
        hello: Hello,
        peer: Option<Arc<str>>,
        now: Moment,
    ) {
        let agent = hello.identity;
        let identity = agent.filter(|_| self.replica.config.keeps_names);
        let hello = Hello { identity, ..hello };
        let key = self.occupant(&hello);
        if !self.is_of_another(&hello, &key) && !mutation::on(Mutation::RefusedIsSilent) {
            self.note_present(&key, now);
        }
        let accepted = self.accept_hello(conn, &hello, &key, peer.clone(), now);
        if let Err((reason, message)) = accepted {
            if reason == RefusalReason::NameTaken {
                self.note_refused(&key, identity, peer, now);
            }
            // A second hello on a connection ends the session that the first one began there.
            self.closed(conn);
            self.replica.refuse(conn, reason, message);
        } else if let Some(worker) = self.worker_mut(&key) {
            worker.agent = agent;
        }
    }

    /// Replaces the agent's older connection by this one, which waits for its welcome.
    fn accept_hello(
        &mut self,
        conn: ConnId,
        hello: &Hello,
        key: &WorkerKey,
        peer: Option<Arc<str>>,
        now: Moment,
    ) -> Result<(), HelloRefusal> {
        self.end_account_now(key, now);
        check_protocol(hello)?;
        self.check_cell(hello)?;
        let epoch = self.ledger.epoch();
        let is_repeated =
            hello.epoch_seen == Some(epoch) && self.term.differs_from(hello.term_seen);
        // Before what may refuse the agent: it is true of the term, whoever says it.
        if is_repeated && !mutation::on(Mutation::EpochRepeated) {
            let stepped_down_at = &mut self.replica.stepped_down_at;
            let (refusal, notice) =
                self.epoch_ahead.refuse_repeated(key, epoch, self.term, stepped_down_at, now);
            if let Some(notice) = notice {
                self.replica.notice(notice);
            }
            return Err(refusal);
        }
        self.admit(hello, key, now)?;
        if let Some(seen) = hello.epoch_seen.filter(|seen| *seen > epoch) {
            let refusal = self.epoch_ahead.refuse(key, seen, epoch, now);
            if refusal.0 == RefusalReason::EpochAhead {
                self.ask_term(now);
            }
            return Err(refusal);
        }
        self.pass_name(hello, key, now);
        self.epoch_ahead.forget(key);
        self.replace_session(conn, hello, key, now);
        self.note_name(key, hello.identity, peer, now);
        self.await_welcome(conn, key);
        self.ledger.await_report(key, now);
        if mutation::on(Mutation::AdoptAtHello) {
            self.ledger.adopt_at_hello(key);
            self.ledger.open(key, now).unknown = None;
        }
        Ok(())
    }

    /// Whether the agent is of this cell. What an agent of another one says about terms and leases
    /// says nothing about this one's.
    fn check_cell(&self, hello: &Hello) -> Result<(), HelloRefusal> {
        let (Some(own), Some(other)) = (self.cell, hello.cell) else { return Ok(()) };
        if own == other || mutation::on(Mutation::OtherCellServed) {
            return Ok(());
        }
        let message = format!(
            "this coordinator is of cell {own}, and the agent belongs to cell {other}. Give all \
             replicas of a fleet one store (--state-dir, or the Lease of one namespace); if the \
             store of cell {other} is lost, see \"Two cells\" in docs/OPERATIONS.md; to move the \
             agent, let it leave that cell and start it with --cell {own}"
        );
        Err((RefusalReason::OtherCell, message))
    }

    /// Whether the agent may connect at all.
    fn admit(&self, hello: &Hello, key: &WorkerKey, now: Moment) -> Result<(), HelloRefusal> {
        let cluster = self.clusters.get(&hello.cluster).filter(|cluster| cluster.defined);
        let Some(cluster) = cluster else {
            let message = self.replica.desired.unknown_cluster(&hello.cluster);
            return Err((RefusalReason::UnknownCluster, message));
        };
        self.check_name(hello, key, now)?;
        if self.is_of_another(hello, key) && !mutation::on(Mutation::AccountOfName) {
            // What is known of the other agent's incarnations and links says nothing about this
            // one.
            return self.check_limit();
        }
        let worker = cluster.workers.get(&key.worker);
        let account = self.ledger.account(key);
        let registered = account.map(|account| account.exposure.incarnation);
        let newest = worker.map(|worker| worker.incarnation).max(registered);
        if let Some(newest) = newest.filter(|newest| {
            hello.incarnation < *newest && !mutation::on(Mutation::OlderIncarnationAdmitted)
        }) {
            let message = format!("incarnation {newest} of {key} is newer");
            return Err((RefusalReason::NewerIncarnation(newest), message));
        }
        let Some(worker) = worker else { return self.check_limit() };
        let newest = worker.incarnation;
        let session = worker.session.as_ref().filter(|_| hello.incarnation == newest);
        if session.is_some_and(|session| hello.link <= session.link) {
            return Err((RefusalReason::NewerLink, "a newer connection exists".into()));
        }
        // An agent counts its links upwards, so a lower or repeated number is from another agent
        // with the same incarnation.
        let twin = session.is_none() && hello.incarnation == newest && hello.link <= worker.link;
        if twin {
            let message = format!("another agent of {key} has incarnation {newest}");
            return Err((RefusalReason::NewerIncarnation(newest), message));
        }
        Ok(())
    }

    /// Whether there may be one more worker.
    fn check_limit(&self) -> Result<(), HelloRefusal> {
        let workers: usize = self.clusters.values().map(|it| it.workers.len()).sum();
        match workers < WORKERS_MAX {
            true => Ok(()),
            false => {
                let message = format!("the limit of {WORKERS_MAX} workers is reached");
                Err((RefusalReason::Limit, message))
            }
        }
    }

    fn replace_session(&mut self, conn: ConnId, hello: &Hello, key: &WorkerKey, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else { return };
        let worker = cluster
            .workers
            .entry(key.worker.clone())
            .or_insert_with(|| Worker::new(hello.incarnation));
        let newer = hello.incarnation > worker.incarnation;
        if newer {
            // The waits of an earlier agent do not apply to this one.
            (worker.welcome_place, worker.no_epoch_since) = (None, None);
        }
        worker.incarnation = hello.incarnation;
        worker.link = hello.link;
        worker.generation = hello.generation;
        worker.stops_worker = hello.stops_worker;
        worker.version = hello.version;
        let moved = worker.address != hello.address;
        worker.address = hello.address.clone();
        if hello.epoch_seen.is_none() {
            // Dialling again does not restart the wait: a later leader cannot have granted this
            // agent anything since its first hello, or the agent would remember that epoch.
            let since =
                worker.no_epoch_since.filter(|_| !mutation::on(Mutation::ConfirmAnewPerLink));
            worker.no_epoch_since = Some(since.unwrap_or(now));
        }
        let session = Session::new(conn, hello.link);
        let old = worker.session.replace(session);
        self.conns.insert(conn, key.clone());
        self.pool_changed(key);
        if moved {
            self.note_shares_of(key);
        }
        let Some(old) = old else { return };
        self.forget_conn(old.conn);
        let incarnation = hello.incarnation;
        let (reason, message) = match newer {
            true => (
                RefusalReason::NewerIncarnation(incarnation),
                format!("incarnation {incarnation} of {key} is newer"),
            ),
            false => (RefusalReason::NewerLink, "a newer connection exists".into()),
        };
        self.replica.refuse(old.conn, reason, message);
    }

    pub(in crate::core) fn report(&mut self, conn: ConnId, report: Report, now: Moment) {
        let Some(key) = self.conns.get(&conn).cloned() else { return };
        let epoch = self.ledger.epoch();
        let cluster = self.clusters.get_mut(&key.cluster);
        let worker = cluster.and_then(|cluster| cluster.workers.get_mut(&key.worker));
        let Some(worker) = worker else { return };
        let Some(session) = worker.session.as_mut() else { return };
        if session.reported || report.epoch != epoch {
            let rule = match session.reported {
                true => "a second report on one connection",
                false => "a report of another epoch",
            };
            return self.disconnect_offender(conn, &key, rule);
        }
        if self.adoptions.contains_key(&conn) {
            return self.disconnect_offender(conn, &key, "a second report on one connection");
        }
        self.begin_adoption(conn, &key, report, now);
    }

    /// All of a report is adopted: its worker counts as reported.
    pub(super) fn count_as_reported(&mut self, key: &WorkerKey, report: &Report) {
        let Some(worker) = self.worker_mut(key) else { return };
        let Some(session) = worker.session.as_mut() else { return };
        session.reported = true;
        session.nonce = report.nonce;
        worker.reported = true;
        worker.welcome_place = None;
        // The report covers every earlier grant.
        worker.unacknowledged.clear();
        worker.lost = false;
        worker.drain = report.drain;
        if worker.drain == DrainPhase::Working && worker.drain_order == Some(DrainOrder::Undrain) {
            worker.drain_order = None;
        }
        self.note_failure(key, report.failure.clone());
    }

    /// Notes whether a worker fails its check, and says so where that has changed.
    fn note_failure(&mut self, key: &WorkerKey, failure: Option<WorkerFailure>) {
        let Some(worker) = self.worker_mut(key) else { return };
        let failed_before = worker.failure.is_some();
        worker.failure.clone_from(&failure);
        let works = worker.is_working();
        match failure {
            Some(failure) if !failed_before => {
                self.replica.notice(Notice::Failing { worker: key.clone(), failure });
            }
            None if failed_before && works => {
                self.replica.notice(Notice::Recovered(key.clone()));
            }
            Some(_) | None => {}
        }
    }

    /// Acts on a report that is adopted.
    pub(super) fn after_report(&mut self, conn: ConnId, key: &WorkerKey, now: Moment) {
        self.replica.notice(Notice::Joined(key.clone()));
        self.register_if_needed(key);
        self.schedule_silence_check(key);
        self.outgoing.mark(key.clone());
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
        let patience = self.clusters.get(&key.cluster).map_or(Duration::ZERO, |it| it.spec.ttl / 2);
        self.timers.set(now + patience, Timer::Unserved(conn));
        self.check_left(key, now);
    }

    pub(in crate::core) fn beat(&mut self, conn: ConnId, beat: Beat, now: Moment) {
        let Some(key) = self.conns.get(&conn).cloned() else { return };
        let Some(beat) = self.wait_for_adoption(conn, beat, now) else { return };
        let cluster = self.clusters.get_mut(&key.cluster);
        let worker = cluster.and_then(|cluster| cluster.workers.get_mut(&key.worker));
        let Some(worker) = worker else { return };
        let Some(session) = worker.session.as_mut() else { return };
        if session.reported && beat.nonce <= session.nonce {
            return;
        }
        let rule = match () {
            () if !session.reported => Some("a beat before the report"),
            () if beat.epoch != self.ledger.epoch() => Some("a beat of another epoch"),
            () if mutation::on(Mutation::GapInBeatsTaken) => None,
            () if beat.nonce != session.nonce.next() => Some("a gap in the beats"),
            () => None,
        };
        if let Some(rule) = rule {
            return self.disconnect_offender(conn, &key, rule);
        }
        session.nonce = beat.nonce;
        session.snapshot_due |= beat.wants_snapshot;
        let was = worker.drain;
        let had_begun = worker.has_begun_drain();
        worker.drain = was.max(beat.drain);
        let found = std::mem::replace(&mut worker.lost, false);
        let takes_nothing = was == DrainPhase::Working && worker.drain != DrainPhase::Working;
        let mut account = self.ledger.open(&key, now);
        account.heard = account.heard.max(now);
        let fresh = account.fresh_since == account.incarnation && beat.jobs == Jobs::Unknown;
        let jobs = if fresh { Jobs::Running(0) } else { beat.jobs };
        account.applied(beat.applied, beat.pool, jobs);
        account.settle_unknown(now);
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
        self.note_applied(&key, beat.applied);
        self.note_failure(&key, beat.failure);
        let begins = !had_begun && self.observed(&key).is_some_and(Worker::has_begun_drain);
        if begins {
            self.replica.notice(Notice::DrainStarted(key.clone()));
        }
        if begins || takes_nothing {
            self.note_draining(&key);
        }
        if takes_nothing {
            self.check_claims_of(&key, ClaimCheck::Plan);
        }
        if takes_nothing || found {
            self.pool_changed(&key);
            self.plan_soon(&key.cluster, now);
        }
        if found {
            self.schedule_silence_check(&key);
            self.recheck_class(&key.cluster);
        }
        self.check_left(&key, now);
    }

    /// Forgets a connection that has ended; returns its worker.
    pub(super) fn forget_conn(&mut self, conn: ConnId) -> Option<WorkerKey> {
        let key = self.conns.remove(&conn)?;
        if self.admission.awaits(conn) {
            self.note_present(&key, self.replica.heard);
        }
        self.admission.end(conn);
        self.drop_adoption(conn);
        self.await_no_report(&key);
        Some(key)
    }

    pub(in crate::core) fn closed(&mut self, conn: ConnId) {
        let Some(key) = self.forget_conn(conn) else { return };
        let Some(worker) = self.worker_mut(&key) else { return };
        let reported = worker.is_connected();
        worker.session = None;
        if self.is_missing(&key) {
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
            let session = self.observed(&key).and_then(|worker| worker.session.as_ref());
            let Some(conn) = session.map(|session| session.conn) else { continue };
            self.closed(conn);
            let message = format!("the platform has removed worker {key}");
            self.replica.refuse(conn, RefusalReason::GoAway, message);
        }
    }

    pub(in crate::core) fn sent(&mut self, conn: ConnId) {
        let Some(key) = self.conns.get(&conn).cloned() else { return };
        let session = self.worker_mut(&key).and_then(|worker| worker.session.as_mut());
        if let Some(session) = session.filter(|session| session.conn == conn) {
            session.writable = true;
            self.outgoing.mark_unanswered(key);
        }
    }

    /// Forgets a worker that has left, once nothing can be outstanding for it: neither leases that
    /// its agent reported nor unheard leases of an earlier agent.
    pub(super) fn check_left(&mut self, key: &WorkerKey, now: Moment) {
        let Some(worker) = self.observed(key) else { return };
        let heard = worker.session.as_ref().is_none_or(|session| session.reported);
        let left = worker.drain == DrainPhase::Leaving && worker.reported && heard;
        let conn = worker.session.as_ref().map(|session| session.conn);
        let unheard = self.ledger.unheard_until(key);
        if unheard.is_some() && !mutation::on(Mutation::GoodbyeForgetsUnheard) {
            return;
        }
        let account = self.ledger.account(key);
        let empty = account.is_some_and(|account| {
            account.jobs == Jobs::Running(0)
                && account.in_effect == 0
                && account.unknown.is_none()
                && account.streams.is_empty()
        });
        if left && empty {
            if let Some(conn) = conn {
                self.forget_conn(conn);
                self.replica.effects.push_back(Effect::Close(conn));
            }
            if let Some(worker) = self.worker_mut(key) {
                worker.session = None;
            }
            self.gone(key, now);
        }
    }

    pub(super) fn disconnect_offender(
        &mut self,
        conn: ConnId,
        key: &WorkerKey,
        rule: &'static str,
    ) {
        self.replica.notice(Notice::Offence { worker: key.clone(), rule });
        self.closed(conn);
        self.replica.refuse(conn, RefusalReason::Invalid, rule.into());
    }
}

fn check_protocol(hello: &Hello) -> Result<(), HelloRefusal> {
    if (PROTOCOL_VERSION_MIN..=PROTOCOL_VERSION).contains(&hello.protocol) {
        return Ok(());
    }
    let message = format!(
        "the agent speaks protocol {}, this coordinator {PROTOCOL_VERSION_MIN} to \
         {PROTOCOL_VERSION}: bring both to releases that share one",
        hello.protocol
    );
    Err((RefusalReason::Protocol, message))
}
