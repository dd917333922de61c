//! Scenario files: `testdata/core/*.txt` holds commands, and under `----` their outcome. The
//! language is read in [`Scenario::run`]. To regenerate the outcomes: `LEASEHOLD_REGENERATE=1 cargo
//! test -p leasehold-coordinator-core --test core_scenarios`.

#[path = "core_scenarios/shown.rs"]
mod shown;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, RolloutOrder, Stream, StreamSet,
};
use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_coordinator_core::exposure::{Entry, Exposure, SetList};
use leasehold_coordinator_core::view::WhatIf;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{
    Beat, DrainPhase, HeldPool, HeldStream, Hello, Jobs, Release, Report, ReportedMemory,
    WorkerFailure,
};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{
    AgentId, CellId, ClusterName, Epoch, GrantNumber, Incarnation, LinkNumber, Moment, Nonce,
    SetName, StreamKey, StreamName, TermId, Token, WorkerKey, WorkerName, duration,
};
use shown::shown;

#[test]
fn scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/core");
    let entries = std::fs::read_dir(folder).expect("testdata/core");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no scenario");
    for file in files {
        check(&file);
    }
}

/// Faults, and the scenarios that detect them. No run of the simulator detects some of them.
const DETECTED_HERE: [(Mutation, &str); 10] = [
    (Mutation::OtherCellServed, "other_cell"),
    (Mutation::RemovedIsGone, "removed"),
    (Mutation::FormerModeHolds, "modes"),
    (Mutation::MovedSetStays, "moved_set"),
    (Mutation::EpochRepeated, "epoch_repeated"),
    (Mutation::RaisedAlike, "epoch_repeated"),
    (Mutation::RefusedIsSilent, "refused_is_heard"),
    (Mutation::SilentWithoutLeader, "no_leader"),
    (Mutation::UnplannedPoolIsEmpty, "failover_pools"),
    (Mutation::UnreportedTakesSlots, "failover_pools"),
];

#[test]
fn faults_change_their_scenarios() {
    for (fault, name) in DETECTED_HERE.iter().filter(|_| mutation::BUILT_IN) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/core");
        let file = folder.join(name).with_extension("txt");
        let text = std::fs::read_to_string(file).expect("a scenario");
        mutation::set(Some(*fault));
        let fresh = outcome(&text);
        mutation::set(None);
        assert_ne!(fresh, text, "{name} does not detect {fault:?}");
    }
}

/// The text of a scenario with the outcome that its commands have now.
fn outcome(text: &str) -> String {
    let mut scenario = Scenario::new();
    let mut fresh = String::new();
    for block in text.trim_end().split("\n\n") {
        let commands = block.split("\n----").next().expect("a block");
        let outcome = scenario.block(commands);
        let _ = write!(fresh, "{commands}\n----\n{outcome}\n");
    }
    fresh.trim_end().to_string() + "\n"
}

/// Runs one file, and compares the outcome of each block with the file.
fn check(file: &Path) {
    let text = std::fs::read_to_string(file).expect("a scenario");
    let fresh = outcome(&text);
    if std::env::var_os("LEASEHOLD_REGENERATE").is_some() {
        std::fs::write(file, &fresh).expect("write the scenario");
        return;
    }
    assert_eq!(fresh, text, "{}", file.display());
}

struct Scenario {
    core: Core,
    now: Moment,
    desired: Desired,
    agents: BTreeMap<u64, (WorkerName, Epoch)>,
    epoch: Epoch,
    /// The platform and the connections answer without a command.
    answers: bool,
    /// Renewals are answered without a command, too.
    confirms: bool,
    /// When the unanswered renewal was sent.
    confirming: Option<Moment>,
}

type Words<'a> = BTreeMap<&'a str, &'a str>;

impl Scenario {
    fn new() -> Self {
        Self {
            core: Core::new(Config::default()),
            now: Moment(1_000_000_000_000),
            desired: Desired::default(),
            agents: BTreeMap::new(),
            epoch: Epoch(0),
            answers: true,
            confirms: true,
            confirming: None,
        }
    }

