//! One core, its agents and the commands that drive them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Node, Pipeline, Rebalance, Spread,
};
use leasehold_coordinator_core::effect::{Effect, Notice, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_coordinator_core::exposure::{Entry, Exposure, SetList};
use leasehold_coordinator_core::view::PipelineView;
use leasehold_coordinator_core::{Config, Core};
use leasehold_scenario::{Language, Words};
use leasehold_types::message::{CoordinatorMessage, DrainPhase};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{
    ClusterName, Epoch, Incarnation, Load, Moment, NodeName, StreamKey, TermId, WorkerKey,
    WorkerName,
};

use crate::agent::{Agent, TTL};
use crate::foreseen::Foreseen;
use crate::shown;

/// A worker is named after its class: CLASS-NUMBER.
const LEGEND: &str = "
class CLASS capacity=LOAD [min=WORKERS] [max=WORKERS] [spread=even] [rebalance=blocked]
    defines a class: the most load of one worker, how many workers it may have (0 to 10), whether
    its shares are spread over all workers, and moved for a pipeline that waits:
    `class blue capacity=10`
noclass CLASS
    removes a class: `noclass green`
pipeline PIPELINE load=LOAD NODE:CLASS[:NEXT,…]…
    defines a pipeline: the load of each node, and the nodes, each with those that come next:
    `pipeline p load=7 n:blue`
nopipeline PIPELINE
    removes a pipeline: `nopipeline a`
elect EPOCH [exposed=WORKER,…] [slice=UNITS]
    another replica leads: the workers that have an entry, and the units of work of a turn; agents
    dial it when they join: `elect 1`
join WORKER… [file=yes] [protocol=VERSION]
    agents dial and report all that they hold; with `file` they cannot stop their workers, and
    `protocol` is the newest version that they speak from now on: `join blue-0 blue-1`
restart WORKER [memory=no]
    another agent begins beside the same worker, maybe without the journal:
    `restart green-0 memory=no`
slow WORKER
    its agent answers nothing until `wake`: `slow blue-0`
wake WORKER
    its agent takes what has waited: `wake blue-0`
keep WORKER
    it keeps shares that are revoked until `stop-use`: `keep blue-0`
stop-use WORKER
    it releases what is revoked: `stop-use blue-0`
silent WORKER
    its agent is cut off until it joins: `silent blue-0`
gone WORKER…
    the platform declares workers gone: `gone blue-0`
drain WORKER
    its agent reports a drain: `drain green-0`
resume WORKER
    the worker was restarted: its agent dials again, and no longer drains: `resume green-0`
order-drain WORKER
    a person orders a drain: `order-drain blue-3`
avoid WORKER…
    these workers, and no others, get nothing new while others have room: `avoid blue-0`
leave WORKER
    it gives everything back, and its agent leaves: `leave blue-1`
after TIME
    time passes; every agent that is not silent sends a beat each second: `after 11s`
look PIPELINE…
    shows pipelines: `look p`
classes
    shows all classes: `classes`
removable CLASS
    shows the workers that can be removed, one after the other: `removable blue`
held
    shows the least workers that each class must have with its shares where they are: `held`
explain PIPELINE
    shows why a pipeline is in its phase: `explain p`
explain-worker WORKER
    shows what a worker does, and why: `explain-worker blue-0`
";

pub(crate) struct PipelineScenario {
    core: Core,
    now: Moment,
    desired: Desired,
    agents: BTreeMap<WorkerName, Agent>,
    conns: u64,
    epoch: Epoch,
    /// Each manifest is planned before it comes into force.
    pub(crate) foresees: bool,
    /// What the plan says of the manifest that comes into force next, where nothing else goes on.
    foreseen: Option<Foreseen>,
    /// How often such a plan was checked, and how often it moved a share.
    pub(crate) plans_checked: (u64, u64),
    /// The bindings that a notice reported as changed.
    pub(crate) renewed: Vec<String>,
    /// The most bytes of workers' names and addresses in one message.
    pub(crate) bytes_max: usize,
}

impl Language for PipelineScenario {
    const FOLDER: &'static str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/pipelines");
    const LEGEND: &'static str = LEGEND;

    fn new() -> Self {
        Self {
            core: Core::new(Config::default()),
            now: Moment(1_000_000_000_000),
            desired: Desired::default(),
            agents: BTreeMap::new(),
            conns: 0,
            epoch: Epoch(0),
            foresees: true,
            foreseen: None,
            plans_checked: (0, 0),
            renewed: Vec::new(),
            bytes_max: 0,
        }
    }

    fn command(&mut self, verb: &str, words: &mut Words, outcome: &mut String) {
        match verb {
            "class" => self.class(words),
            "noclass" => {
                let class = words.next("CLASS");
                self.desire(|desired| _ = desired.clusters.remove(class));
            }
            "pipeline" => self.pipeline(words),
            "nopipeline" => {
                let pipeline = words.next("PIPELINE");
                self.desire(|desired| _ = desired.pipelines.remove(pipeline));
            }
            "elect" => self.elect(words),
            "join" => {
                let file = words.is("file", "yes");
                let protocol = words.parse_value("protocol");
                let workers = words.rest("WORKER…");
                workers.into_iter().for_each(|worker| self.join(worker, file, protocol));
            }
            "restart" => self.restart(words),
            "slow" => self.agent(words.next("WORKER")).slow = true,
            "wake" => self.wake(words.next("WORKER")),
            "keep" => self.agent(words.next("WORKER")).keeps_shares = true,
            "stop-use" => self.stop_use(words.next("WORKER")),
            "silent" => self.silence(words.next("WORKER")),
            "gone" => self.gone(&words.rest("WORKER…")),
            "drain" => self.drain(words.next("WORKER"), DrainPhase::Draining),
            "resume" => self.resume(words.next("WORKER")),
            "order-drain" => self.handle(Event::Drain(key(words.next("WORKER")))),
            "avoid" => {
                let workers = words.rest("WORKER…").into_iter().map(key).collect();
                self.handle(Event::Avoid(Arc::new(workers)));
            }
            "leave" => self.leave(words.next("WORKER")),
            "after" => self.after(words.time("TIME"), outcome),
            _ => self.look(verb, words, outcome),
        }
    }

    fn complete(&mut self, command: &str, outcome: &mut String) {
        self.settle(outcome);
        if let Some(foreseen) = self.foreseen.take() {
            foreseen.check(&self.core, command);
            self.plans_checked.0 += 1;
            self.plans_checked.1 += u64::from(foreseen.moves_shares);
        }
    }
}

impl PipelineScenario {
    fn handle(&mut self, event: Event) {
        self.core.handle(event, self.now);
    }

    /// Views, which change nothing.
    fn look(&mut self, verb: &str, words: &mut Words, outcome: &mut String) {
        let _ = match verb {
            "look" => words.rest("PIPELINE…").into_iter().try_for_each(|name| {
                let name = name.parse().expect("a name");
                let view = self.core.pipeline(&name).expect("a pipeline");
                writeln!(outcome, "{}", shown::pipeline(&view))
            }),
            "classes" => {
                let mut views = self.core.classes(self.now).into_iter();
                views.try_for_each(|view| writeln!(outcome, "{}", shown::class(&view)))
            }
            "removable" => {
                let names = self.core.removable(&words.parse("CLASS"), self.now);
                let names: Vec<_> = names.iter().map(WorkerName::as_str).collect();
                writeln!(outcome, "removable: {}", names.join(" "))
            }
            "held" => {
                let held = self.core.workers_required(self.now).into_iter();
                let held: Vec<_> = held.map(|(class, held)| format!("{class}={held}")).collect();
                writeln!(outcome, "held: {}", held.join(" "))
            }
            "explain" => {
                let why = self.core.explain_pipeline(&words.parse("PIPELINE"), self.now);
                let why = why.expect("a pipeline");
                writeln!(outcome, "{}\n  {}", why.summary, why.facts.join("\n  "))
            }
            "explain-worker" => {
                let why = self.core.explain_worker(&key(words.next("WORKER")), self.now);
                let why = why.expect("a worker");
                writeln!(outcome, "{}\n  {}", why.summary, why.facts.join("\n  "))
            }
            _ => words.fail("the verb is not carried out"),
        };
    }

    fn desire(&mut self, change: impl FnOnce(&mut Desired)) {
        change(&mut self.desired);
        if self.foresees && self.agents.values().all(Agent::answers) {
            self.foreseen = Foreseen::of(&self.core, &self.desired, self.now);
        }
        self.handle(Event::Desired(Arc::new(self.desired.clone())));
    }

    fn class(&mut self, words: &mut Words) {
        let name = words.parse("CLASS");
        let rebalance = words.is("rebalance", "blocked");
        let cluster = Cluster {
            jobs_max: 0,
            jobs_per_worker_max: 1,
            drain_deadline: Duration::from_secs(3600),
            ttl: TTL,
            class: Some(Class {
                capacity: words.required("capacity"),
                workers_min: words.parse_value("min").unwrap_or(0),
                workers_max: words.parse_value("max").unwrap_or(10),
                utilization: 70,
                spread: if words.is("spread", "even") { Spread::Even } else { Spread::Fewest },
                rebalance: if rebalance { Rebalance::WhenBlocked } else { Rebalance::Never },
                handover_deadline: Duration::from_secs(30),
            }),
            ..Cluster::example()
        };
        self.desire(|desired| _ = desired.clusters.insert(name, Arc::new(cluster)));
    }

    fn pipeline(&mut self, words: &mut Words) {
        let node = |text: &str| {
            let mut parts = text.split(':');
            let (name, of) = (parts.next().expect("a node"), parts.next().expect("a class"));
            let next = parts.next().into_iter().flat_map(|names| names.split(','));
            let next = next.map(|name| NodeName::new(name).expect("a node")).collect();
            (NodeName::new(name).expect("a node"), Node { class: class(of), next })
        };
        let name = words.parse("PIPELINE");
        let nodes = words.rest("NODE:CLASS[:NEXT,…]…").into_iter().map(node).collect();
        let spec = Pipeline { load: words.required("load"), nodes };
        self.desire(|desired| _ = desired.pipelines.insert(name, Arc::new(spec)));
    }

    fn elect(&mut self, words: &mut Words) {
        self.epoch = Epoch(words.parse("EPOCH"));
        let usual = Config::default();
        let slice = words.parse_value("slice").unwrap_or(usual.slice);
        self.core = Core::new(Config { slice, ..usual });
        for agent in self.agents.values_mut() {
            agent.silent = agent.silent.or(Some(self.now));
        }
        self.handle(Event::Desired(Arc::new(self.desired.clone())));
        let exposed = words.list("exposed").into_iter().map(|worker| {
            let key = key(worker);
            let exposure = Exposure {
                incarnation: Incarnation(1),
                ttl: Duration::from_secs(10),
                jobs_max: 1,
                sets: SetList::from_iter([(key.cluster.shares(), false)]).sets(),
                identity: None,
                fresh_agent: None,
            };
            (key, Entry { epoch: Epoch(0), exposure })
        });
        let elected = Elected {
            epoch: self.epoch,
            term: TermId(0),
            cell: None,
            until: self.now + Duration::from_secs(3600),
            predecessor_end: self.now,
            exposed: exposed.collect(),
            unreadable: Default::default(),
        };
        self.handle(Event::Elected(elected));
    }

    /// Dials; `protocol` is the newest version that its agent speaks from now on.
    fn join(&mut self, worker: &str, file: bool, protocol: Option<u32>) {
        let key = key(worker);
        self.conns += 1;
        let agent = self.agents.entry(key.worker.clone()).or_insert_with(|| Agent::new(key));
        agent.file |= file;
        if let Some(newest) = protocol {
            agent.protocol = ProtocolRange::new(1, newest).expect("a version from 1 on");
        }
        for event in agent.dial(ConnId(self.conns), self.epoch, self.now) {
            self.handle(event);
            // The welcome is on its way.
            self.handle(Event::Sent(ConnId(self.conns)));
        }
    }

    fn restart(&mut self, words: &mut Words) {
        let worker = words.next("WORKER");
        let agent = self.agent(worker);
        let conn = agent.conn;
        agent.restart(!words.is("memory", "no"));
        self.handle(Event::Closed(conn));
        self.join(worker, false, None);
    }

    fn wake(&mut self, worker: &str) {
        let agent = self.agent(worker);
        agent.slow = false;
        let beat = agent.wake();
        self.handle(beat);
    }

    fn stop_use(&mut self, worker: &str) {
        let agent = self.agent(worker);
        agent.stop_use();
        let beat = agent.beat();
        self.handle(beat);
    }

    fn silence(&mut self, worker: &str) {
        let now = self.now;
        let agent = self.agent(worker);
        agent.silent.get_or_insert(now);
        let conn = agent.conn;
        self.handle(Event::Closed(conn));
    }

    fn gone(&mut self, workers: &[&str]) {
        for worker in workers {
            self.agents.remove(&key(worker).worker);
        }
        let keys = workers.iter().map(|worker| key(worker)).collect();
        self.handle(Event::Gone(keys));
    }

    fn drain(&mut self, worker: &str, phase: DrainPhase) {
        let agent = self.agent(worker);
        agent.drain = phase;
        let beat = agent.beat();
        self.handle(beat);
    }

    /// Its worker was restarted: the agent dials again, and no longer drains.
    fn resume(&mut self, worker: &str) {
        self.agent(worker).drain = DrainPhase::Working;
        self.join(worker, false, None);
    }

    fn leave(&mut self, worker: &str) {
        self.agent(worker).release_all();
        self.drain(worker, DrainPhase::Leaving);
        self.agents.remove(&key(worker).worker);
    }

    fn after(&mut self, time: Duration, outcome: &mut String) {
        let end = self.now + time;
        while self.now < end {
            let step = end.since(self.now).min(Duration::from_secs(1));
            self.now = self.now + step;
            let beats = self.agents.values_mut().filter(|agent| agent.silent.is_none());
            let beats: Vec<_> = beats.map(Agent::beat).collect();
            for beat in beats {
                self.handle(beat);
            }
            self.handle(Event::Wake);
            self.settle(outcome);
        }
    }

    /// Lets the core act and the other parties answer, until nothing follows.
    fn settle(&mut self, outcome: &mut String) {
        loop {
            self.core.settle(self.now, self.now);
            let mut answers = Vec::new();
            while let Some(effect) = self.core.poll_effect() {
                if let Some(line) = shown::notice(&effect) {
                    let _ = writeln!(outcome, "{line}");
                }
                answers.extend(self.answers(effect, outcome));
            }
            self.check_loads();
            if answers.is_empty() && !self.core.has_more() {
                return;
            }
            for event in answers {
                self.handle(event);
            }
        }
    }

    fn answers(&mut self, effect: Effect, outcome: &mut String) -> Vec<Event> {
        match effect {
            Effect::Send { conn, message: CoordinatorMessage::Grant(grant) } => {
                let agent = self.agents.values_mut().find(|agent| agent.conn == conn);
                let Some(agent) = agent else { return Vec::new() };
                self.bytes_max = self.bytes_max.max(shown::bytes_of_routes(&grant));
                if let Some(line) = shown::grant(&grant) {
                    let _ = writeln!(outcome, "{} {line}", agent.key.worker);
                }
                agent.take(grant).into_iter().chain([Event::Sent(conn)]).collect()
            }
            Effect::Send { conn, message: CoordinatorMessage::Refusal(refusal) } => {
                let _ = writeln!(outcome, "{} refused: {}", conn.0, refusal.message);
                Vec::new()
            }
            Effect::Send { conn, .. } => vec![Event::Sent(conn)],
            Effect::Notice(Notice::Endpoints { pipeline, node }) => {
                self.renewed.push(format!("{pipeline}/{node}"));
                Vec::new()
            }
            Effect::Order { order: Order::Register(workers), .. } => {
                vec![Event::Registered(workers)]
            }
            Effect::Order { order: Order::Unregister(workers), .. } => {
                vec![Event::Unregistered(workers)]
            }
            Effect::Order { order: Order::Confirm, .. } => {
                let until = self.now + Duration::from_secs(3600);
                vec![Event::Renewed(Renewed { epoch: self.epoch, sent_at: self.now, until })]
            }
            _ => Vec::new(),
        }
    }

    /// No worker has more than its capacity; where that was lowered, it gets nothing new above it.
    fn check_loads(&mut self) {
        for agent in self.agents.values_mut() {
            let cluster = self.desired.clusters.get(&agent.key.cluster);
            let class = cluster.and_then(|cluster| cluster.class.as_ref());
            let capacity = class.map_or(Load::MAX, |class| class.capacity);
            let load = agent.load();
            assert!(load <= capacity.max(agent.load_before), "{} has {load}", agent.key);
            agent.load_before = load;
        }
    }

    /// The workers that have an agent.
    pub(crate) fn workers(&self) -> Vec<String> {
        self.agents.keys().map(ToString::to_string).collect()
    }

    /// Of these, those that are cut off.
    pub(crate) fn silent(&self) -> Vec<String> {
        let agents = self.agents.iter().filter(|(_, agent)| agent.silent.is_some());
        agents.map(|(worker, _)| worker.to_string()).collect()
    }

    /// All pipelines as people see them.
    pub(crate) fn views(&self) -> Vec<PipelineView> {
        self.core.pipelines(None).collect()
    }

    /// How many endpoints a worker knows of.
    pub(crate) fn endpoints(&mut self, worker: &str) -> usize {
        self.agent(worker).endpoints()
    }

    /// How many tables of nodes a worker's agent has.
    pub(crate) fn tables(&mut self, worker: &str) -> usize {
        self.agent(worker).tables()
    }

    /// The load that is placed in all classes.
    pub(crate) fn placed(&self) -> Load {
        self.core.classes(self.now).iter().map(|class| class.placed).sum()
    }

    /// All that agents hold.
    pub(crate) fn held(&self) -> Vec<(&StreamKey, &Agent)> {
        let agents = self.agents.values();
        agents.flat_map(|agent| agent.held.keys().map(move |stream| (stream, agent))).collect()
    }

    fn agent(&mut self, worker: &str) -> &mut Agent {
        self.agents.get_mut(&key(worker).worker).expect("an agent")
    }
}

/// The key of a worker, which is named after its class.
fn key(worker: &str) -> WorkerKey {
    let (of, _) = worker.rsplit_once('-').expect("CLASS-NUMBER");
    WorkerKey { cluster: class(of), worker: WorkerName::new(worker).expect("a worker") }
}

fn class(name: &str) -> ClusterName {
    ClusterName::new(name).expect("a class")
}
