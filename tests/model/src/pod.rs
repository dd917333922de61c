//! One pod: the real holder, its journal, and a worker that runs jobs and uses streams by what its
//! agent last showed it.
//!
//! Invariant: a call is a function of the pod, the input and the pod's clock alone.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_agent_core::{Config, Effect, Holder, Memory, Record};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use leasehold_types::{
    Epoch, GrantNumber, Incarnation, JobId, LinkNumber, Moment, StartId, StreamKey, Token,
};

use crate::journal::{self, RecordingJournal};
use crate::scope::{Names, TTL};
use crate::violation::Violation;

/// A stream or share that the worker uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamUse {
    pub(crate) token: Token,
    /// Until then by its host's clock; `None` if time does not end it.
    pub(crate) until: Option<Moment>,
    /// It was asked for it.
    pub(crate) revoked: bool,
    /// In thousandths of a document per second; 0 for a stream.
    pub(crate) load: u64,
}

/// A pod.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    index: usize,
    names: Names,
    holder: Option<Holder<RecordingJournal>>,
    /// What the journal's records add up to.
    pub(crate) memory: Memory,
    full_disk: bool,
    /// Counts its agents.
    pub(crate) boots: u8,
    /// The agent has left for good.
    pub(crate) left: bool,
    /// Nothing of it runs any more.
    pub(crate) dead: bool,
    /// The link that it wants opened.
    pub(crate) dial: Option<LinkNumber>,
    link: LinkNumber,
    applied: (Epoch, GrantNumber),
    /// The worker has introduced itself to this agent.
    pub(crate) introduced: bool,
    /// What the worker uses.
    pub(crate) streams: BTreeMap<StreamKey, StreamUse>,
    /// The jobs that run, by number.
    pub(crate) jobs: Vec<u8>,
    /// Those of them that the agent knows no id of.
    unnamed: Vec<u8>,
    next_job: u8,
}

/// What happens to a pod.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// An agent starts.
    Boot,
    /// A link is open.
    Opened(LinkNumber),
    /// A link has ended.
    Closed(LinkNumber),
    /// A message comes on a link.
    Message(LinkNumber, CoordinatorMessage),
    /// A wake-up is due.
    Wake,
    /// The worker introduces itself to a new agent.
    Introduce,
    /// The worker asks for a job.
    BeginJob,
    /// The first job ends.
    EndJob,
    /// The worker releases what it was asked for.
    StopUse(StreamKey),
    /// The pod is asked to leave.
    Drain,
    /// The agent's process dies; its journal is kept or not.
    Crash { keep: bool },
    /// All of it dies.
    Kill,
    /// Nothing can be written any more.
    FullDisk,
}

/// What a pod does that others see.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// It sends.
    Send(LinkNumber, AgentMessage),
    /// It ends a link.
    Hangup(LinkNumber),
    /// It has stored that it has this.
    Took(StreamKey, Token),
    /// The same of a pool.
    TookPool(Token),
}

/// What came of a call.
#[derive(Debug, Default)]
pub(crate) struct Called {
    pub(crate) outputs: Vec<Output>,
    pub(crate) violation: Option<Violation>,
}

impl Pod {
    pub(crate) fn new(index: usize, names: Names) -> Self {
        Self {
            index,
            names,
            holder: None,
            memory: Memory::default(),
            full_disk: false,
            boots: 0,
            left: false,
            dead: false,
            dial: None,
            link: LinkNumber(0),
            applied: (Epoch(0), GrantNumber(0)),
            introduced: false,
            streams: BTreeMap::new(),
            jobs: Vec::new(),
            unnamed: Vec::new(),
            next_job: 0,
        }
    }

    /// Whether an agent lives.
    pub(crate) fn is_up(&self) -> bool {
        self.holder.is_some()
    }

    /// When its agent is to be woken.
    pub(crate) fn wake(&self) -> Option<Moment> {
        self.holder.as_ref()?.poll_timeout().map(|wakeup| wakeup.at)
    }

    /// The pool size under which its agent, or a successor with its journal, may start jobs.
    pub(crate) fn size_in_effect(&self, now: Moment) -> u32 {
        match self.memory.pool {
            _ if self.dead || self.left || self.memory.draining => 0,
            Some((_, size, _)) if now < self.memory.renewed_until => size,
            Some((_, _, floor)) => floor,
            None => 0,
        }
    }

