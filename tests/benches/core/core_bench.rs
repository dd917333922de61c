//! A core with a fleet around it that answers at once: each turn is timed, what answers is not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_coordinator_core::exposure::{Entry, Exposure, SetList};
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::limits::RELEASED_MAX;
use leasehold_types::message::{
    Beat, CoordinatorMessage, Grant, HeldPool, HeldStream, Hello, Jobs, Release, Report,
    StreamState,
};
use leasehold_types::{
    ClusterName, Epoch, GrantNumber, Incarnation, Moment, Nonce, StreamKey, TermId, Token,
    WorkerKey,
};

use crate::fleet::Shape;
use crate::format_time;

const EPOCH: Epoch = Epoch(2);
/// A term that outlasts the benchmark.
const TERM: Duration = Duration::from_secs(100_000);
/// Beats that are looked at, where all are alike.
const BEATS_MAX: usize = 2_000;

pub(crate) struct CoreBench {
    shape: Shape,
    core: Core,
    now: Moment,
    desired: Desired,
    agents: Vec<Agent>,
    events: VecDeque<Event>,
    /// Agents that give something back.
    releasing: BTreeSet<usize>,
    turns: BTreeMap<&'static str, Vec<Duration>>,
    pub(crate) largest: Duration,
}

pub(crate) struct Agent {
    key: WorkerKey,
    nonce: Nonce,
    applied: GrantNumber,
    pool: Option<HeldPool>,
    jobs: u32,
    streams: BTreeMap<StreamKey, Token>,
    released: Vec<Release>,
    silent: bool,
}

impl CoreBench {
    pub(crate) fn new(shape: Shape) -> Self {
        let mut agents: Vec<_> = (0..shape.workers).map(|at| Agent::new(&shape, at)).collect();
        let desired = shape.desired();
        if !shape.fresh {
            hold_all(&shape, &desired, &mut agents);
        }
        Self {
            core: Core::new(Config::default()),
            now: Moment(1_000_000_000_000),
            desired,
            agents,
            events: VecDeque::new(),
            releasing: BTreeSet::new(),
            turns: BTreeMap::new(),
            largest: Duration::ZERO,
            shape,
        }
    }

    pub(crate) fn desire(&mut self) {
        let desired = Arc::new(self.desired.clone());
        self.turn(Event::Desired(desired));
        self.show("standby");
    }

    pub(crate) fn elect(&mut self) {
        let list = |cluster: &ClusterName| {
            let sets = self.desired.sets.iter().filter(|(_, set)| set.cluster == *cluster);
            SetList::from_iter(sets.map(|(set, _)| (set.clone(), false)))
        };
        let clusters = self.desired.clusters.keys();
        let lists: BTreeMap<_, _> = clusters.map(|name| (name.clone(), list(name))).collect();
        let exposure = |agent: &Agent| {
            let sets = &lists[&agent.key.cluster];
            let exposure = Exposure {
                incarnation: Incarnation(1),
                ttl: Duration::from_secs(30),
                jobs_max: self.shape.jobs_per_worker_max(),
                sets: sets.sets(),
                identity: None,
                fresh_agent: None,
            };
            Entry { epoch: Epoch(1), exposure }
        };
        let exposed = self.agents.iter().filter(|_| !self.shape.fresh);
        let exposed = exposed.map(|agent| (agent.key.clone(), exposure(agent))).collect();
        let elected = Elected {
            epoch: EPOCH,
            term: TermId(0),
            cell: None,
            until: self.now + TERM,
            predecessor_end: self.now,
            exposed,
            unreadable: Default::default(),
        };
        self.turn(Event::Elected(elected));
    }

    pub(crate) fn connect(&mut self) {
        for at in 0..self.agents.len() {
            let hello = self.agents[at].hello(self.shape.fresh);
            self.turn(Event::Hello(ConnId(at as u64), hello, None));
            let report = self.agents[at].report();
            self.events.push_back(Event::Report(ConnId(at as u64), report));
            self.answer();
        }
    }

    /// Until everything that was gathered is planned and handed out.
    pub(crate) fn wait_for_plans(&mut self) {
        for _ in 0..3 {
            self.pass(Duration::from_millis(600));
        }
        let owned: usize = self.agents.iter().map(|agent| agent.streams.len()).sum();
        assert_eq!(owned, self.shape.streams, "every stream has an owner");
    }

    /// Some agents beat, each after `change`.
    pub(crate) fn beat_all(&mut self, change: impl Fn(&mut Agent)) {
        for at in 0..self.agents.len().min(BEATS_MAX) {
            change(&mut self.agents[at]);
            self.beat(at);
        }
        self.answer();
    }

