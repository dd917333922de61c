//! The holder: everything that one agent holds for its worker. What it has journalled it may use;
//! what it may not use any more it has stopped before anybody else can be granted it.

mod drain;
mod grants;
mod link;
mod show;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{DrainPhase, HeldPool, Release, Terms};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::{Route, WorkerAddress};
use leasehold_types::{
    AgentId, ClusterName, Epoch, Incarnation, JobId, Load, Moment, NodeName, Share, ShareKey,
    StartId, StreamKey, Token, WorkerName,
};

use crate::effect::{Effect, Notice, WakeReason, Wakeup};
use crate::journal::{Journal, JournalError, Memory, Record, end_of_lease};
use crate::lease::Kinds;
use link::Link;

/// Who the holder is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster that its worker belongs to.
    pub cluster: ClusterName,
    /// Its worker.
    pub worker: WorkerName,
    /// Its incarnation: above every earlier one's as far as anyone here knows.
    pub incarnation: Incarnation,
    /// Which installation of an agent it is.
    pub identity: Option<AgentId>,
    /// Whether it takes its name from another agent, alive or not.
    pub take_over: bool,
    /// Its worker's rollout generation.
    pub generation: u64,
    /// Whether it can stop its worker when a lease ends.
    pub stops_worker: bool,
    /// Where its worker is reached by those before it in a pipeline.
    pub address: Option<WorkerAddress>,
    /// Whether its worker learns of its bindings and is asked for them: where it does not, what is
    /// revoked is released at once.
    pub shows_bindings: bool,
    /// How long a drain may take; the coordinator's word where none is given.
    pub drain_deadline: Option<Duration>,
    /// How long an agent that is done tries to write that down, and to say so to a coordinator that
    /// it does not reach.
    pub goodbye_max: Duration,
    /// Whether it goes on after a drain's deadline until its worker holds nothing: for an agent
    /// that does not end before its worker.
    pub stays: bool,
    /// By how much it goes above the number of another agent that has its name: a random number
    /// from 1 to [`RAISE_MAX`], so that no other agent comes to the same one.
    pub raise: u64,
}

/// The most by which an agent goes above another's incarnation, which are milliseconds: a later
/// agent, whose number is its clock's, is older for so long at most, and is then raised, too.
pub const RAISE_MAX: u64 = 1 << 20;

/// The state of one agent.
#[derive(Clone, Debug)]
pub struct Holder<J> {
    config: Config,
    journal: J,
    /// The first incarnation that wrote the journal, and when it began.
    first: Incarnation,
    begun: Moment,
    complete: bool,
    epoch: Option<Epoch>,
    terms: Option<Terms>,
    link: Link,
    pool: Option<Pool>,
    /// The end of all that renewals cover.
    renewed_until: Moment,
    /// The pool has fallen to its floor, and was not renewed since.
    pool_expired: bool,
    streams: BTreeMap<StreamKey, Held>,
    /// Of which kinds of them the worker may have seen some, as the journal says.
    shown: Kinds,
    /// The highest token of all grants that were applied: a lower one was once released.
    token_max: Token,
    /// Records that could not be written: until they are, the journal must not say that what
    /// they end goes on.
    deferred: Vec<Record>,
    /// Released, and not yet reported.
    released: Vec<Release>,
    /// What the worker gave back, newest first.
    released_by_worker: VecDeque<(StreamKey, Token)>,
    start: Option<StartId>,
    jobs: BTreeSet<JobId>,
    jobs_known: bool,
    /// Jobs without a known id: they began under an agent whose journal was lost.
    unnamed: u32,
    count: Option<Count>,
    drain: Drain,
    /// The coordinator wants the drain.
    drain_ordered: bool,
    /// This agent was not asked for the drain: it is from the journal.
    drain_remembered: bool,
    /// The agent may have reported that it leaves.
    left: bool,
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
    /// Its own end, where renewals no longer cover it.
    lapses: Option<Moment>,
    /// Revoked: until when the worker should have let go.
    revoked: Option<Moment>,
    /// The worker has seen it, so only the worker can release it.
    shown: bool,
    /// Where it is a share of a pipeline.
    binding: Option<Binding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Binding {
    key: ShareKey,
    /// What came with it: its load, which lasts as long as its token, and the way on, which does
    /// not and of which a journal has the nodes alone.
    share: Option<Arc<Share>>,
}

/// The report of a worker that asks for no single job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    running: u32,
    obeyed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    Working,
    Draining { since: Moment, overdue: bool },
    Leaving { give_up: Moment },
    Left,
}

