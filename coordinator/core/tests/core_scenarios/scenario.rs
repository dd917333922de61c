//! One core, and the commands that act on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::core::WhatIfPlan;
use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, RolloutOrder, Stream, StreamSet,
};
use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_coordinator_core::exposure::{Entry, Exposure, SetList};
use leasehold_coordinator_core::view::WhatIf;
use leasehold_coordinator_core::{Config, Core};
use leasehold_scenario::{Language, Words};
use leasehold_types::message::{
    Beat, DrainPhase, HeldPool, HeldStream, Hello, Jobs, Release, Report, ReportedMemory,
    WorkerFailure,
};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{
    AgentId, CellId, ClusterName, Epoch, GrantNumber, Incarnation, LinkNumber, Moment, Nonce,
    SetName, StreamKey, StreamName, TermId, Token, WorkerKey, WorkerName,
};

use crate::shown::shown;

/// There is one cluster, `c`, and one stream set, `s`, unless a command names another cluster.
const LEGEND: &str = "
config [reports=N] [slice=UNITS]
    starts another replica: the reports that may wait at once, and the units of work of a turn:
    `config slice=4`
cluster [name=CLUSTER] [max=JOBS] [per=JOBS] [floor=JOBS] [ttl=TIME] [lost=TIME] [order=fair]
    defines a cluster: the most jobs at once over all workers (8), on one (3), and on one without a
    lease (0), how long leases last (10s), after which silence a worker is given up (never), and
    who gets slots first in a rollout (the newest): `cluster max=4 lost=60s`
set STREAM… [mode=pinned] [handover=TIME] [moves=N] [cooldown=TIME] [cluster=CLUSTER]
    defines the set: its streams, its mode (expiring), the time to give a stream back (30s), the
    most that move at once (all), and how long one stays after it was moved for balance (0s):
    `set a b c d cooldown=30s`
unread on|off
    removes the set; with `on` it exists, and its list cannot be read: `unread off`
elect EPOCH [term=N] [cell=N] [exposed=WORKER[:IDENTITY],…] [pinned=WORKER,…] \
[fresh=WORKER:IDENTITY,…] [predecessor=TIME] [no-leader=TIME]
    starts a term: its identity and cell, the workers that have an entry with the set, and with a
    pinned set, the agents before which nothing was outstanding, for how long a predecessor may
    still grant, and for how long none has led: `elect 2 exposed=w1,w2 no-leader=600s`
depose
    another replica leads: `depose`
renew
    the platform confirms the leadership: `renew`
answers [on|off] [confirm=late]
    whether the platform and the connections answer at once (on); with `late` a renewal waits for
    `confirmed`: `answers confirm=late`
confirmed
    the platform answers the renewal that waits: `confirmed`
hello CONN WORKER [cluster=CLUSTER] [inc=INCARNATION] [link=N] [seen=EPOCH] [term=N] [cell=N] \
[gen=GENERATION] [id=N] [peer=ADDRESS] [knows=INCARNATION] [take_over=yes] \
[protocol=OLDEST-NEWEST]
    an agent dials: its incarnation (1) and link (CONN), the epoch, term and cell that it has
    obeyed, its worker's generation (0), its identity and address, from which incarnation on its
    journal is complete (0: all), whether it takes the name over, and the protocols that it speaks:
    `hello 2 w1 inc=9 link=1 id=8 knows=9`
report CONN [NONCE] [knows=INCARNATION] [aged=yes] [left=INCARNATION] \
[pool=TOKEN:SIZE[/GRANTED[/FLOOR]]] [run=JOBS] [streams=STREAM:TOKEN,…] [drain=PHASE]
    an agent reports what it holds; the journal is aged unless `knows` stands alone; it has said
    goodbye before, as `left`; sizes and jobs are 0 if left out, and `?` jobs are unknown; PHASE is
    draining, leaving or failing: `report 1 7 pool=1.1:1 run=1`
