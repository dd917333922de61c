//! The holder: the leases that one agent holds for its worker.
//!
//! Invariant: a lease is used only after it is in the journal, and its use stops before another
//! worker can be granted it.

mod config;
mod drain;
mod failure;
mod grants;
mod link;
mod node_tables;
mod show;
mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leasehold_types::message::{DrainPhase, HeldPool, Release, Terms, WorkerFailure};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{
    CellId, Epoch, Incarnation, JobId, Load, Moment, NodeName, Share, ShareKey, StartId, StreamKey,
    TermId, Token,
};

pub use self::config::{Config, INCARNATION_OFFSET_MAX};
use crate::effect::{DrainCancelled, Effect, Notice, WakeReason, Wakeup};
use crate::journal::{Journal, JournalError, Memory, Record, end_of_lease};
use crate::lease::LeaseKinds;
use link::Link;
use node_tables::NodeTables;

/// The state of one agent.
#[derive(Clone, Debug)]
pub struct Holder<J> {
    config: Config,
    journal: J,
    /// The first incarnation that wrote the journal, and when it was begun.
    first: Incarnation,
    begun: Moment,
    complete: bool,
    epoch: Option<Epoch>,
    /// The identity of the term of that epoch.
    term: TermId,
    /// The cell that it belongs to: it obeys no coordinator of another one.
    cell: Option<CellId>,
    terms: Option<Terms>,
    link: Link,
    pool: Option<Pool>,
    /// The newest generation whose workers get slots before this one, as the newest grant says.
    newer_generation: Option<u64>,
    /// The end of all renewed leases.
    renewed_until: Moment,
    /// The pool has expired to its floor, and was not renewed since.
    pool_expired: bool,
    streams: BTreeMap<StreamKey, Held>,
    /// The workers of the nodes that its shares lead to.
    tables: NodeTables,
    /// The kinds of leases that the worker may have seen, according to the journal.
    shown: LeaseKinds,
    /// The highest token of all applied grants: a lower one that is not held was released.
    token_max: Token,
    /// Records that could not be written yet. Until they are, no renewal may be written that would
    /// extend what they end.
    deferred: Vec<Record>,
    /// Released leases that were not reported yet.
    released: Vec<Release>,
    /// Leases that the worker released, newest first.
    released_by_worker: VecDeque<(StreamKey, Token)>,
    start: Option<StartId>,
    /// Each with the token under which it began, where that is known.
    jobs: BTreeMap<JobId, Option<Token>>,
    jobs_known: bool,
    /// The number of jobs without a known id, which began under an agent whose journal was lost.
    unnamed: u32,
    /// Since the worker's start, this agent has admitted a job with an id.
    asks_for_jobs: bool,
    count: Option<Count>,
    drain: Drain,
    /// The coordinator ordered the drain.
    drain_ordered: bool,
    /// The drain was asked for here: no order takes it back.
    drain_requested: bool,
    /// The drain comes from the journal, not from a request to this agent.
    drain_remembered: bool,
    /// Why the worker fails its check; none if it passes.
    failure: Option<WorkerFailure>,
    /// Within which time the worker promises its next call.
    promised: Option<Duration>,
    /// The agent may have reported that it leaves.
    left: bool,
    /// The incarnation under which it has, if it has no answer and goes on to report so.
    left_as: Option<Incarnation>,
    version: u64,
    effects: VecDeque<Effect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pool {
    token: Token,
    size: u32,
    floor: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    token: Token,
    pinned: bool,
    /// Its own end, if it is no longer renewed.
    lapses: Option<Moment>,
    /// If revoked: the deadline for the release.
    revoked: Option<Moment>,
    /// The worker has seen it, so only the worker can release it.
    shown: bool,
    /// Set if it is a share of a pipeline.
    binding: Option<Binding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Binding {
    key: ShareKey,
    share: Option<HeldShare>,
}

/// What a coordinator has told of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldShare {
    /// It is fixed for a token.
    load: Load,
    /// The nodes that documents go to from here. They may change.
    next: Vec<NodeName>,
}

/// The report of a worker that counts its own jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    running: u32,
    in_effect: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    Working,
    Draining { since: Moment, overdue: bool },
    Leaving { give_up: Moment },
    Left,
}

