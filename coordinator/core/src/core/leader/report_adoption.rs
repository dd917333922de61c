//! Reports are adopted in slices. Invariant: a worker counts as reported only when all of its
//! report is adopted. Until then its leases are only added to the ledger, none of them is freed by
//! time, and later messages of its agent wait behind the report.

use std::collections::VecDeque;
use std::ops::Bound;
use std::time::Duration;

use leasehold_types::message::{Beat, Jobs, Report};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Incarnation, Load, Moment, StreamKey, WorkerKey};

use super::sliced_tasks::ClaimCheck;
use super::{Leader, Timer};
use crate::core::turn_budget::STEP;
use crate::effect::Freed;
use crate::event::ConnId;
use crate::ledger::{AbsentClaims, AdoptionStart, Unknown};

/// The most beats that wait behind a report: an agent that beats once a second and at every event
/// sends this many in minutes.
const BEATS_MAX: usize = 1_024;

/// A report that is being adopted.
#[derive(Clone, Debug)]
pub(super) struct Adoption {
    key: WorkerKey,
    report: Report,
    /// When it came.
    at: Moment,
    begun: AdoptionStart,
    /// How many of its streams are adopted.
    adopted: usize,
    /// How many of the account's claims it lists, in the part that is adopted.
    listed: usize,
    /// The last stream of the account that was compared with the list.
    compared: Option<StreamKey>,
    /// The agent's later beats, with their moments.
    beats: VecDeque<(Beat, Moment)>,
}

impl Leader {
    /// Adopts a report: at once, or in slices where it is long.
    pub(super) fn begin_adoption(
        &mut self,
        conn: ConnId,
        key: &WorkerKey,
        report: Report,
        at: Moment,
    ) {
        let ttl = self.clusters.get(&key.cluster).map_or(Duration::ZERO, |it| it.spec.ttl);
        let Some(worker) = self.observed(key) else { return };
        let incarnation = worker.incarnation;
        let begun = self.ledger.begin_adoption(key, incarnation, ttl, at);
        let streams = self.ledger.account(key).map_or(0, |account| account.streams.len());
        let most = STEP.min(self.replica.config.slice as usize / 4);
        let listed = report.streams.len();
        let is_short = listed + streams <= most;
        let adoption = Adoption {
            key: key.clone(),
            report,
            at,
            begun,
            adopted: 0,
            listed: 0,
            compared: None,
            beats: VecDeque::new(),
        };
        self.adoptions.insert(conn, adoption);
        self.admission.reported(conn, listed);
        match is_short {
            true => while self.adopt_slice(conn, usize::MAX).is_some() {},
            // If the adoption never ends, the adopted leases end by time.
            false => self.schedule_silence_check(key),
        }
    }

    /// Adopts further parts of reports, as far as the budget goes.
    pub(super) fn adopt(&mut self) {
        while self.replica.budget.is_left()
            && let Some(conn) = self.adoptions.keys().next().copied()
        {
            let most = STEP.min(self.replica.budget.left());
            let adopted = self.adopt_slice(conn, most).unwrap_or(1);
            self.replica.budget.spend(adopted);
        }
    }

    /// Drops the rest of a report, because its connection is over.
    pub(super) fn drop_adoption(&mut self, conn: ConnId) {
        let Some(adoption) = self.adoptions.remove(&conn) else { return };
        if let Some(mut account) = self.ledger.account_mut(&adoption.key) {
            account.adopting = false;
        }
        self.schedule_silence_check(&adoption.key);
    }

    /// Keeps an agent's beat while its report is being adopted; returns it otherwise.
    pub(super) fn wait_for_adoption(
        &mut self,
        conn: ConnId,
        beat: Beat,
        at: Moment,
    ) -> Option<Beat> {
        let Some(adoption) = self.adoptions.get_mut(&conn) else { return Some(beat) };
        if adoption.beats.len() < BEATS_MAX {
            adoption.beats.push_back((beat, at));
        } else {
            let key = adoption.key.clone();
            self.disconnect_offender(conn, &key, "too many beats before the report is adopted");
        }
        None
    }

