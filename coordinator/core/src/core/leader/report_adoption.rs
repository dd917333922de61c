//! Reports are adopted in slices. Invariant: a worker counts as reported only when all of its
//! report is adopted. Until then its leases are only added to the ledger, none of them is freed by
//! time, and later messages of its agent wait behind the report.

use std::time::Duration;

use leasehold_types::message::{Beat, Report};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Load, Moment, WorkerKey};

use super::adoption::{AdoptedAccount, Adoption, Compared};
use super::sliced_tasks::ClaimCheck;
use super::{Leader, Timer};
use crate::core::turn_budget::STEP;
use crate::effect::Freed;
use crate::event::ConnId;

impl Leader {
    /// Adopts a report: at once, or in slices where it is long.
    pub(super) fn begin_adoption(
        &mut self,
        conn: ConnId,
        key: &WorkerKey,
        report: Report,
        at: Moment,
    ) {
        let ttl =
            self.clusters.get(&key.cluster).map_or(Duration::ZERO, |cluster| cluster.spec().ttl);
        let Some(worker) = self.observed(key) else { return };
        let (incarnation, agent) = (worker.incarnation(), worker.occupant().agent());
        let begun = self.ledger.begin_adoption(key, incarnation, ttl, at);
        let account = self.ledger.account(key);
        let left =
            account.and_then(|account| account.entry().exposure().left_as(agent, report.memory));
        let streams = account.map_or(0, |account| account.stream_count());
        let most = STEP.min(self.replica.config().slice as usize / 4);
        let is_short = report.streams.len() + streams <= most;
        self.sessions.begin_adoption(conn, Adoption::new(key.clone(), report, begun, left, at));
        if is_short {
            while self.adopt_slice(conn, usize::MAX).is_some() {}
        } else {
            // In case the agent disconnects before the adoption is complete.
            self.schedule_silence_check(key);
        }
    }

    /// Adopts further parts of reports, as far as the budget goes.
    pub(super) fn adopt(&mut self) {
        while self.replica.budget().is_left()
            && let Some(conn) = self.sessions.next_adoption()
        {
            let most = STEP.min(self.replica.budget().left());
            let adopted = self.adopt_slice(conn, most).unwrap_or(1);
            self.replica.budget_mut().spend(adopted);
        }
    }

    /// Drops the rest of a report, because its connection is over.
    pub(super) fn drop_adoption(&mut self, adoption: &Adoption) {
        if let Some(mut account) = self.ledger.account_mut(adoption.key()) {
            account.end_adoption();
        }
        self.schedule_silence_check(adoption.key());
    }

    /// Keeps an agent's beat while its report is being adopted; returns it otherwise.
    pub(super) fn wait_for_adoption(
        &mut self,
        conn: ConnId,
        beat: Beat,
        at: Moment,
    ) -> Option<Beat> {
        let Some(adoption) = self.sessions.adoption_mut(conn) else { return Some(beat) };
        if !adoption.keep_beat(beat, at) {
            let key = adoption.key().clone();
            self.disconnect_offender(conn, &key, "too many beats before the report is adopted");
        }
        None
    }

    /// Adopts a further slice of a report; returns how many streams it read, or none where the
    /// report is adopted whole.
    fn adopt_slice(&mut self, conn: ConnId, most: usize) -> Option<usize> {
        let key = self.sessions.adoption(conn)?.key().clone();
        let Some(worker) = self.observed(&key) else {
            if let Some(adoption) = self.sessions.end_adoption(conn) {
                self.drop_adoption(&adoption);
            }
            return None;
        };
        let (incarnation, stops_worker) = (worker.incarnation(), worker.stops_worker());
        let capacity = self.replica.class(&key.cluster).map_or(Load::MAX, |class| class.capacity);
        let (adoption, ledger) = (self.sessions.adoption_mut(conn)?, &mut self.ledger);
        let read = adoption.adopt_streams(ledger, incarnation, stops_worker, capacity, most);
        if read.is_some() && !mutation::on(Mutation::ActOnHalfReport) {
            return read;
        }
        let Compared { ended, count, is_whole } = adoption.compare(ledger, incarnation, most);
        let at = adoption.at();
        if !is_whole {
            self.ended(ended, Freed::Released, at);
            return Some(count);
        }
        let adoption = self.sessions.end_adoption(conn)?;
        if let Some(worker) = self.worker_mut(&key).filter(|worker| worker.session().is_some()) {
            worker.adopt_report(adoption.report());
            self.record_failure(&key, adoption.report().failure.clone());
        }
        self.end_adoption(&key, &adoption);
        self.ended(ended, Freed::Released, at);
        self.after_adoption(&key, adoption.report());
        self.after_report(conn, &key, at);
        for (beat, at) in adoption.into_beats() {
            self.beat(conn, beat, at);
        }
        None
    }

    /// Brings the account up to the whole report.
    fn end_adoption(&mut self, key: &WorkerKey, adoption: &Adoption) {
        let Some(worker) = self.observed(key) else { return };
        let (incarnation, agent) = (worker.incarnation(), worker.occupant().agent());
        let AdoptedAccount { unreported_ends, unreported_changed } =
            adoption.end(&mut self.ledger, incarnation, agent);
        for at in unreported_ends {
            self.timers.set(at, Timer::Unreported(key.clone()));
        }
        if unreported_changed {
            self.recheck_blocked(adoption.at());
        }
    }

    /// Keeps the reported streams where they are in the plan, and has their claims checked.
    fn after_adoption(&mut self, key: &WorkerKey, report: &Report) {
        // This is not sliced: a plan made in between would move the streams that are not kept yet.
        self.plan_where_reported(&report.streams, key);
        self.check_claims_of(key, ClaimCheck::PlanAndExpiry);
        self.pipelines.recheck_class(&key.cluster, &self.replica);
        self.drain_changed(key);
    }
}