impl<J: Journal> Holder<J> {
    /// A holder that takes up what `memory` (its predecessors' journal, or nothing) says, and
    /// dials at once.
    #[must_use]
    pub fn new(config: Config, memory: Memory, journal: J, now: Moment) -> Self {
        // Of a journal that does not say it, the worker may have seen all.
        let shown = memory.shown.unwrap_or(Kinds::ALL);
        let held = |(stream, remembered): (&StreamKey, &crate::journal::RememberedStream)| {
            // A coordinator must first say who serves the next nodes.
            let route = |node: &NodeName| Route { node: node.clone(), endpoints: Vec::new() };
            let next = || remembered.next.iter().map(route).collect();
            let share = remembered.load.map(|load| Arc::new(Share { load, next: next() }));
            let mut held = Held::new(stream, remembered.token, remembered.pinned, share);
            held.lapses = remembered.lapses;
            held.shown = held.is_for_worker(&config) && held.is_of(shown);
            (stream.clone(), held)
        };
        let streams: BTreeMap<_, _> = memory.streams.iter().map(held).collect();
        let tokens = streams.values().map(|it| it.token).chain(memory.pool.map(|it| it.0));
        let drain = match memory.draining {
            true => Drain::Draining { since: now, overdue: false },
            false => Drain::Working,
        };
        // A drain that has ended belongs to the life that ended with it.
        let ended = (memory.drain_ended || memory.left) && !memory.drain_ordered && !config.stays;
        let (first, begun) = memory.begun.unwrap_or((config.incarnation, now));
        let mut holder = Self {
            first,
            begun,
            complete: memory.complete,
            epoch: memory.epoch,
            terms: None,
            link: Link::first(now),
            pool: memory.pool.map(|(token, size, floor)| Pool { token, size, floor }),
            renewed_until: memory.renewed_until,
            pool_expired: false,
            token_max: tokens.max().unwrap_or_default(),
            streams,
            shown,
            deferred: Vec::new(),
            released: Vec::new(),
            released_by_worker: VecDeque::new(),
            start: memory.start,
            jobs: memory.jobs,
            jobs_known: memory.jobs_known,
            unnamed: memory.unnamed,
            count: memory.count.map(|(running, obeyed)| Count { running, obeyed }),
            drain,
            drain_ordered: memory.drain_ordered,
            drain_remembered: memory.draining,
            left: memory.left,
            version: 1,
            effects: VecDeque::new(),
            config,
            journal,
        };
        holder.write_begun();
        if holder.streams.is_empty() && shown != Kinds::NONE {
            holder.write_none_shown();
        }
        if ended {
            // Where it cannot be recorded, it ends once more.
            let _ = holder.end_drain(now);
        }
        holder.dial_first();
        holder
    }

    /// The wake-up that was asked for, or any moment.
    pub fn handle_wake(&mut self, now: Moment) {
        self.expire(now);
        self.check_drain(now);
        self.check_link(now);
    }

    /// Where its records go.
    pub fn journal(&self) -> &J {
        &self.journal
    }

    /// The same, to see to it that they can.
    pub fn journal_mut(&mut self) -> &mut J {
        &mut self.journal
    }

    /// The version of the lease: grows with every change.
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

    /// How many jobs may run at once now.
    fn size(&self, now: Moment) -> u32 {
        match self.pool {
            _ if self.draining() && !mutation::on(Mutation::AdmitWhileDraining) => 0,
            None => 0,
            Some(pool) if now < self.renewed_until => pool.size,
            Some(pool) if mutation::on(Mutation::KeepAfterExpiry) => pool.size,
            Some(pool) => pool.floor,
        }
    }