    fn block(&mut self, commands: &str) -> String {
        let mut out = String::new();
        for line in commands.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line {
                "look" => self.look(&mut out),
                line if line.starts_with("plan") => self.plan(line, &mut out),
                line if line.starts_with("explain") => self.explain(line, &mut out),
                _ => self.run(line),
            }
            self.settle(&mut out);
        }
        out
    }

    /// `explain WORKER`: what the worker does, the first facts, and what to do about it.
    fn explain(&self, line: &str, out: &mut String) {
        let worker = line.split_whitespace().nth(1).expect("a worker");
        let said = self.core.explain_worker(&key(worker), self.now).expect("it is known");
        let _ = writeln!(out, "{}", said.summary);
        said.facts.iter().take(3).for_each(|fact| {
            let _ = writeln!(out, "  {fact}");
        });
        let _ = writeln!(out, "  -> {}", said.next_step);
    }

    /// One command: a verb, then words, some of them KEY=VALUE.
    fn run(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a verb");
        let (pairs, plain): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        let pairs: Words = pairs.iter().filter_map(|pair| pair.split_once('=')).collect();
        match verb {
            "config" => {
                let number = |name, or| pairs.get(name).map_or(or, |it| it.parse().expect(name));
                let reports_max = number("reports", Config::default().reports_max);
                let slice = number("slice", Config::default().slice as usize) as u32;
                let small_reports_max = reports_max;
                let config = Config { reports_max, small_reports_max, slice, ..Config::default() };
                self.core = Core::new(config);
            }
            "cluster" => self.cluster(&pairs),
            "set" => self.set(&plain, &pairs),
            "unread" => self.unread(plain[0] == "on"),
            "elect" => self.elect(&plain, &pairs),
            "hello" => self.hello(&plain, &pairs),
            "report" => self.report(&plain, &pairs),
            "beat" => self.beat(&plain, &pairs),
            "close" => self.core.handle(Event::Closed(conn(plain[0])), self.now),
            "gone" => self.core.handle(Event::Gone(vec![key(plain[0])]), self.now),
            "removed" => self.core.handle(Event::Removed(vec![key(plain[0])]), self.now),
            "drain" => self.core.handle(Event::Drain(key(plain[0])), self.now),
            "undrain" => self.core.handle(Event::Undrain(key(plain[0])), self.now),
            "avoid" => {
                let workers = plain.iter().map(|worker| key(worker)).collect();
                self.core.handle(Event::Avoid(Arc::new(workers)), self.now);
            }
            "depose" => self.core.handle(Event::Deposed { leader: None }, self.now),
            "renew" => self.renew(self.now),
            "answers" => {
                self.answers = plain.first().is_none_or(|it| *it == "on");
                self.confirms = pairs.get("confirm") != Some(&"late");
            }
            "confirmed" => {
                let sent_at = self.confirming.take().expect("a renewal was sent");
                self.renew(sent_at);
            }
            "after" => {
                self.now = self.now + time(plain[0]);
                self.core.handle(Event::Wake, self.now);
            }
            _ => panic!("no command {verb:?}"),
        }
    }

    /// The set in figures.
    fn look(&self, out: &mut String) {
        let set = self.desired.sets.keys().next().expect("a set");
        let view = self.core.set(set).expect("a view of it");
        let _ = writeln!(
            out,
            "set streams={} owned={} moving={} unplaced={} workers={} current={}",
            view.streams,
            view.owned,
            view.moving,
            view.unplaced,
            view.workers,
            view.workers_current
        );
    }

    /// `plan [max=N]`: the pools under another budget.
    fn plan(&self, line: &str, out: &mut String) {
        let jobs_max = line.split_once("max=").map(|(_, max)| max.parse().expect("a number"));
        let what_if = WhatIf { jobs_max, ..WhatIf::default() };
        let plan = self.core.begin_what_if(&cluster_name(), &what_if, self.now);
        let mut plan = plan.expect("a cluster");
        while !self.core.gather_what_if(&mut plan, 1).expect("the same term") {}
        while !plan.place(1) {}
        for pool in plan.into_view().pools {
            let (size, committed) = (pool.size, pool.committed);
            let _ = writeln!(out, "{} {size}, uses {committed}: {}", pool.worker, pool.reason);
        }
    }

    fn cluster(&mut self, pairs: &Words) {
        let number = |name: &str, or: u32| pairs.get(name).map_or(or, |it| it.parse().expect(name));
        let cluster = Cluster {
            jobs_max: number("max", 8),
            jobs_per_worker_max: number("per", 3),
            drain_deadline: Duration::from_secs(3600),
            ttl: pairs.get("ttl").map_or(Duration::from_secs(10), |ttl| time(ttl)),
            floor: number("floor", 0),
            lost_after: pairs.get("lost").map(|lost| time(lost)),
            rollout_order: match pairs.get("order") {
                Some(&"fair") => RolloutOrder::Fair,
                _ => RolloutOrder::Newest,
            },
            class: None,
        };
        let name = pairs.get("name").map_or_else(cluster_name, |name| named_cluster(name));
        self.desired.clusters.insert(name, Arc::new(cluster));
        self.core.handle(Event::Desired(Arc::new(self.desired.clone())), self.now);
    }

    fn set(&mut self, streams: &[&str], pairs: &Words) {
        let stream = |name: &&str| Stream {
            name: StreamName::new(name).expect("a stream"),
            weight: 1,
            dedicated: false,
        };
        let cluster = pairs.get("cluster").map_or_else(cluster_name, |name| named_cluster(name));
        let set = StreamSet {
            cluster,
            streams: streams.iter().map(stream).collect(),
            policy: Policy::Sticky,
            mode: match pairs.get("mode") {
                Some(&"pinned") => Mode::Pinned,
                _ => Mode::Expiring,
            },
            handover_deadline: pairs
                .get("handover")
                .map_or(Duration::from_secs(30), |handover| time(handover)),
            moves: Moves {
                per_round_max: pairs
                    .get("moves")
                    .map_or(usize::MAX, |it| it.parse().expect("moves")),
                cooldown: pairs.get("cooldown").map_or(Duration::ZERO, |cooldown| time(cooldown)),
                settle: Duration::ZERO,
            },
        };
        self.desired.unread.clear();
        self.desired.sets.insert(SetName::new("s").expect("a set"), Arc::new(set));
        self.core.handle(Event::Desired(Arc::new(self.desired.clone())), self.now);
    }

    /// Whether the set exists and its list cannot be read, or neither.
    fn unread(&mut self, unread: bool) {
        let name = SetName::new("s").expect("a set");
        self.desired.sets.remove(&name);
        self.desired.unread = unread.then_some(name).into_iter().collect();
        self.core.handle(Event::Desired(Arc::new(self.desired.clone())), self.now);
    }

    /// `elect EPOCH [exposed=w1,w2:IDENTITY] [pinned=w3] [fresh=w2:IDENTITY] [predecessor=TIME]
    /// [no-leader=TIME]`: a predecessor may grant for that much longer, or none has led for it.
    fn elect(&mut self, plain: &[&str], pairs: &Words) {
        self.epoch = Epoch(plain[0].parse().expect("an epoch"));
        let mut exposed = BTreeMap::new();
        for (name, timeless) in [("exposed", false), ("pinned", true)] {
            for worker in pairs.get(name).into_iter().flat_map(|it| it.split(',')) {
                let (worker, id) = worker.split_once(':').unwrap_or((worker, ""));
                let list = SetList::from_iter([(SetName::new("s").expect("a set"), timeless)]);
                let exposure = Exposure {
                    incarnation: Incarnation(1),
                    ttl: Duration::from_secs(10),
                    jobs_max: 3,
                    sets: list.sets(),
                    identity: id.parse().ok().map(AgentId),
                    fresh_agent: pairs.get("fresh").and_then(|fresh| fresh_agent(fresh, worker)),
                };
                exposed.insert(key(worker), Entry { epoch: Epoch(0), exposure });
            }
        }
        let span = |name: &str| pairs.get(name).map_or(Duration::ZERO, |span| time(span));
        let (ahead, behind) = (span("predecessor"), span("no-leader"));
        let elected = Elected {
            epoch: self.epoch,
            term: TermId(pairs.get("term").map_or(0, |term| term.parse().expect("a term"))),
            cell: pairs.get("cell").map(|cell| CellId(cell.parse().expect("a cell"))),
            until: self.now + Duration::from_secs(3600),
            predecessor_end: Moment(self.now.0 - behind.as_nanos() as u64) + ahead,
            exposed,
            unreadable: Default::default(),
        };
        self.core.handle(Event::Elected(elected), self.now);
    }

    /// `hello CONN WORKER [inc=N] [link=N] [seen=EPOCH [term=N]] [gen=N] [file=yes] [id=N]
    /// [peer=IP:PORT] [knows=INCARNATION] [take_over=yes] [cluster=NAME] [version=A.B.C]
    /// [cell=N]`
    fn hello(&mut self, plain: &[&str], pairs: &Words) {
        let number = |name: &str, or: u64| pairs.get(name).map_or(or, |it| it.parse().expect(name));
        let worker = WorkerName::new(plain[1]).expect("a worker");
        let id: u64 = plain[0].parse().expect("a connection");
        self.agents.insert(id, (worker.clone(), self.epoch));
        let cluster = pairs.get("cluster").map_or_else(cluster_name, |name| named_cluster(name));
        let hello = Hello {
            protocol: number("protocol", 1) as u32,
            incarnation: Incarnation(number("inc", 1)),
            link: LinkNumber(number("link", id)),
            epoch_seen: pairs.get("seen").map(|seen| Epoch(seen.parse().expect("an epoch"))),
            term_seen: TermId(number("term", 0)),
            cell: pairs.get("cell").map(|_| CellId(number("cell", 0).into())),
            stops_worker: !pairs.contains_key("file"),
            generation: number("gen", 0),
            identity: pairs.get("id").map(|_| AgentId(number("id", 0).into())),
            take_over: pairs.contains_key("take_over"),
            knows_from: Incarnation(number("knows", 0)),
            version: pairs.get("version").map(|it| it.parse().expect("a version")),
            ..Hello::example(WorkerKey { cluster, worker })
        };
        let peer = pairs.get("peer").map(|peer| Arc::from(*peer));
        self.core.handle(Event::Hello(conn(plain[0]), hello, peer), self.now);
    }

    /// `report CONN [NONCE] [knows=INCARNATION [aged=yes]] [pool=TOKEN:SIZE] [run=N]
    /// [streams=a:TOKEN,…]`
    fn report(&mut self, plain: &[&str], pairs: &Words) {
        let number = |name: &str, or: u64| pairs.get(name).map_or(or, |it| it.parse().expect(name));
        let held = |(stream, token)| HeldStream {
            stream,
            token,
            pinned: false,
            revoked: false,
            load: None,
        };
        let report = Report {
            epoch: self.epoch,
            nonce: Nonce(plain.get(1).map_or(1, |nonce| nonce.parse().expect("a nonce"))),
            memory: ReportedMemory {
                knows_from: Incarnation(number("knows", 0)),
                aged: !pairs.contains_key("knows") || pairs.contains_key("aged"),
            },
            pool: pairs.get("pool").map(|it| pool(it)),
            streams: streams(pairs.get("streams")).into_iter().map(held).collect(),
            jobs: jobs(pairs),
            drain: drain(pairs),
            failure: failure(pairs),
        };
        self.core.handle(Event::Report(conn(plain[0]), report), self.now);
    }

    /// `beat CONN NONCE applied=N [pool=TOKEN:SIZE] [run=N] [released=a:TOKEN,…] [drain=…]`
    fn beat(&mut self, plain: &[&str], pairs: &Words) {
        let release = |(stream, token)| Release { stream, token };
        let beat = Beat {
            epoch: self.epoch,
            nonce: Nonce(plain[1].parse().expect("a nonce")),
            applied: GrantNumber(pairs["applied"].parse().expect("a number")),
            pool: pairs.get("pool").map(|it| pool(it)),
            jobs: jobs(pairs),
            drain: drain(pairs),
            failure: failure(pairs),
            released: streams(pairs.get("released")).into_iter().map(release).collect(),
            wants_snapshot: pairs.contains_key("gap"),
        };
        self.core.handle(Event::Beat(conn(plain[0]), beat), self.now);
    }

    fn renew(&mut self, sent_at: Moment) {
        let until = self.now + Duration::from_secs(3600);
        let renewed = Renewed { epoch: self.epoch, sent_at, until };
        self.core.handle(Event::Renewed(renewed), self.now);
    }

    /// Lets the core act and the other parties answer, until nothing follows.
    fn settle(&mut self, out: &mut String) {
        loop {
            self.core.settle(self.now, self.now);
            let mut answered = false;
            while let Some(effect) = self.core.poll_effect() {
                if let Some(line) = shown(&effect) {
                    let _ = writeln!(out, "{line}");
                }
                answered |= self.answers && self.answer(effect);
            }
            if !answered && !self.core.has_more() {
                return;
            }
        }
    }

    fn answer(&mut self, effect: Effect) -> bool {
        match effect {
            Effect::Send { conn, .. } => self.core.handle(Event::Sent(conn), self.now),
            Effect::Order { order: Order::Register(workers), .. } => {
                self.core.handle(Event::Registered(workers), self.now);
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
    named_cluster("c")
}

fn named_cluster(name: &str) -> ClusterName {
    ClusterName::new(name).expect("a cluster")
}

fn key(worker: &str) -> WorkerKey {
    WorkerKey { cluster: cluster_name(), worker: WorkerName::new(worker).expect("a worker") }
}

fn time(text: &str) -> Duration {
    duration::parse(text).expect("a duration")
}

fn conn(text: &str) -> ConnId {
    ConnId(text.parse().expect("a connection"))
}

fn token(text: &str) -> Token {
    text.parse().expect("a token")
}

/// In `w1:7,w2:8` the identity of this worker's agent.
fn fresh_agent(text: &str, worker: &str) -> Option<AgentId> {
    let mut agents = text.split(',').filter_map(|agent| agent.split_once(':'));
    let (_, id) = agents.find(|(name, _)| *name == worker)?;
    Some(AgentId(id.parse().expect("an identity")))
}

/// `TOKEN:SIZE[/GRANTED[/FLOOR]]`
fn pool(text: &str) -> HeldPool {
    let (at, sizes) = text.split_once(':').expect("TOKEN:SIZE");
    let mut sizes = sizes.split('/').map(|size| size.parse().expect("a size"));
    let mut next = || sizes.next().unwrap_or_default();
    HeldPool { token: token(at), size: next(), granted: next(), floor: next() }
}

fn streams(text: Option<&&str>) -> Vec<(StreamKey, Token)> {
    let stream = |item: &str| {
        let (name, at) = item.split_once(':').expect("STREAM:TOKEN");
        let stream = StreamName::new(name).expect("a stream");
        (StreamKey { set: SetName::new("s").expect("a set"), stream }, token(at))
    };
    text.into_iter().flat_map(|it| it.split(',')).map(stream).collect()
}

fn jobs(pairs: &Words) -> Jobs {
    match pairs.get("run") {
        Some(&"?") => Jobs::Unknown,
        running => Jobs::Running(running.map_or(0, |it| it.parse().expect("a count"))),
    }
}

fn failure(pairs: &Words) -> Option<WorkerFailure> {
    let fails = pairs.get("drain").filter(|drain| **drain == "failing");
    fails.and_then(|_| WorkerFailure::new("no answer"))
}

fn drain(pairs: &Words) -> DrainPhase {
    match pairs.get("drain") {
        None => DrainPhase::Working,
        Some(&("draining" | "failing")) => DrainPhase::Draining,
        Some(&"leaving") => DrainPhase::Leaving,
        Some(other) => panic!("no drain phase {other:?}"),
    }
}