impl<J: Journal> Holder<J> {
    /// A holder that continues from `memory`, the content of the journal, and dials at once.
    #[must_use]
    pub fn new(config: Config, memory: Memory, journal: J, now: Moment) -> Self {
        // Without a record of this, the worker may have seen all leases.
        let shown = memory.shown.unwrap_or(LeaseKinds::ALL);
        let held = |(stream, remembered): (&StreamKey, &crate::journal::RememberedStream)| {
            let next = &remembered.next;
            let share = remembered.load.map(|load| HeldShare { load, next: next.clone() });
            let mut held = Held::new(stream, remembered.token, remembered.pinned, share);
            held.lapses = remembered.lapses;
            held.shown = held.is_for_worker(&config) && held.is_of(shown);
            (stream.clone(), held)
        };
        let streams: BTreeMap<_, _> = memory.streams.iter().map(held).collect();
        let tokens =
            streams.values().map(|stream| stream.token).chain(memory.pool.map(|pool| pool.0));
        let drain = if memory.draining {
            Drain::Draining { since: now, overdue: false }
        } else {
            Drain::Working
        };
        // A drain that has ended does not apply to a new start.
        let ended = (memory.drain_ended || memory.left)
            && !memory.drain_ordered
            && !config.stays_after_drain;
        let (first, begun) = memory.begun.unwrap_or((config.incarnation, now));
        let mut holder = Self {
            first,
            begun,
            complete: memory.complete,
            epoch: memory.epoch,
            term: memory.term,
            cell: memory.cell,
            terms: None,
            link: Link::first(now),
            pool: memory.pool.map(|(token, size, floor)| Pool { token, size, floor }),
            newer_generation: None,
            renewed_until: memory.renewed_until,
            pool_expired: false,
            token_max: tokens.max().unwrap_or_default(),
            streams,
            // The endpoints are unknown until a coordinator sends them.
            tables: NodeTables::default(),
            shown,
            deferred: Vec::new(),
            released: Vec::new(),
            released_by_worker: VecDeque::new(),
            start: memory.start,
            jobs: memory.jobs,
            jobs_known: memory.jobs_known,
            unnamed: memory.unnamed,
            asks_for_jobs: false,
            count: memory.count.map(|(running, in_effect)| Count { running, in_effect }),
            drain,
            drain_ordered: memory.drain_ordered,
            // A drain that was asked for of an earlier process ended with it, unless it stays.
            drain_requested: false,
            drain_remembered: memory.draining,
            failure: memory.failing.then(failure::of_earlier_agent),
            promised: memory.promised,
            left: memory.left,
            left_as: None,
            version: 1,
            effects: VecDeque::new(),
            config,
            journal,
        };
        holder.write_begun();
        if holder.streams.is_empty() && shown != LeaseKinds::NONE {
            holder.write_none_shown();
        }
        if ended {
            // If this cannot be recorded, the next start ends the drain again.
            let _ = holder.end_drain(DrainCancelled::Restart, now);
        } else if holder.left {
            // Its drain goes on, and others may have had the name since it left.
            holder.restart_journal_of_leaver(now);
        }
        holder.dial_first();
        holder
    }

    /// Processes due timers. May be called at any time.
    pub fn handle_wake(&mut self, now: Moment) {
        self.expire(now);
        self.check_failure();
        self.check_drain(now);
        self.check_link(now);
    }

    /// The journal.
    pub fn journal(&self) -> &J {
        &self.journal
    }

    /// The journal, mutable.
    pub fn journal_mut(&mut self) -> &mut J {
        &mut self.journal
    }

    /// The cell that the agent belongs to.
    #[must_use]
    pub fn cell(&self) -> Option<CellId> {
        self.cell
    }