beat CONN NONCE applied=NUMBER [pool=TOKEN:SIZE[/GRANTED[/FLOOR]]] [run=JOBS] \
[released=STREAM:TOKEN,…] [drain=PHASE]
    an agent sends a beat: the newest grant that it has applied, and the streams that it gives
    back: `beat 1 3 applied=3 run=0 released=b:1.3`
close CONN
    a connection ends: `close 1`
gone WORKER
    the platform declares a worker gone: `gone w3`
removed WORKER
    the platform no longer has a worker, which may still run: `removed w1`
drain WORKER
    a worker is to drain: `drain w1`
undrain WORKER
    this order is taken back: `undrain w1`
avoid [WORKER…]
    these workers, and no others, get nothing new while others have room: `avoid w1`
after TIME
    time passes, then the core wakes up: `after 9s`
look
    shows the set in figures: `look`
plan [max=JOBS]
    shows the pools as planned, maybe under another budget: `plan max=9`
explain WORKER
    shows what a worker does, the first three facts, and what to do about it: `explain w1`
";

pub(crate) struct CoreScenario {
    core: Core,
    now: Moment,
    desired: Desired,
    epoch: Epoch,
    /// The platform and the connections answer without a command.
    answers: bool,
    /// Renewals are answered without a command, too.
    confirms: bool,
    /// When the unanswered renewal was sent.
    confirming: Option<Moment>,
}

impl Language for CoreScenario {
    const FOLDER: &'static str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/core");
    const LEGEND: &'static str = LEGEND;

    fn new() -> Self {
        Self {
            core: Core::new(Config::default()),
            now: Moment(1_000_000_000_000),
            desired: Desired::default(),
            epoch: Epoch(0),
            answers: true,
            confirms: true,
            confirming: None,
        }
    }

    fn command(&mut self, verb: &str, words: &mut Words, outcome: &mut String) {
        match verb {
            "config" => self.config(words),
            "cluster" => self.cluster(words),
            "set" => self.set(words),
            "unread" => self.unread(words),
            "elect" => self.elect(words),
            "depose" => self.handle(Event::Deposed { leader: None }),
            "renew" => self.renew(self.now),
            "answers" => {
                self.answers = words.choice(["on", "off"]) != Some("off");
                self.confirms = !words.is("confirm", "late");
            }
            "confirmed" => {
                let sent_at = self.confirming.take().expect("a renewal was sent");
                self.renew(sent_at);
            }
            "hello" => self.hello(words),
            "report" => self.report(words),
            "beat" => self.beat(words),
            "close" => self.handle(Event::Closed(conn(words))),
            "gone" => self.handle(Event::Gone(vec![key(words.next("WORKER"))])),
            "removed" => self.handle(Event::Removed(vec![key(words.next("WORKER"))])),
            "drain" => self.handle(Event::Drain(key(words.next("WORKER")))),
            "undrain" => self.handle(Event::Undrain(key(words.next("WORKER")))),
            "avoid" => {
                let workers = words.rest("WORKER…").into_iter().map(key).collect();
                self.handle(Event::Avoid(Arc::new(workers)));
            }
            "after" => {
                self.now = self.now + words.time("TIME");
                self.handle(Event::Wake);
            }
            "look" => self.look(outcome),
            "plan" => self.plan(words, outcome),
            "explain" => self.explain(words, outcome),
            _ => words.fail("the verb is not carried out"),
        }
    }

    /// Lets the core act and the other parties answer, until nothing follows.
    fn complete(&mut self, _: &str, outcome: &mut String) {
        loop {
            self.core.settle(self.now, self.now);
            let mut answered = false;
            while let Some(effect) = self.core.poll_effect() {
                if let Some(line) = shown(&effect) {
                    let _ = writeln!(outcome, "{line}");
                }
                answered |= self.answers && self.answer(effect);
            }
            if !answered && !self.core.has_more() {
                return;
            }
        }
    }
}

