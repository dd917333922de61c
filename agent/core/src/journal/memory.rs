//! The content of a journal: what all of its records add up to.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{
    CellId, Epoch, Incarnation, JobId, Load, Moment, NodeName, StartId, StreamKey, TermId, Token,
};

use super::Record;
use crate::lease::LeaseKinds;

/// The content of a journal, after applying all records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The incarnation that wrote last; none for an empty journal.
    pub incarnation: Option<Incarnation>,
    /// The incarnation that began the journal, and when.
    pub begun: Option<(Incarnation, Moment)>,
    /// It lists everything that was ever held.
    pub complete: bool,
    /// Whether the jobs are known: it is complete, or the worker reported them.
    pub jobs_known: bool,
    /// The highest epoch.
    pub epoch: Option<Epoch>,
    /// The identity of its term.
    pub term: TermId,
    /// The cell that the agent belongs to.
    pub cell: Option<CellId>,
    /// The pool lease: token, size, floor.
    pub pool: Option<(Token, u32, u32)>,
    /// Until when renewed leases are held.
    pub renewed_until: Moment,
    /// The stream leases.
    pub streams: BTreeMap<StreamKey, RememberedStream>,
    /// Of which kinds of them the worker may have seen some; unknown where no record says it.
    pub shown: Option<LeaseKinds>,
    /// The jobs with an id, each with the token under which it began, where that is known.
    pub jobs: BTreeMap<JobId, Option<Token>>,
    /// Jobs without a known id.
    pub unnamed: u32,
    /// Jobs without one, and the pool size that the worker keeps to, if it ever reported one.
    pub count: Option<(u32, u32)>,
    /// The worker's last start.
    pub start: Option<StartId>,
    /// Whether a drain was under way.
    pub draining: bool,
    /// Whether the coordinator wanted it.
    pub drain_ordered: bool,
    /// Whether it has ended.
    pub drain_ended: bool,
    /// Whether the worker failed its check.
    pub failing: bool,
    /// Within which time the worker's process promised its next call.
    pub promised: Option<Duration>,
    /// Whether the agent may have reported that it leaves.
    pub left: bool,
}

/// Why an agent stays in its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldsOfOtherCell {
    /// Its cell.
    pub other: CellId,
    /// Stream leases that its worker may hold.
    pub streams: usize,
    /// Jobs that its worker may run; none if unknown.
    pub jobs: Option<u32>,
}

impl fmt::Display for HoldsOfOtherCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { other, streams, jobs } = self;
        write!(f, "this worker belongs to cell {other}, and may hold {streams} streams and ")?;
        match jobs {
            Some(jobs) => write!(f, "run {jobs} jobs")?,
            None => write!(f, "run an unknown number of jobs")?,
        }
        write!(
            f,
            " of it: start the agent without --cell and drain it, or run `leasehold-agent leave` \
             once the worker has ended; then start it with --cell"
        )
    }
}

impl Error for HoldsOfOtherCell {}

/// A stream lease in a [`Memory`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedStream {
    /// Its token.
    pub token: Token,
    /// It does not end with its time.
    pub pinned: bool,
    /// Its own end, where renewals no longer cover it.
    pub lapses: Option<Moment>,
    /// The load that came with it, where it is a share of a pipeline.
    pub load: Option<Load>,
    /// The nodes that its documents go to, where it is one.
    pub next: Vec<NodeName>,
}

impl RememberedStream {
    /// When the lease ends, if it does by time; all others end at `renewed_until`.
    #[must_use]
    pub fn until(&self, renewed_until: Moment) -> Option<Moment> {
        end_of_lease(self.pinned, self.lapses, renewed_until)
    }

    /// Whether the lease has not ended yet.
    #[must_use]
    pub fn lives(&self, renewed_until: Moment, now: Moment) -> bool {
        self.until(renewed_until).is_none_or(|until| now < until)
    }
}

/// When a lease ends, if it ends by time. Its own end can belong to a renewal that was never
/// written, so it is at most the written one.
pub(crate) fn end_of_lease(
    pinned: bool,
    lapses: Option<Moment>,
    renewed_until: Moment,
) -> Option<Moment> {
    (!pinned).then(|| lapses.map_or(renewed_until, |end| end.min(renewed_until)))
}