    /// The most jobs that may start under what is held, renewed or not: what a beat reports.
    fn size_in_effect(&self) -> u32 {
        // A successor that finds no drain in the journal would start jobs again.
        let written = !self.deferred.contains(&Record::Draining);
        let ended = self.draining() && (written || mutation::on(Mutation::TellUnwritten));
        let size = self.pool.filter(|_| !ended).map_or(0, |pool| pool.size);
        let count = self.count.filter(|_| !mutation::on(Mutation::ObeyedSizeUntold));
        size.max(count.map_or(0, |count| count.obeyed))
    }

    fn held_pool(&self) -> Option<HeldPool> {
        self.pool.map(|pool| HeldPool { token: pool.token, size: self.size_in_effect() })
    }

    fn running(&self) -> u32 {
        let ids = u32::try_from(self.jobs.len()).unwrap_or(u32::MAX);
        let counted = self.count.map_or(0, |count| count.running);
        match mutation::on(Mutation::UnnamedUncounted) {
            false => ids.saturating_add(counted).saturating_add(self.unnamed),
            true => ids.saturating_add(counted),
        }
    }

    fn draining(&self) -> bool {
        self.drain != Drain::Working
    }

    fn drain_phase(&self) -> DrainPhase {
        match self.drain {
            Drain::Working => DrainPhase::Working,
            Drain::Leaving { .. } | Drain::Left if self.may_report_leaving() => DrainPhase::Leaving,
            Drain::Draining { .. } | Drain::Leaving { .. } | Drain::Left => DrainPhase::Draining,
        }
    }

    /// Whether the journal has all that a goodbye says: whatever it says is over stays so for
    /// every successor.
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

    /// Writes a record that ends something; where it cannot be written, it is owed.
    fn write_or_defer(&mut self, record: Record) -> Result<(), JournalError> {
        let written = self.write(&record);
        if written.is_err() && !mutation::on(Mutation::OwedForgotten) {
            self.deferred.push(record);
        }
        written
    }

    /// Writes what is owed, oldest first.
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

    /// Writes a record whose loss does no harm: a successor then assumes more than is true.
    fn write_if_possible(&mut self, record: &Record) {
        let _ = self.write(record);
    }

    /// Writes that this agent begins. Until that is written it sends its number to no coordinator,
    /// since the next agent might take the same.
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
    fn new(stream: &StreamKey, token: Token, pinned: bool, share: Option<Arc<Share>>) -> Self {
        let binding = ShareKey::of(stream).map(|key| Binding { key, share });
        Self { token, pinned, lapses: None, revoked: None, shown: false, binding }
    }

    /// Whether it is of one of these kinds.
    fn is_of(&self, kinds: Kinds) -> bool {
        if self.binding.is_some() { kinds.bindings } else { kinds.streams }
    }

    /// Whether the worker learns of it.
    fn is_for_worker(&self, config: &Config) -> bool {
        self.binding.is_none() || config.shows_bindings
    }

    fn share(&self) -> Option<&Share> {
        self.binding.as_ref()?.share.as_deref()
    }

    /// The load that came with it, where it is a share.
    fn load(&self) -> Option<Load> {
        self.share().map(|share| share.load)
    }

    /// What a journal has of it, but for its end.
    fn record(&self, stream: &StreamKey) -> Record {
        let next = self.share().into_iter().flat_map(|share| &share.next);
        Record::Stream {
            stream: stream.clone(),
            token: self.token,
            pinned: self.pinned,
            load: self.load(),
            next: next.map(|route| route.node.clone()).collect(),
        }
    }

    /// Takes the way on from `told`; whether it is another.
    fn update_routes(&mut self, told: Option<&Arc<Share>>) -> bool {
        let Some((binding, told)) = self.binding.as_mut().zip(told) else { return false };
        let (load, same) = match &binding.share {
            None => (told.load, false),
            // The load lasts as long as the token does, whatever the grant says.
            Some(held) => (held.load, held.next == told.next),
        };
        if !same {
            let whole = load == told.load;
            let next = || Arc::new(Share { load, next: told.next.clone() });
            binding.share = Some(if whole { told.clone() } else { next() });
        }
        !same
    }

    /// When the lease ends, if it does by time.
    fn until(&self, renewed_until: Moment) -> Option<Moment> {
        end_of_lease(self.pinned, self.lapses, renewed_until)
    }

    fn has_ended(&self, renewed_until: Moment, now: Moment) -> bool {
        self.until(renewed_until).is_some_and(|until| until <= now)
    }
}
