//! One report that is being adopted, and the beats that wait behind it.
//!
//! Invariant: until all of a report is adopted, its leases are only added to the ledger and none of
//! them is freed.

use std::collections::VecDeque;

use leasehold_types::message::{Beat, Report};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{AgentId, Incarnation, Load, Moment, StreamKey, WorkerKey};

use crate::ledger::{AbsentClaims, AdoptionStart, EndedLease, Ledger};

/// The most beats that wait behind a report: an agent that beats once a second and at every event
/// sends this many in minutes.
const BEATS_MAX: usize = 1_024;

/// A report that is being adopted.
#[derive(Clone, Debug)]
pub(super) struct Adoption {
    key: WorkerKey,
    report: Report,
    /// When it arrived.
    at: Moment,
    begun: AdoptionStart,
    /// The agent has said goodbye before, under this number, and what the worker may hold was its.
    left: Option<Incarnation>,
    /// How many of its streams are adopted.
    adopted: usize,
    /// How many of the account's claims it lists, in the part that is adopted.
    listed: usize,
    /// The last stream of the account that was compared with the list.
    compared: Option<StreamKey>,
    /// The agent's later beats, with their moments.
    beats: VecDeque<(Beat, Moment)>,
}

/// Claims that a part of the comparison has ended.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) ended: Vec<EndedLease>,
    /// How many claims were compared.
    pub(super) count: usize,
    /// All claims of the account are compared.
    pub(super) is_whole: bool,
}

/// What an account's other users have to check after its report was adopted.
#[derive(Debug, Default)]
pub(super) struct AdoptedAccount {
    /// When unreported leases or slots of an earlier agent may have ended.
    pub(super) unreported_ends: Vec<Moment>,
    /// Unreported leases of the worker may have ended now.
    pub(super) unreported_changed: bool,
}

impl Adoption {
    /// The adoption of a report that arrived at `at`, before its first slice.
    pub(super) fn new(
        key: WorkerKey,
        report: Report,
        begun: AdoptionStart,
        left: Option<Incarnation>,
        at: Moment,
    ) -> Self {
        Self {
            key,
            report,
            at,
            begun,
            left,
            adopted: 0,
            listed: 0,
            compared: None,
            beats: VecDeque::new(),
        }
    }

    pub(super) fn key(&self) -> &WorkerKey {
        &self.key
    }

    pub(super) fn report(&self) -> &Report {
        &self.report
    }

    /// When the report arrived.
    pub(super) fn at(&self) -> Moment {
        self.at
    }

    /// Keeps a later beat of the agent. Returns false if too many wait already.
    pub(super) fn keep_beat(&mut self, beat: Beat, at: Moment) -> bool {
        let has_room = self.beats.len() < BEATS_MAX;
        if has_room {
            self.beats.push_back((beat, at));
        }
        has_room
    }

    /// The beats that have waited, in order, with their moments.
    pub(super) fn into_beats(self) -> impl Iterator<Item = (Beat, Moment)> {
        self.beats.into_iter()
    }

    /// Adds at most `most` further streams of the report to the ledger. Returns how many it read;
    /// none if all were read before.
    pub(super) fn adopt_streams(
        &mut self,
        ledger: &mut Ledger,
        incarnation: Incarnation,
        stops_worker: bool,
        capacity: Load,
        most: usize,
    ) -> Option<usize> {
        let all = self.report.streams.len();
        if self.adopted == all {
            return None;
        }
        let end = self.adopted.saturating_add(most).min(all);
        let part = &self.report.streams[self.adopted..end];
        let report = self.begun.report;
        self.listed +=
            ledger.adopt_streams(&self.key, incarnation, report, part, stops_worker, capacity);
        self.adopted = end;
        Some(part.len())
    }

    /// Compares at most `most` further claims of the account with the report, and ends those that
    /// the report should list and does not.
    pub(super) fn compare(
        &mut self,
        ledger: &mut Ledger,
        incarnation: Incarnation,
        most: usize,
    ) -> Compared {
        // If the report lists every claim of the account, no comparison is needed.
        let account = ledger.account(&self.key);
        let is_needed = account.is_some_and(|account| account.claim_count() > self.listed);
        let streams = ledger.streams_of(&self.key, self.compared.as_ref());
        let streams: Vec<_> = streams.take(if is_needed { most } else { 0 }).cloned().collect();
        let ends_at_once = mutation::on(Mutation::OrphansEndAtOnce);
        let absent = AbsentClaims {
            incarnation,
            knows_from: self.report.memory.knows_from,
            left: self.left,
            report: self.begun.report,
            orphans_end: if ends_at_once { Moment::default() } else { self.begun.old_end },
        };
        let ended = streams.iter().flat_map(|stream| ledger.end_absent(&self.key, stream, &absent));
        let (ended, count) = (ended.collect(), streams.len());
        self.compared = streams.into_iter().next_back();
        Compared { ended, count, is_whole: count < most }
    }

    /// Brings the account up to the whole report of this agent.
    pub(super) fn end(
        &self,
        ledger: &mut Ledger,
        incarnation: Incarnation,
        agent: Option<AgentId>,
    ) -> AdoptedAccount {
        let Self { key, report, at, begun, .. } = self;
        let Some(account) = ledger.account(key) else { return AdoptedAccount::default() };
        let earlier = account.incarnation().filter(|earlier| *earlier != incarnation);
        let memory = report.memory;
        let is_covered = match ledger.unreported().exposure(key) {
            Some(unreported) => unreported.is_covered(incarnation, agent, memory),
            None => memory.knows_from == Incarnation(0),
        };
        let covers_earlier = match earlier {
            Some(earlier) => memory.knows_from <= earlier || self.left == Some(earlier),
            None => is_covered || memory.aged,
        };
        let reports_anew = account.incarnation() != Some(incarnation);
        let committed = account.committed();
        // This agent cannot know slots that an earlier agent of this term did not know.
        let unknown_before = account
            .unaccounted()
            .filter(|_| earlier.is_some())
            .map(|unaccounted| unaccounted.until);
        let unreported_changed = ledger.unreported().until(key).is_some();
        let memory_end = if reports_anew { ledger.heard(key, is_covered, *at) } else { None };
        let mut account = ledger.open(key, *at);
        account.adopt_report(incarnation, agent, report);
        if reports_anew && !begun.new {
            let until = if covers_earlier { *at } else { memory_end.unwrap_or(begun.old_end) };
            let until = unknown_before.map_or(until, |before| until.max(before));
            account.leave_unaccounted(committed, until, *at);
        }
        let unaccounted_until = account.unaccounted().map(|unaccounted| unaccounted.until);
        let unreported_ends = memory_end.into_iter().chain(unaccounted_until).collect();
        AdoptedAccount { unreported_ends, unreported_changed }
    }
}