    pub(crate) fn one_more_job(&mut self) {
        self.beat_all(|agent| agent.jobs += 1);
    }

    /// One worker gives all its streams back.
    pub(crate) fn give_back_one(&mut self) {
        let at = self.agents.len() - 1;
        let agent = &mut self.agents[at];
        let streams = std::mem::take(&mut agent.streams).into_iter();
        agent.released = streams.map(|(stream, token)| Release { stream, token }).collect();
        while !self.agents[at].released.is_empty() {
            self.beat(at);
            self.answer();
        }
        self.pass(Duration::from_millis(600));
    }

    /// One worker is silent until its streams are others'.
    pub(crate) fn lose_one(&mut self) {
        self.agents[0].silent = true;
        for _ in 0..8 {
            for at in 1..self.agents.len() {
                self.beat(at);
            }
            self.answer();
            self.turns.remove("Beat");
            self.pass(Duration::from_secs(8));
        }
        self.agents[0].streams.clear();
    }

    pub(crate) fn gone_one(&mut self) {
        self.agents[1].silent = true;
        self.agents[1].streams.clear();
        let key = self.agents[1].key.clone();
        self.turn(Event::Gone(vec![key]));
        self.answer();
        self.pass(Duration::from_millis(600));
    }

    pub(crate) fn edit_one_stream(&mut self) {
        let Some(set) = self.desired.sets.first_entry() else { return };
        let mut spec = (**set.get()).clone();
        Arc::make_mut(&mut spec.streams).pop();
        *set.into_mut() = Arc::new(spec);
        let desired = Arc::new(self.desired.clone());
        self.turn(Event::Desired(desired));
        self.answer();
        self.pass(Duration::from_millis(600));
    }

    pub(crate) fn edit_budget(&mut self) {
        let Some(cluster) = self.desired.clusters.first_entry() else { return };
        let mut spec = (**cluster.get()).clone();
        // Less, since the budget may be the largest there is.
        spec.jobs_max -= spec.jobs_max / 10;
        *cluster.into_mut() = Arc::new(spec);
        let desired = Arc::new(self.desired.clone());
        self.turn(Event::Desired(desired));
        self.answer();
    }

    pub(crate) fn depose(&mut self) {
        self.turn(Event::Deposed { leader: None });
    }

    /// Prints what turns took since it was last called.
    pub(crate) fn show(&mut self, what: &str) {
        println!("  {what}");
        for (kind, mut times) in std::mem::take(&mut self.turns) {
            times.sort_unstable();
            let at = |part: usize| format_time(times[(times.len() - 1) * part / 100]);
            println!(
                "    {kind:<12}{:>8} turns{:>14} median{:>14} p99{:>14} largest",
                times.len(),
                at(50),
                at(99),
                at(100)
            );
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(wake) = self.core.poll_timeout().filter(|wake| wake.at <= end) {
            self.now = self.now.max(wake.at);
            self.turn(Event::Wake);
            self.answer();
        }
        self.now = self.now.max(end);
        self.turn(Event::Wake);
        self.answer();
    }

    /// Delivers messages until none is left.
    fn answer(&mut self) {
        while let Some(event) = self.events.pop_front() {
            self.turn(event);
            if self.events.is_empty() {
                for at in std::mem::take(&mut self.releasing) {
                    self.beat(at);
                    if !self.agents[at].released.is_empty() {
                        self.releasing.insert(at);
                    }
                }
            }
        }
    }

    fn beat(&mut self, at: usize) {
        if !self.agents[at].silent {
            let beat = self.agents[at].beat();
            self.turn(Event::Beat(ConnId(at as u64), beat));
        }
    }

    fn turn(&mut self, event: Event) {
        let kind = kind(&event);
        let start = Instant::now();
        self.core.handle(event, self.now);
        self.core.settle(self.now, self.now);
        self.note(kind, start.elapsed());
        self.take_effects();
        while self.core.has_more() {
            let start = Instant::now();
            self.core.settle(self.now, self.now);
            self.note("(more)", start.elapsed());
            self.take_effects();
        }
    }

    fn note(&mut self, kind: &'static str, time: Duration) {
        self.largest = self.largest.max(time);
        self.turns.entry(kind).or_default().push(time);
    }

    fn obey(&mut self, epoch: Epoch, order: Order) {
        match order {
            Order::Register(workers) => self.events.push_back(Event::Registered(workers)),
            Order::Confirm | Order::AskTerm { .. } => {
                let (sent_at, until) = (self.now, self.now + TERM);
                self.events.push_back(Event::Renewed(Renewed { epoch, sent_at, until }));
            }
            Order::StepDown { .. } => panic!("this term must not end"),
            Order::Unregister(_) => {}
        }
    }

    fn take_effects(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Send { conn, message } => {
                    if let CoordinatorMessage::Grant(grant) = message {
                        let at = conn.0 as usize;
                        self.agents[at].take(grant);
                        if !self.agents[at].released.is_empty() {
                            self.releasing.insert(at);
                        }
                    }
                    self.events.push_back(Event::Sent(conn));
                }
                Effect::Order { epoch, order } => self.obey(epoch, order),
                Effect::Notice(_) | Effect::Close(_) => {}
            }
        }
    }
}