    /// The same as if time ended nothing: the token, and the size that is in effect under it.
    pub(crate) fn pool_in_effect(&self) -> Option<(Token, u32)> {
        let (token, size, _) = self.memory.pool?;
        let ended = self.dead || self.left || self.memory.draining;
        Some((token, if ended { 0 } else { size }))
    }

    /// The most jobs that it may be running, now or without another message.
    pub(crate) fn jobs_possible(&self, now: Moment) -> u32 {
        self.size_in_effect(now).max(self.jobs.len() as u32)
    }

    /// All that the worker, or a successor of its agent with its journal, may use as far as time
    /// allows: what, under which token, until when, with which load.
    pub(crate) fn uses(&self) -> Vec<(StreamKey, StreamUse)> {
        let mut all: Vec<_> =
            self.streams.iter().map(|(stream, used)| (stream.clone(), *used)).collect();
        if !(self.left || self.dead) {
            for (stream, held) in &self.memory.streams {
                let until = held.until(self.memory.renewed_until);
                let load = held.load.map_or(0, leasehold_types::Load::milli);
                let used = StreamUse { token: held.token, until, revoked: false, load };
                all.push((stream.clone(), used));
            }
        }
        all
    }

    /// The first stream that the worker was asked to release and still has.
    pub(crate) fn revoked(&self) -> Option<&StreamKey> {
        let up = self.is_up() && self.introduced;
        let asked = self.streams.iter().find(|(_, used)| used.revoked).filter(|_| up);
        asked.map(|(stream, _)| stream)
    }

    /// One input.
    pub(crate) fn call(&mut self, input: Input, now: Moment) -> Called {
        let mut called = Called::default();
        match input {
            Input::Boot => self.boot(now, &mut called),
            Input::Crash { keep } => self.crash(keep),
            Input::Kill => {
                self.crash(true);
                (self.dead, self.introduced) = (true, false);
                self.streams.clear();
                self.jobs.clear();
            }
            Input::FullDisk => self.full_disk = true,
            Input::Opened(link) => {
                (self.link, self.applied) = (link, (Epoch(0), GrantNumber(0)));
                self.dial = None;
                self.ask(&mut called, now, |holder| holder.handle_open(link, now));
            }
            Input::Closed(link) => {
                self.ask(&mut called, now, |holder| holder.handle_closed(link, "ended", now));
            }
            Input::Message(link, message) => self.message(link, message, now, &mut called),
            Input::Wake => self.ask(&mut called, now, |holder| holder.handle_wake(now)),
            Input::Introduce => self.introduce(now, &mut called),
            Input::BeginJob => self.begin_job(now, &mut called),
            Input::EndJob => self.end_job(now, &mut called),
            Input::StopUse(stream) => {
                let Some(used) = self.streams.remove(&stream) else { return called };
                self.ask(&mut called, now, |holder| {
                    let _ = holder.release_stream(&stream, used.token, now);
                });
            }
            Input::Drain => self.ask(&mut called, now, |holder| holder.drain(now)),
        }
        called
    }

    fn boot(&mut self, now: Moment, called: &mut Called) {
        self.boots += 1;
        let fresh = Incarnation(u64::from(self.boots) * 100 + self.index as u64 * 10);
        let incarnation = self.memory.incarnation.map_or(fresh, Incarnation::next);
        let config = Config {
            incarnation,
            identity: self.names.agent(self.index),
            take_over: self.names.takes_over(self.index),
            exposes_bindings: true,
            drain_deadline: Some(TTL + Duration::from_secs(4)),
            ..Config::example(self.names.worker(self.index))
        };
        let memory = self.memory.clone();
        let (holder, records) =
            journal::record(self.full_disk, || Holder::new(config, memory, RecordingJournal, now));
        self.holder = Some(holder);
        self.introduced = false;
        self.apply(&records, called);
        self.effects(now, called);
    }

    fn crash(&mut self, keep: bool) {
        self.holder = None;
        self.dial = None;
        self.link = LinkNumber(0);
        if !keep {
            self.memory = Memory::default();
        }
    }