impl CoreScenario {
    fn handle(&mut self, event: Event) {
        self.core.handle(event, self.now);
    }

    fn config(&mut self, words: &mut Words) {
        let default = Config::default();
        let reports_max = words.parse_value("reports").unwrap_or(default.reports_max);
        let slice = words.parse_value("slice").unwrap_or(default.slice);
        let small_reports_max = reports_max;
        self.core = Core::new(Config { reports_max, small_reports_max, slice, ..default });
    }

    fn cluster(&mut self, words: &mut Words) {
        let cluster = Cluster {
            jobs_max: words.parse_value("max").unwrap_or(8),
            jobs_per_worker_max: words.parse_value("per").unwrap_or(3),
            drain_deadline: Duration::from_secs(3600),
            ttl: words.duration("ttl").unwrap_or(Duration::from_secs(10)),
            floor: words.parse_value("floor").unwrap_or(0),
            lost_after: words.duration("lost"),
            rollout_order: if words.is("order", "fair") {
                RolloutOrder::Fair
            } else {
                RolloutOrder::Newest
            },
            ..Cluster::example()
        };
        let name = words.parse_value("name").unwrap_or_else(cluster_name);
        self.desired.clusters.insert(name, Arc::new(cluster));
        self.handle(Event::Desired(Arc::new(self.desired.clone())));
    }

    fn set(&mut self, words: &mut Words) {
        let stream = |name: &str| Stream {
            name: StreamName::new(name).expect("a stream"),
            weight: 1,
            dedicated: false,
        };
        let set = StreamSet {
            cluster: words.parse_value("cluster").unwrap_or_else(cluster_name),
            streams: Arc::new(words.rest("STREAM…").into_iter().map(stream).collect()),
            policy: Policy::Sticky,
            mode: if words.is("mode", "pinned") { Mode::Pinned } else { Mode::Expiring },
            handover_deadline: words.duration("handover").unwrap_or(Duration::from_secs(30)),
            moves: Moves {
                per_round_max: words.parse_value("moves").unwrap_or(usize::MAX),
                cooldown: words.duration("cooldown").unwrap_or_default(),
                settle: Duration::ZERO,
            },
        };
        self.desired.unread.clear();
        self.desired.sets.insert(set_name(), Arc::new(set));
        self.handle(Event::Desired(Arc::new(self.desired.clone())));
    }

    fn unread(&mut self, words: &mut Words) {
        let unread = words.choice(["on", "off"]).expect("on or off") == "on";
        self.desired.sets.remove(&set_name());
        self.desired.unread = unread.then(set_name).into_iter().collect();
        self.handle(Event::Desired(Arc::new(self.desired.clone())));
    }

    fn elect(&mut self, words: &mut Words) {
        self.epoch = Epoch(words.parse("EPOCH"));
        let fresh: BTreeMap<_, _> = words.list("fresh").into_iter().map(with_identity).collect();
        let mut exposed = BTreeMap::new();
        for (name, timeless) in [("exposed", false), ("pinned", true)] {
            for (worker, identity) in words.list(name).into_iter().map(with_identity) {
                let exposure = Exposure {
                    incarnation: Incarnation(1),
                    ttl: Duration::from_secs(10),
                    jobs_max: 3,
                    sets: SetList::from_iter([(set_name(), timeless)]).sets(),
                    identity,
                    fresh_agent: fresh.get(worker).copied().flatten(),
                };
                exposed.insert(key(worker), Entry { epoch: Epoch(0), exposure });
            }
        }
        let behind = words.duration("no-leader").unwrap_or_default();
        let ahead = words.duration("predecessor").unwrap_or_default();
        let elected = Elected {
            epoch: self.epoch,
            term: TermId(words.parse_value("term").unwrap_or(0)),
            cell: words.parse_value("cell").map(CellId),
            until: self.now + Duration::from_secs(3600),
            predecessor_end: Moment(self.now.0 - behind.as_nanos() as u64) + ahead,
            exposed,
            unreadable: Default::default(),
        };
        self.handle(Event::Elected(elected));
    }