impl Agent {
    fn new(shape: &Shape, at: usize) -> Self {
        Self {
            key: WorkerKey { cluster: shape.cluster_of(at), worker: Shape::worker(at) },
            nonce: Nonce(0),
            applied: GrantNumber(0),
            pool: None,
            jobs: 0,
            streams: BTreeMap::new(),
            released: Vec::new(),
            silent: false,
        }
    }

    fn hello(&self, fresh: bool) -> Hello {
        Hello { epoch_seen: (!fresh).then_some(Epoch(1)), ..Hello::example(self.key.clone()) }
    }

    fn report(&mut self) -> Report {
        self.nonce = self.nonce.next();
        let held = |(stream, token): (&StreamKey, &Token)| HeldStream {
            stream: stream.clone(),
            token: *token,
            pinned: false,
            load: None,
            revoked: false,
        };
        Report {
            epoch: EPOCH,
            nonce: self.nonce,
            pool: self.pool,
            streams: self.streams.iter().map(held).collect(),
            jobs: Jobs::Running(self.jobs),
            ..Report::example()
        }
    }

    fn beat(&mut self) -> Beat {
        self.nonce = self.nonce.next();
        let told = self.released.len().min(RELEASED_MAX);
        Beat {
            epoch: EPOCH,
            nonce: self.nonce,
            applied: self.applied,
            pool: self.pool,
            jobs: Jobs::Running(self.jobs),
            released: self.released.drain(..told).collect(),
            ..Beat::example()
        }
    }

    fn take(&mut self, grant: Grant) {
        self.applied = grant.number;
        if let Some(pool) = grant.pool {
            self.pool = Some(HeldPool {
                token: pool.token,
                size: pool.size,
                granted: pool.size,
                floor: pool.floor,
            });
        }
        for news in grant.streams {
            match news.state {
                StreamState::Held { .. } => _ = self.streams.insert(news.stream, news.token),
                StreamState::Revoked { .. } => {
                    self.streams.remove(&news.stream);
                    self.released.push(Release { stream: news.stream, token: news.token });
                }
            }
        }
    }
}

/// Gives each agent what a leader before would have granted it.
fn hold_all(shape: &Shape, desired: &Desired, agents: &mut [Agent]) {
    let mut seq = 0;
    let mut token = || {
        seq += 1;
        Token { epoch: Epoch(1), seq }
    };
    for agent in agents.iter_mut() {
        let size = shape.jobs_per_worker;
        agent.pool = Some(HeldPool { token: token(), size, granted: size, floor: 0 });
        agent.jobs = size / 2;
    }
    let per_cluster = shape.workers / shape.clusters;
    for at in 0..shape.sets {
        let set = Shape::set(at);
        let cluster = at % shape.clusters;
        for (place, stream) in desired.sets[&set].streams.iter().enumerate() {
            // The next set of a cluster begins where the one before has ended.
            let place = place + at / shape.clusters * (shape.streams / shape.sets);
            let worker = cluster + shape.clusters * (place % per_cluster);
            let key = StreamKey { set: set.clone(), stream: stream.name.clone() };
            agents[worker].streams.insert(key, token());
        }
    }
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::Hello(..) => "Hello",
        Event::Report(..) => "Report",
        Event::Beat(..) => "Beat",
        Event::Closed(_) => "Closed",
        Event::Sent(_) => "Sent",
        Event::Desired(_) => "Desired",
        Event::Elected(_) => "Elected",
        Event::NamespacesRead(_) => "NamespacesRead",
        Event::Renewed(_) => "Renewed",
        Event::Deposed { .. } => "Deposed",
        Event::Registered(_) => "Registered",
        Event::Unregistered(_) => "Unregistered",
        Event::Gone(_) => "Gone",
        Event::Removed(_) => "Removed",
        Event::Drain(_) => "Drain",
        Event::Undrain(_) => "Undrain",
        Event::Avoid(_) => "Avoid",
        Event::TermStands { .. } => "TermStands",
        Event::Wake => "Wake",
    }
}