    /// A message, and whether the agent did what it must not.
    fn message(
        &mut self,
        link: LinkNumber,
        message: CoordinatorMessage,
        now: Moment,
        called: &mut Called,
    ) {
        let epoch = self.memory.epoch.unwrap_or_default();
        // One that no leader has granted anything holds nothing that a lower epoch could harm.
        let was_granted = self.memory.renewed_until > Moment(0);
        let stale = match &message {
            _ if link != self.link => Some(("S10", "a message of an old link")),
            CoordinatorMessage::Grant(grant) if grant.epoch < epoch => {
                Some(("S6", "a grant of a lower epoch"))
            }
            CoordinatorMessage::Grant(grant) if (grant.epoch, grant.number) <= self.applied => {
                Some(("S6", "a grant whose number was applied"))
            }
            CoordinatorMessage::Welcome(welcome) if welcome.epoch < epoch && was_granted => {
                Some(("S6", "a welcome of a lower epoch"))
            }
            _ => None,
        };
        let grant = match &message {
            CoordinatorMessage::Grant(grant) => Some((grant.epoch, grant.number, grant.snapshot)),
            CoordinatorMessage::Welcome(_) | CoordinatorMessage::Refusal(_) => None,
        };
        // What has ended by time is always stored.
        let ended = self.memory.renewed_until <= now;
        let mut changed = false;
        self.ask_and(
            &mut *called,
            now,
            |holder| holder.handle_message(link, message, now),
            |record| {
                changed |= record.is_of_lease() && !(ended && is_end(record));
            },
        );
        if let Some((epoch, number, snapshot)) = grant.filter(|_| stale.is_none())
            && (snapshot || (self.applied.0 == epoch && number == self.applied.1.next()))
        {
            self.applied = (epoch, number);
        }
        if let Some((property, what)) = stale.filter(|_| changed) {
            let detail = format!("a{} acts on {what}", self.index);
            called.violation.get_or_insert(Violation { property, detail });
        }
        let after = self.memory.epoch.unwrap_or_default();
        if after < epoch && was_granted {
            let detail = format!("a{} goes back from epoch {epoch} to {after}", self.index);
            called.violation.get_or_insert(Violation { property: "S6", detail });
        }
    }

    fn introduce(&mut self, now: Moment, called: &mut Called) {
        self.introduced = true;
        let known = |job: &u8| self.memory.jobs.contains_key(&job_id(self.index, *job));
        let unnamed: Vec<_> = self.jobs.iter().copied().filter(|job| !known(job)).collect();
        let running = unnamed.len() as u32;
        self.unnamed = unnamed;
        let start = start_id();
        self.ask(called, now, |holder| _ = holder.start_worker(start, running, now));
        self.show(now, called);
    }

    fn begin_job(&mut self, now: Moment, called: &mut Called) {
        let job = job_id(self.index, self.next_job);
        let draining = self.memory.draining;
        let open = (self.jobs.len() as u32) < self.size_in_effect(now);
        let mut begun = false;
        self.ask(called, now, |holder| begun = holder.begin_job(job, now).is_ok());
        if begun {
            self.jobs.push(self.next_job);
            self.next_job += 1;
            if draining {
                let detail = format!("a{} drains and lets a job start", self.index);
                called.violation.get_or_insert(Violation { property: "S12", detail });
            } else if !open {
                let detail = format!("a{} lets a job start without a live lease", self.index);
                called.violation.get_or_insert(Violation { property: "S1", detail });
            }
        }
    }

    fn end_job(&mut self, now: Moment, called: &mut Called) {
        if self.jobs.is_empty() {
            return;
        }
        let job = self.jobs.remove(0);
        if let Some(at) = self.unnamed.iter().position(|other| *other == job) {
            self.unnamed.remove(at);
            let running = self.unnamed.len() as u32;
            self.ask(called, now, |holder| _ = holder.start_worker(start_id(), running, now));
        } else {
            let job = job_id(self.index, job);
            self.ask(called, now, |holder| _ = holder.end_job(&job, now));
        }
    }

    fn ask(
        &mut self,
        called: &mut Called,
        now: Moment,
        call: impl FnOnce(&mut Holder<RecordingJournal>),
    ) {
        self.ask_and(called, now, call, |_| ());
    }