impl Memory {
    /// The number of running jobs, according to the journal.
    #[must_use]
    pub fn running(&self) -> u32 {
        let ids = u32::try_from(self.jobs.len()).unwrap_or(u32::MAX);
        let counted = self.count.map_or(0, |(running, _)| running);
        ids.saturating_add(counted).saturating_add(self.unnamed)
    }

    /// Adds one record.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Begun { incarnation, begun, first } => {
                // A journal that was started again is no longer complete.
                self.complete &= self.begun.is_none_or(|(before, _)| before == *first);
                self.incarnation = Some(*incarnation);
                self.begun = Some((*first, *begun));
            }
            Record::Fresh => {
                self.complete = true;
                self.jobs_known = true;
            }
            Record::Epoch { epoch, term, cell } => {
                self.epoch = (*epoch > Epoch::default()).then_some(*epoch);
                (self.term, self.cell) = (*term, *cell);
            }
            Record::Pool { token, size, floor } => self.pool = Some((*token, *size, *floor)),
            Record::Stream { stream, token, pinned, load, next } => {
                let (token, pinned, load, next) = (*token, *pinned, *load, next.clone());
                let before = self.streams.get(stream).filter(|held| held.token == token);
                let lapses = before.and_then(|held| held.lapses);
                let lease = RememberedStream { token, pinned, lapses, load, next };
                self.streams.insert(stream.clone(), lease);
            }
            Record::StreamEnded { stream, token } => {
                if self.streams.get(stream).is_some_and(|held| held.token == *token) {
                    self.streams.remove(stream);
                }
            }
            Record::Renewed { until } => self.renewed_until = *until,
            Record::Lapsing { stream, until } => {
                if let Some(held) = self.streams.get_mut(stream) {
                    held.lapses = Some(*until);
                }
            }
            Record::LapseOver { stream } => {
                if let Some(held) = self.streams.get_mut(stream) {
                    held.lapses = None;
                }
            }
            Record::Shown { kinds } => self.shown = Some(*kinds),
            Record::JobBegan { job, token } => {
                self.jobs.insert(job.clone(), *token);
            }
            Record::JobEnded { job } => {
                self.jobs.remove(job);
            }
            Record::Count { running, in_effect } => {
                self.count = Some((*running, *in_effect));
                self.unnamed = 0;
                self.jobs_known = true;
            }
            Record::WorkerStarted { start, running } => {
                self.start = Some(start.clone());
                self.shown = Some(LeaseKinds::NONE);
                self.jobs_known = true;
                self.jobs.clear();
                self.unnamed = *running;
                self.count = None;
                self.promised = None;
            }
            Record::Unnamed { running } => self.unnamed = *running,
            Record::Draining => self.draining = true,
            Record::DrainOrdered => self.drain_ordered = true,
            Record::DrainEnded => self.drain_ended = true,
            Record::DrainOver => {
                (self.draining, self.drain_ordered) = (false, false);
                (self.drain_ended, self.left) = (false, false);
                self.pool = None;
            }
            Record::Failing => self.failing = true,
            Record::Promised { within } => self.promised = *within,
            Record::Recovered => (self.failing, self.pool) = (false, None),
            Record::Left => self.left = true,
        }
    }

    /// The memory after a reboot of the host: none of the recorded leases is held, and no job runs.
    /// Leases that the journal does not list may still be held on another host.
    ///
    /// The last incarnation is kept: the record of a start is synced before its agent sends its
    /// hello. So the next incarnation directly follows it, as without a reboot. With a gap, the
    /// incarnation of an agent on another host could lie between, and would count as one of this
    /// journal. If the record could not be written, no hello was sent, and another agent may take
    /// that incarnation.
    #[must_use]
    pub fn after_boot(self) -> Self {
        Self {
            incarnation: self.incarnation,
            epoch: self.epoch,
            term: self.term,
            cell: self.cell,
            begun: self.begun.map(|(first, _)| (first, Moment::EARLIEST)),
            complete: self.complete || mutation::on(Mutation::BootForgivesAll),
            jobs_known: true,
            ..Self::default()
        }
    }

    /// The memory of an agent that a person assigns to `cell`. Epochs of another cell say nothing
    /// about this one's, so they are forgotten.
    ///
    /// # Errors
    /// If the agent belongs to another cell, and its worker may hold something of that cell.
    pub fn assign(self, cell: CellId, now: Moment) -> Result<Self, HoldsOfOtherCell> {
        let other = self.cell.filter(|own| *own != cell);
        let Some(other) = other else { return Ok(Self { cell: Some(cell), ..self }) };
        let held = |stream: &&RememberedStream| stream.lives(self.renewed_until, now);
        let streams = self.streams.values().filter(held).count();
        if streams > 0 || self.running() > 0 || !self.jobs_known {
            return Err(HoldsOfOtherCell {
                other,
                streams,
                jobs: self.jobs_known.then(|| self.running()),
            });
        }
        Ok(Self {
            incarnation: self.incarnation,
            begun: self.begun,
            complete: self.complete,
            jobs_known: true,
            cell: Some(cell),
            start: self.start,
            ..Self::default()
        })
    }

    /// The fewest records that result in this memory.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut all = Vec::new();
        if let (Some(incarnation), Some((first, begun))) = (self.incarnation, self.begun) {
            all.push(Record::Begun { incarnation, begun, first });
        }
        all.extend(self.complete.then_some(Record::Fresh));
        if self.epoch.is_some() || self.cell.is_some() {
            let epoch = self.epoch.unwrap_or_default();
            all.push(Record::Epoch { epoch, term: self.term, cell: self.cell });
        }
        all.extend(
            self.start
                .iter()
                .map(|start| Record::WorkerStarted { start: start.clone(), running: 0 }),
        );
        all.extend(self.shown.map(|kinds| Record::Shown { kinds }));
        all.extend(self.pool.map(|(token, size, floor)| Record::Pool { token, size, floor }));
        for (stream, held) in &self.streams {
            let RememberedStream { token, pinned, lapses, load, next } = held.clone();
            all.push(Record::Stream { stream: stream.clone(), token, pinned, load, next });
            all.extend(lapses.map(|until| Record::Lapsing { stream: stream.clone(), until }));
        }
        all.push(Record::Renewed { until: self.renewed_until });
        let began = |(job, token): (&JobId, &Option<Token>)| Record::JobBegan {
            job: job.clone(),
            token: *token,
        };
        all.extend(self.jobs.iter().map(began));
        all.extend(self.count.map(|(running, in_effect)| Record::Count { running, in_effect }));
        let unnamed = self.unnamed;
        all.extend((unnamed > 0).then_some(Record::Unnamed { running: unnamed }));
        all.extend(self.draining.then_some(Record::Draining));
        all.extend(self.drain_ordered.then_some(Record::DrainOrdered));
        all.extend(self.failing.then_some(Record::Failing));
        all.extend(self.promised.map(|within| Record::Promised { within: Some(within) }));
        all.extend(self.left.then_some(Record::Left));
        all.extend(self.drain_ended.then_some(Record::DrainEnded));
        all
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{SetName, StreamName};

    use super::*;

    /// On a full disk the own end of a lease may be written although the renewal before it was not.
    #[test]
    fn a_lease_with_its_own_end_ends_no_later_than_the_written_renewal() {
        let (set, name) = (SetName::new("s"), StreamName::new("x"));
        let stream = StreamKey { set: set.expect("a name"), stream: name.expect("a name") };
        let token = Token { epoch: Epoch(1), seq: 1 };
        let mut memory = Memory::default();
        let pinned = false;
        let lease =
            Record::Stream { stream: stream.clone(), token, pinned, load: None, next: vec![] };
        memory.apply(&lease);
        memory.apply(&Record::Renewed { until: Moment(10) });
        let lives =
            |memory: &Memory, now| memory.streams[&stream].lives(memory.renewed_until, Moment(now));
        assert!(lives(&memory, 9) && !lives(&memory, 10));
        memory.apply(&Record::Lapsing { stream: stream.clone(), until: Moment(12) });
        assert!(lives(&memory, 9) && !lives(&memory, 10), "the renewal until 12 is not written");
        memory.apply(&Record::Renewed { until: Moment(20) });
        assert!(lives(&memory, 11) && !lives(&memory, 12));
    }
}