    fn hello(&mut self, words: &mut Words) {
        let conn = conn(words);
        let worker = words.parse("WORKER");
        let cluster = words.parse_value("cluster").unwrap_or_else(cluster_name);
        let hello = Hello {
            incarnation: Incarnation(words.parse_value("inc").unwrap_or(1)),
            link: LinkNumber(words.parse_value("link").unwrap_or(conn.0)),
            epoch_seen: words.parse_value("seen").map(Epoch),
            term_seen: TermId(words.parse_value("term").unwrap_or(0)),
            cell: words.parse_value("cell").map(CellId),
            generation: words.parse_value("gen").unwrap_or(0),
            identity: words.parse_value("id").map(AgentId),
            take_over: words.is("take_over", "yes"),
            protocol: words.value("protocol").map_or(ProtocolRange::OWN, protocol),
            knows_from: Incarnation(words.parse_value("knows").unwrap_or(0)),
            ..Hello::example(WorkerKey { cluster, worker })
        };
        let peer = words.value("peer").map(Arc::from);
        self.handle(Event::Hello(conn, hello, peer));
    }

    fn report(&mut self, words: &mut Words) {
        let held = |(stream, token)| HeldStream {
            stream,
            token,
            pinned: false,
            revoked: false,
            load: None,
        };
        let conn = conn(words);
        let nonce = words.next_if_any("NONCE").map_or(1, |nonce| nonce.parse().expect("a nonce"));
        let knows_from = words.parse_value("knows").map(Incarnation);
        let aged = words.is("aged", "yes") || knows_from.is_none();
        let left = words.parse_value("left").map(Incarnation);
        let (drain, failure) = drain(words);
        let report = Report {
            epoch: self.epoch,
            nonce: Nonce(nonce),
            memory: ReportedMemory { knows_from: knows_from.unwrap_or_default(), aged, left },
            pool: words.value("pool").map(pool),
            streams: words.list("streams").into_iter().map(stream_token).map(held).collect(),
            jobs: jobs(words),
            drain,
            failure,
        };
        self.handle(Event::Report(conn, report));
    }

    fn beat(&mut self, words: &mut Words) {
        let release = |(stream, token)| Release { stream, token };
        let conn = conn(words);
        let (drain, failure) = drain(words);
        let beat = Beat {
            epoch: self.epoch,
            nonce: Nonce(words.parse("NONCE")),
            applied: GrantNumber(words.required("applied")),
            pool: words.value("pool").map(pool),
            jobs: jobs(words),
            drain,
            failure,
            released: words.list("released").into_iter().map(stream_token).map(release).collect(),
            ..Beat::example()
        };
        self.handle(Event::Beat(conn, beat));
    }

    fn look(&self, outcome: &mut String) {
        let set = self.desired.sets.keys().next().expect("a set");
        let view = self.core.set(set).expect("a view of it");
        let _ = writeln!(
            outcome,
            "set streams={} owned={} moving={} unplaced={} workers={} current={}",
            view.streams,
            view.owned,
            view.moving,
            view.unplaced,
            view.workers,
            view.workers_current
        );
    }

    fn plan(&self, words: &mut Words, outcome: &mut String) {
        let what_if = WhatIf { jobs_max: words.parse_value("max"), ..WhatIf::default() };
        let plan = WhatIfPlan::begin(&self.core, &cluster_name(), &what_if, self.now);
        let mut plan = plan.expect("a cluster");
        while !plan.gather(&self.core, 1).expect("the same term") {}
        while !plan.place(1) {}
        for pool in plan.into_view().pools {
            let (size, committed) = (pool.size, pool.committed);
            let _ = writeln!(outcome, "{} {size}, uses {committed}: {}", pool.worker, pool.reason);
        }
    }