    /// Adopts a further slice of a report; returns how many streams it read, or none where the
    /// report is adopted whole.
    fn adopt_slice(&mut self, conn: ConnId, most: usize) -> Option<usize> {
        let key = self.adoptions.get(&conn).map(|it| it.key.clone())?;
        let Some(worker) = self.observed(&key) else {
            self.drop_adoption(conn);
            return None;
        };
        let (incarnation, stops_worker) = (worker.incarnation, worker.stops_worker);
        let class =
            self.replica.desired.clusters.get(&key.cluster).and_then(|it| it.class.as_ref());
        let capacity = class.map_or(Load::MAX, |class| class.capacity);
        let adoption = self.adoptions.get_mut(&conn)?;
        let ledger = &mut self.ledger;
        let all = adoption.report.streams.len();
        if adoption.adopted < all {
            let end = adoption.adopted.saturating_add(most).min(all);
            let part = &adoption.report.streams[adoption.adopted..end];
            let handled = part.len();
            let report = adoption.begun.report;
            adoption.listed +=
                ledger.adopt_streams(&key, incarnation, report, part, stops_worker, capacity);
            adoption.adopted = end;
            if !mutation::on(Mutation::ActOnHalfReport) {
                return Some(handled);
            }
        }
        // If the report lists every claim of the account, no comparison is needed.
        let account = ledger.account(&key).filter(|it| it.claim_count() > adoption.listed);
        let from = adoption.compared.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let streams = account.into_iter().map(|account| &account.streams);
        let streams = streams.flat_map(|it| it.range::<StreamKey, _>((from, Bound::Unbounded)));
        let streams: Vec<_> = streams.take(most).cloned().collect();
        let (whole, handled) = (streams.len() < most, streams.len());
        let absent = AbsentClaims {
            incarnation,
            knows_from: adoption.report.memory.knows_from,
            report: adoption.begun.report,
            orphans_end: match mutation::on(Mutation::OrphansEndAtOnce) {
                false => adoption.begun.old_end,
                true => Moment(0),
            },
        };
        let ended: Vec<_> =
            streams.iter().flat_map(|stream| ledger.end_absent(&key, stream, &absent)).collect();
        adoption.compared = streams.into_iter().next_back();
        let at = adoption.at;
        if !whole {
            self.ended(ended, Freed::Released, at);
            return Some(handled);
        }
        let adoption = self.adoptions.remove(&conn)?;
        self.count_as_reported(&key, &adoption.report);
        self.end_adoption(&key, incarnation, &adoption);
        self.ended(ended, Freed::Released, at);
        self.after_adoption(&key, &adoption.report);
        self.after_report(conn, &key, at);
        for (beat, at) in adoption.beats {
            self.beat(conn, beat, at);
        }
        None
    }

    /// Brings the account up to the whole report.
    fn end_adoption(&mut self, key: &WorkerKey, incarnation: Incarnation, adoption: &Adoption) {
        let Adoption { report, at, begun, .. } = adoption;
        let agent = self.observed(key).and_then(|worker| worker.agent);
        let ledger = &mut self.ledger;
        let Some(account) = ledger.account(key) else { return };
        let earlier = account.incarnation.filter(|earlier| *earlier != incarnation);
        let memory = report.memory;
        let is_covered = match ledger.unheard_exposure(key) {
            Some(unheard) => unheard.is_covered(incarnation, agent, memory),
            None => memory.knows_from == Incarnation(0),
        };
        let covers_earlier = match earlier {
            Some(earlier) => memory.knows_from <= earlier,
            None => is_covered || memory.aged,
        };
        let reports_anew = account.incarnation != Some(incarnation);
        let committed = account.committed();
        // This agent cannot know slots that an earlier agent of this term did not know.
        let unknown_before =
            account.unknown.filter(|_| earlier.is_some()).map(|unknown| unknown.until);
        let unheard = ledger.unheard_until(key).is_some();
        let memory_end = match reports_anew {
            true => ledger.heard(key, is_covered, *at),
            false => None,
        };
        let mut account = ledger.open(key, *at);
        account.adopting = false;
        account.incarnation = Some(incarnation);
        if account.exposure.is_fresh_for(incarnation, agent) {
            account.fresh_since = Some(incarnation);
        }
        account.reported(report.pool, report.jobs);
        // A worker without anything outstanding runs no job, since none begins without a lease.
        if account.fresh_since == Some(incarnation) && account.jobs == Jobs::Unknown {
            account.jobs = Jobs::Running(0);
        }
        if reports_anew && !begun.new {
            let until = if covers_earlier { *at } else { memory_end.unwrap_or(begun.old_end) };
            let until = unknown_before.map_or(until, |before| until.max(before));
            let unreported = account.unknown.is_some_and(|unknown| unknown.unreported);
            let unknown = Unknown { slots: committed, until, unreported };
            account.unknown = (committed > 0).then_some(unknown);
            account.settle_unknown(*at);
        }
        let unknown_until = account.unknown.map(|unknown| unknown.until);
        drop(account);
        for at in memory_end.into_iter().chain(unknown_until) {
            self.timers.set(at, Timer::Unheard(key.clone()));
        }
        if unheard {
            self.recheck_blocked(*at);
        }
    }

    /// Keeps the reported streams where they are in the plan, and has their claims checked.
    fn after_adoption(&mut self, key: &WorkerKey, report: &Report) {
        // This is not sliced: a plan made in between would move the streams that are not kept yet.
        self.plan_where_reported(&report.streams, key);
        self.check_claims_of(key, ClaimCheck::PlanAndExpiry);
        self.recheck_class(&key.cluster);
        self.note_draining(key);
    }
}