    /// The version of the lease, which grows with every change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The next effect, oldest first.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`Self::handle_wake`], if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Wakeup> {
        let lease_end = self.next_end().map(|at| Wakeup { at, reason: WakeReason::LeaseEnd });
        [self.link.wakeup(self.terms.as_ref()), self.drain_wakeup(), lease_end]
            .into_iter()
            .flatten()
            .min()
    }

    /// The running jobs with an id, each with the token under which it began, where that is known.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobId, Option<Token>)> {
        self.jobs.iter().map(|(job, token)| (job, *token))
    }

    /// How many jobs may run at once at this moment.
    fn size(&self, now: Moment) -> u32 {
        match self.pool {
            _ if self.draining() && !mutation::on(Mutation::AdmitWhileDraining) => 0,
            _ if self.is_failing() && !mutation::on(Mutation::AdmitWhileFailing) => 0,
            None => 0,
            Some(pool) if now < self.renewed_until => pool.size,
            Some(pool) if mutation::on(Mutation::KeepAfterExpiry) => pool.size,
            Some(pool) => pool.floor,
        }
    }

    /// The most jobs that may start under the held pool, renewed or not, as beats report it.
    fn size_in_effect(&self) -> u32 {
        // A successor that finds no drain in the journal would start jobs again.
        let written = !self.deferred.contains(&Record::Draining);
        let ended = self.draining() && (written || mutation::on(Mutation::TellUnwritten));
        let ended = ended || self.failure_is_in_effect();
        let size = self.pool.filter(|_| !ended).map_or(0, |pool| pool.size);
        let count = self.count.filter(|_| !mutation::on(Mutation::ObeyedSizeUntold));
        size.max(count.map_or(0, |count| count.in_effect))
    }

    fn held_pool(&self) -> Option<HeldPool> {
        let size = self.size_in_effect();
        self.pool.map(|Pool { token, size: granted, floor }| HeldPool {
            token,
            size,
            granted,
            floor,
        })
    }

    /// How many jobs run, as far as is known.
    #[must_use]
    pub fn running(&self) -> u32 {
        let ids = u32::try_from(self.jobs.len()).unwrap_or(u32::MAX);
        let counted = self.count.map_or(0, |count| count.running);
        if mutation::on(Mutation::UnnamedUncounted) {
            ids.saturating_add(counted)
        } else {
            ids.saturating_add(counted).saturating_add(self.unnamed)
        }
    }

    fn draining(&self) -> bool {
        self.drain != Drain::Working
    }

    /// Whether it takes neither jobs nor streams.
    fn takes_nothing(&self) -> bool {
        self.draining() || self.is_failing()
    }

    fn drain_phase(&self) -> DrainPhase {
        match self.drain {
            // A worker that fails its check is served like one that drains.
            Drain::Working if self.reported_failure().is_some() => DrainPhase::Draining,
            Drain::Working => DrainPhase::Working,
            Drain::Leaving { .. } | Drain::Left if self.may_report_leaving() => DrainPhase::Leaving,
            Drain::Draining { .. } | Drain::Leaving { .. } | Drain::Left => DrainPhase::Draining,
        }
    }

    /// Whether the journal has everything that the report of leaving says, so that no successor
    /// contradicts it.
    fn may_report_leaving(&self) -> bool {
        (self.left && self.deferred.is_empty()) || mutation::on(Mutation::TellUnwritten)
    }

    fn changed(&mut self) {
        self.version += 1;
        self.effects.push_back(Effect::LeaseChanged);
    }

    fn notice(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Notice(notice));
    }

    /// Writes a record; a failure goes to the log and to the caller.
    fn write(&mut self, record: &Record) -> Result<(), JournalError> {
        let written = self.journal.append(record);
        if let Err(JournalError(why)) = &written {
            self.notice(Notice::JournalFailed(why.clone()));
        }
        written
    }

    /// Writes a record that ends something. If it cannot be written, it is deferred.
    fn write_or_defer(&mut self, record: Record) -> Result<(), JournalError> {
        let written = self.write(&record);
        if written.is_err() && !mutation::on(Mutation::OwedForgotten) {
            self.deferred.push(record);
        }
        written
    }

    /// Writes the deferred records, oldest first.
    fn write_deferred(&mut self) -> Result<(), JournalError> {
        while let Some(record) = self.deferred.first().cloned() {
            self.write(&record)?;
            self.deferred.remove(0);
            if let Record::StreamEnded { stream, token } = record {
                self.released.push(Release { stream, token });
            }
        }
        Ok(())
    }

    /// Writes a record whose loss does no harm: a successor then assumes more than is held.
    fn write_if_possible(&mut self, record: &Record) {
        let _ = self.write(record);
    }

    /// Records the start of this agent. Until then it sends its incarnation to no coordinator,
    /// since the next agent might take the same one.
    fn write_begun(&mut self) {
        let (incarnation, begun, first) = (self.config.incarnation, self.begun, self.first);
        let _ = self.write_or_defer(Record::Begun { incarnation, begun, first });
    }

    fn begun_is_deferred(&self) -> bool {
        self.deferred.iter().any(|record| matches!(record, Record::Begun { .. }))
    }
}

impl Held {
    /// A lease that the worker has not seen.
    fn new(stream: &StreamKey, token: Token, pinned: bool, share: Option<HeldShare>) -> Self {
        let binding = ShareKey::of(stream).map(|key| Binding { key, share });
        Self { token, pinned, lapses: None, revoked: None, shown: false, binding }
    }

    /// Whether it is of one of these kinds.
    fn is_of(&self, kinds: LeaseKinds) -> bool {
        if self.binding.is_some() { kinds.bindings } else { kinds.streams }
    }

    /// Whether the worker sees it.
    fn is_for_worker(&self, config: &Config) -> bool {
        self.binding.is_none() || config.exposes_bindings
    }

    fn share(&self) -> Option<&HeldShare> {
        self.binding.as_ref()?.share.as_ref()
    }

    /// Its load, if it is a share.
    fn load(&self) -> Option<Load> {
        self.share().map(|share| share.load)
    }

    /// Its record in the journal, without its end.
    fn record(&self, stream: &StreamKey) -> Record {
        let next = self.share().map_or(&[][..], |share| &share.next);
        Record::Stream {
            stream: stream.clone(),
            token: self.token,
            pinned: self.pinned,
            load: self.load(),
            next: next.to_vec(),
        }
    }

    /// Takes the next nodes from a grant; returns whether they changed.
    fn update_next(&mut self, granted: Option<&Share>) -> bool {
        let Some((binding, granted)) = self.binding.as_mut().zip(granted) else { return false };
        let mut share = HeldShare::of(granted);
        if let Some(held) = &binding.share {
            // The load is fixed for a token, whatever the grant contains.
            share.load = held.load;
        }
        let has_changed = binding.share.as_ref() != Some(&share);
        binding.share = Some(share);
        has_changed
    }

    /// When the lease ends, if it ends by time.
    fn until(&self, renewed_until: Moment) -> Option<Moment> {
        end_of_lease(self.pinned, self.lapses, renewed_until)
    }

    fn has_ended(&self, renewed_until: Moment, now: Moment) -> bool {
        self.until(renewed_until).is_some_and(|until| until <= now)
    }
}

impl HeldShare {
    fn of(granted: &Share) -> Self {
        let next = granted.next.iter().map(|route| route.node.clone()).collect();
        Self { load: granted.load, next }
    }
}