    fn explain(&self, words: &mut Words, outcome: &mut String) {
        let worker = key(words.next("WORKER"));
        let answer = self.core.explain_worker(&worker, self.now).expect("the worker is known");
        let _ = writeln!(outcome, "{}", answer.summary);
        for fact in answer.facts.iter().take(3) {
            let _ = writeln!(outcome, "  {fact}");
        }
        let _ = writeln!(outcome, "  -> {}", answer.next_step);
    }

    fn renew(&mut self, sent_at: Moment) {
        let until = self.now + Duration::from_secs(3600);
        self.handle(Event::Renewed(Renewed { epoch: self.epoch, sent_at, until }));
    }

    fn answer(&mut self, effect: Effect) -> bool {
        match effect {
            Effect::Send { conn, .. } => self.handle(Event::Sent(conn)),
            Effect::Order { order: Order::Register(workers), .. } => {
                self.handle(Event::Registered(workers));
            }
            Effect::Order { order: Order::Unregister(workers), .. } => {
                self.handle(Event::Unregistered(workers));
            }
            Effect::Order { order: Order::Confirm, .. } if !self.confirms => {
                self.confirming = Some(self.now);
                return false;
            }
            Effect::Order { order: Order::Confirm, .. } => self.renew(self.now),
            _ => return false,
        }
        true
    }
}

fn cluster_name() -> ClusterName {
    ClusterName::new("c").expect("a cluster")
}

fn set_name() -> SetName {
    SetName::new("s").expect("a set")
}

fn key(worker: &str) -> WorkerKey {
    WorkerKey { cluster: cluster_name(), worker: WorkerName::new(worker).expect("a worker") }
}

fn conn(words: &mut Words) -> ConnId {
    ConnId(words.parse("CONN"))
}

/// `WORKER[:IDENTITY]`
fn with_identity(text: &str) -> (&str, Option<AgentId>) {
    match text.split_once(':') {
        Some((worker, id)) => (worker, Some(AgentId(id.parse().expect("an identity")))),
        None => (text, None),
    }
}

/// `TOKEN:SIZE[/GRANTED[/FLOOR]]`
fn protocol(text: &str) -> ProtocolRange {
    let (oldest, newest) = text.split_once('-').unwrap_or((text, text));
    let [oldest, newest] = [oldest, newest].map(|number| number.parse().expect("a version"));
    ProtocolRange::new(oldest, newest).expect("a range")
}

fn pool(text: &str) -> HeldPool {
    let (token, sizes) = text.split_once(':').expect("TOKEN:SIZE");
    let mut sizes = sizes.split('/').map(|size| size.parse().expect("a size"));
    let mut next = || sizes.next().unwrap_or_default();
    let token = token.parse().expect("a token");
    HeldPool { token, size: next(), granted: next(), floor: next() }
}

/// `STREAM:TOKEN`
fn stream_token(text: &str) -> (StreamKey, Token) {
    let (name, token) = text.split_once(':').expect("STREAM:TOKEN");
    let stream = StreamName::new(name).expect("a stream");
    (StreamKey { set: set_name(), stream }, token.parse().expect("a token"))
}

fn jobs(words: &mut Words) -> Jobs {
    match words.value("run") {
        Some("?") => Jobs::Unknown,
        running => Jobs::Running(running.map_or(0, |count| count.parse().expect("a count"))),
    }
}

/// How far a drain has come; a worker that fails its check counts as one that drains.
fn drain(words: &mut Words) -> (DrainPhase, Option<WorkerFailure>) {
    match words.value("drain") {
        None => (DrainPhase::Working, None),
        Some("draining") => (DrainPhase::Draining, None),
        Some("failing") => (DrainPhase::Draining, WorkerFailure::new("no answer")),
        Some("leaving") => (DrainPhase::Leaving, None),
        Some(other) => words.fail(format_args!("no drain phase {other:?}")),
    }
}