    /// Calls the holder, if there is one, and takes up what it wants.
    fn ask_and(
        &mut self,
        called: &mut Called,
        now: Moment,
        call: impl FnOnce(&mut Holder<RecordingJournal>),
        mut each: impl FnMut(&Record),
    ) {
        let Some(holder) = self.holder.as_mut() else { return };
        let ((), records) = journal::record(self.full_disk, || call(holder));
        records.iter().for_each(&mut each);
        self.apply(&records, called);
        self.effects(now, called);
    }

    fn apply(&mut self, records: &[Record], called: &mut Called) {
        for record in records {
            self.memory.apply(record);
            match record {
                Record::Stream { stream, token, .. } => {
                    called.outputs.push(Output::Took(stream.clone(), *token));
                }
                Record::Pool { token, .. } => called.outputs.push(Output::TookPool(*token)),
                _ => {}
            }
        }
    }

    fn effects(&mut self, now: Moment, called: &mut Called) {
        let mut changed = false;
        while let Some(holder) = self.holder.as_mut() {
            let Some(effect) = holder.poll_effect() else {
                if !std::mem::take(&mut changed) {
                    return;
                }
                self.show(now, called);
                continue;
            };
            match effect {
                Effect::Send(link, message) => {
                    self.check_sent(&message, called);
                    called.outputs.push(Output::Send(link, message));
                }
                Effect::Hangup(link) => called.outputs.push(Output::Hangup(link)),
                Effect::Dial { link, .. } => self.dial = Some(link),
                Effect::LeaseChanged | Effect::LeaseRenewed => changed = true,
                Effect::DrainEnded { .. } | Effect::Superseded => {
                    self.show(now, called);
                    self.left = true;
                    self.crash(true);
                }
                Effect::DrainOverdue { .. } | Effect::Resumed | Effect::Notice(_) => {}
            }
        }
    }

    /// The worker, which watches its lease, reads it and acts by it at once. One that has not found
    /// a new agent yet continues by what the last one showed it.
    fn show(&mut self, now: Moment, called: &mut Called) {
        let Some(holder) = self.holder.as_mut().filter(|_| self.introduced) else { return };
        let (lease, records) = journal::record(self.full_disk, || holder.lease(now));
        self.apply(&records, called);
        let streams = lease.streams.iter().map(|stream| {
            let (token, until, revoked) = (stream.token, stream.until, stream.revoked.is_some());
            (stream.stream.clone(), StreamUse { token, until, revoked, load: 0 })
        });
        let bindings = lease.bindings.iter().map(|binding| {
            let (token, until, revoked) = (binding.token, binding.until, binding.revoked.is_some());
            let load = binding.load.milli();
            (binding.key.stream(), StreamUse { token, until, revoked, load })
        });
        self.streams = streams.chain(bindings).collect();
        let unwritten = self.streams.iter().find(|(stream, used)| {
            let held = self.memory.streams.get(stream);
            held.is_none_or(|held| held.token != used.token)
        });
        if let Some((stream, used)) = unwritten {
            let (name, token) = (&stream.stream, used.token);
            let detail = format!("a{} shows {name} under {token}, unwritten", self.index);
            called.violation.get_or_insert(Violation { property: "S11", detail });
        }
    }

    /// S11: what an agent sends it has stored.
    fn check_sent(&self, message: &AgentMessage, called: &mut Called) {
        let wrong = match message {
            AgentMessage::Hello(_) => None,
            AgentMessage::Report(report) => (self.memory.epoch != Some(report.epoch))
                .then(|| format!("reports epoch {}, unwritten", report.epoch)),
            AgentMessage::Beat(beat) => beat
                .released
                .iter()
                .find(|release| {
                    let held = self.memory.streams.get(&release.stream);
                    held.is_some_and(|held| held.token == release.token)
                })
                .map(|release| format!("releases {}, unwritten", release.stream.stream)),
        };
        if let Some(wrong) = wrong {
            let detail = format!("a{} {wrong}", self.index);
            called.violation.get_or_insert(Violation { property: "S11", detail });
        }
    }
}

fn is_end(record: &Record) -> bool {
    matches!(record, Record::StreamEnded { .. })
}

fn job_id(pod: usize, job: u8) -> JobId {
    JobId::new(&format!("p{pod}-{job}")).expect("printable")
}

/// No worker's process ever starts again.
fn start_id() -> StartId {
    StartId::new("start").expect("printable")
}
