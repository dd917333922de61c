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
use leasehold_types::message::{CoordinatorMessage, DrainPhase};
use leasehold_types::{
    ClusterName, Epoch, Incarnation, Load, Moment, NodeName, PipelineName, StreamKey, TermId,
    WorkerKey, WorkerName, duration,
};

use crate::agent::{Agent, TTL};
use crate::foreseen::Foreseen;
use crate::shown;

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

type Words<'a> = BTreeMap<&'a str, &'a str>;

impl PipelineScenario {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn block(&mut self, commands: &str) -> String {
        let mut out = String::new();
        for line in commands.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            self.run(line, &mut out);
            self.settle(&mut out);
            if let Some(foreseen) = self.foreseen.take() {
                foreseen.check(&self.core, line);
                self.plans_checked.0 += 1;
                self.plans_checked.1 += u64::from(foreseen.moves_shares);
            }
        }
        out
    }

    /// One command: a verb, then words, some of them KEY=VALUE.
    fn run(&mut self, line: &str, out: &mut String) {
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a verb");
        let (pairs, plain): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        let pairs: Words = pairs.iter().filter_map(|pair| pair.split_once('=')).collect();
        match verb {
            "class" => self.class(plain[0], &pairs),
            "noclass" => self.desire(|desired| _ = desired.clusters.remove(&class(plain[0]))),
            "pipeline" => self.pipeline(&plain, &pairs),
            "nopipeline" => {
                self.desire(|desired| _ = desired.pipelines.remove(&pipeline(plain[0])));
            }
            "elect" => self.elect(plain[0], &pairs),
            "join" => plain.iter().for_each(|worker| self.join(worker, &pairs)),
            "restart" => self.restart(plain[0], &pairs),
            "slow" => plain.iter().for_each(|it| self.agent(it).slow = true),
            "wake" => plain.iter().for_each(|it| self.wake(it)),
            "keep" => plain.iter().for_each(|worker| self.agent(worker).keeps_shares = true),
            "stop-use" => plain.iter().for_each(|worker| self.stop_use(worker)),
            "silent" => plain.iter().for_each(|it| self.silence(it)),
            "gone" => self.gone(&plain),
            "drain" => self.drain(plain[0], DrainPhase::Draining),
            "resume" => self.resume(plain[0]),
            "order-drain" => self.core.handle(Event::Drain(key(plain[0])), self.now),
            "avoid" => {
                let workers = plain.iter().map(|worker| key(worker)).collect();
                self.core.handle(Event::Avoid(Arc::new(workers)), self.now);
            }
            "leave" => self.leave(plain[0]),
            "after" => self.after(plain[0], out),
            _ => self.look(verb, &plain, out),
        }
    }

    /// Views, which change nothing.
    fn look(&mut self, verb: &str, plain: &[&str], out: &mut String) {
        let _ = match verb {
            "look" => {
                let views = plain.iter().map(|name| self.core.pipeline(&pipeline(name)));
                let views = views.map(|view| shown::pipeline(&view.expect("a pipeline")));
                writeln!(out, "{}", views.collect::<Vec<_>>().join("\n"))
            }
            "classes" => {
                let views = self.core.classes(self.now);
                let views: Vec<_> = views.iter().map(shown::class).collect();
                writeln!(out, "{}", views.join("\n"))
            }
            "removable" => {
                let names = self.core.removable(&class(plain[0]), self.now);
                let names: Vec<_> = names.iter().map(WorkerName::as_str).collect();
                writeln!(out, "removable: {}", names.join(" "))
            }
            "held" => {
                let held = self.core.workers_required(self.now).into_iter();
                let held: Vec<_> = held.map(|(class, held)| format!("{class}={held}")).collect();
                writeln!(out, "held: {}", held.join(" "))
            }
            "explain" => {
                let why = self.core.explain_pipeline(&pipeline(plain[0]), self.now);
                let why = why.expect("a pipeline");
                writeln!(out, "{}\n  {}", why.summary, why.facts.join("\n  "))
            }
            "explain-worker" => {
                let why = self.core.explain_worker(&key(plain[0]), self.now).expect("a worker");
                writeln!(out, "{}\n  {}", why.summary, why.facts.join("\n  "))
            }
            _ => panic!("no command {verb:?}"),
        };
    }

    fn desire(&mut self, change: impl FnOnce(&mut Desired)) {
        change(&mut self.desired);
        if self.foresees && self.agents.values().all(Agent::answers) {
            self.foreseen = Foreseen::of(&self.core, &self.desired, self.now);
        }
        self.core.handle(Event::Desired(Arc::new(self.desired.clone())), self.now);
    }

    /// `class NAME capacity=LOAD [min=N] [max=N] [spread=even] [rebalance=blocked]`
    fn class(&mut self, name: &str, pairs: &Words) {
        let number = |name: &str, or: u32| pairs.get(name).map_or(or, |it| it.parse().expect(name));
        let cluster = Cluster {
            jobs_max: 0,
            jobs_per_worker_max: 1,
            drain_deadline: Duration::from_secs(3600),
            ttl: TTL,
            class: Some(Class {
                capacity: pairs["capacity"].parse().expect("a load"),
                workers_min: number("min", 0),
                workers_max: number("max", 10),
                utilization: 70,
                spread: if pairs.contains_key("spread") { Spread::Even } else { Spread::Fewest },
                rebalance: if pairs.contains_key("rebalance") {
                    Rebalance::WhenBlocked
                } else {
                    Rebalance::Never
                },
                handover_deadline: Duration::from_secs(30),
            }),
            ..Cluster::example()
        };
        self.desire(|desired| _ = desired.clusters.insert(class(name), Arc::new(cluster)));
    }

    /// `pipeline NAME load=LOAD NODE:CLASS[:NEXT,…]…`
    fn pipeline(&mut self, plain: &[&str], pairs: &Words) {
        let node = |text: &&str| {
            let mut parts = text.split(':');
            let (name, of) = (parts.next().expect("a node"), parts.next().expect("a class"));
            let next = parts.next().into_iter().flat_map(|it| it.split(','));
            let next = next.map(|name| NodeName::new(name).expect("a node")).collect();
            (NodeName::new(name).expect("a node"), Node { class: class(of), next })
        };
        let spec = Pipeline {
            load: pairs["load"].parse().expect("a load"),
            nodes: plain[1..].iter().map(node).collect(),
        };
        self.desire(|desired| _ = desired.pipelines.insert(pipeline(plain[0]), Arc::new(spec)));
    }

    /// `elect EPOCH [exposed=WORKER,…] [slice=UNITS]`: a new leader; agents dial it when they join.
    fn elect(&mut self, epoch: &str, pairs: &Words) {
        self.epoch = Epoch(epoch.parse().expect("an epoch"));
        let slice = pairs.get("slice").map(|units| units.parse().expect("units"));
        let usual = Config::default();
        self.core = Core::new(Config { slice: slice.unwrap_or(usual.slice), ..usual });
        for agent in self.agents.values_mut() {
            agent.silent = agent.silent.or(Some(self.now));
        }
        self.core.handle(Event::Desired(Arc::new(self.desired.clone())), self.now);
        let exposed = pairs.get("exposed").into_iter().flat_map(|it| it.split(','));
        let exposed = exposed.map(|worker| {
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
        self.core.handle(Event::Elected(elected), self.now);
    }

    /// `join WORKER… [file=yes]`: agents dial, with all that they hold.
    fn join(&mut self, worker: &str, pairs: &Words) {
        let key = key(worker);
        self.conns += 1;
        let agent = self.agents.entry(key.worker.clone()).or_insert_with(|| Agent::new(key));
        agent.file |= pairs.contains_key("file");
        for event in agent.dial(ConnId(self.conns), self.epoch, self.now) {
            self.core.handle(event, self.now);
            // The welcome is on its way.
            self.core.handle(Event::Sent(ConnId(self.conns)), self.now);
        }
    }

    /// `restart WORKER [memory=no]`: a new agent beside the same worker.
    fn restart(&mut self, worker: &str, pairs: &Words) {
        let agent = self.agent(worker);
        let conn = agent.conn;
        agent.restart(!pairs.contains_key("memory"));
        self.core.handle(Event::Closed(conn), self.now);
        self.join(worker, &BTreeMap::new());
    }

    fn wake(&mut self, worker: &str) {
        let agent = self.agent(worker);
        agent.slow = false;
        let beat = agent.wake();
        self.core.handle(beat, self.now);
    }

    fn stop_use(&mut self, worker: &str) {
        let agent = self.agent(worker);
        agent.stop_use();
        let beat = agent.beat();
        self.core.handle(beat, self.now);
    }

    fn silence(&mut self, worker: &str) {
        let now = self.now;
        let agent = self.agent(worker);
        agent.silent.get_or_insert(now);
        let conn = agent.conn;
        self.core.handle(Event::Closed(conn), self.now);
    }

    fn gone(&mut self, workers: &[&str]) {
        for worker in workers {
            self.agents.remove(&key(worker).worker);
        }
        let keys = workers.iter().map(|worker| key(worker)).collect();
        self.core.handle(Event::Gone(keys), self.now);
    }

    fn drain(&mut self, worker: &str, phase: DrainPhase) {
        let agent = self.agent(worker);
        agent.drain = phase;
        let beat = agent.beat();
        self.core.handle(beat, self.now);
    }

    /// Its worker was restarted: the agent dials again, and no longer drains.
    fn resume(&mut self, worker: &str) {
        self.agent(worker).drain = DrainPhase::Working;
        self.join(worker, &BTreeMap::new());
    }

    fn leave(&mut self, worker: &str) {
        self.agent(worker).release_all();
        self.drain(worker, DrainPhase::Leaving);
        self.agents.remove(&key(worker).worker);
    }

    /// Time passes; every agent that is not silent beats.
    fn after(&mut self, time: &str, out: &mut String) {
        let end = self.now + duration::parse(time).expect("a duration");
        while self.now < end {
            let step = end.since(self.now).min(Duration::from_secs(1));
            self.now = self.now + step;
            let beats = self.agents.values_mut().filter(|agent| agent.silent.is_none());
            let beats: Vec<_> = beats.map(Agent::beat).collect();
            for beat in beats {
                self.core.handle(beat, self.now);
            }
            self.core.handle(Event::Wake, self.now);
            self.settle(out);
        }
    }

    /// Lets the core act and the other parties answer, until nothing follows.
    fn settle(&mut self, out: &mut String) {
        loop {
            self.core.settle(self.now, self.now);
            let mut answers = Vec::new();
            while let Some(effect) = self.core.poll_effect() {
                if let Some(line) = shown::notice(&effect) {
                    let _ = writeln!(out, "{line}");
                }
                answers.extend(self.answers(effect, out));
            }
            self.check_loads();
            if answers.is_empty() && !self.core.has_more() {
                return;
            }
            for event in answers {
                self.core.handle(event, self.now);
            }
        }
    }

    fn answers(&mut self, effect: Effect, out: &mut String) -> Vec<Event> {
        match effect {
            Effect::Send { conn, message: CoordinatorMessage::Grant(grant) } => {
                let agent = self.agents.values_mut().find(|agent| agent.conn == conn);
                let Some(agent) = agent else { return Vec::new() };
                self.bytes_max = self.bytes_max.max(shown::bytes_of_routes(&grant));
                if let Some(line) = shown::grant(&grant) {
                    let _ = writeln!(out, "{} {line}", agent.key.worker);
                }
                agent.take(grant).into_iter().chain([Event::Sent(conn)]).collect()
            }
            Effect::Send { conn, message: CoordinatorMessage::Refusal(refusal) } => {
                let _ = writeln!(out, "{} refused: {}", conn.0, refusal.message);
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
        let routes = self.agent(worker).routes.values().flatten();
        routes.map(|route| route.endpoints.len()).sum()
    }

    /// The load that is placed in all classes.
    pub(crate) fn placed(&self) -> Load {
        self.core.classes(self.now).iter().map(|class| class.placed).sum()
    }

    /// All that agents hold.
    pub(crate) fn held(&self) -> Vec<(&StreamKey, &Agent)> {
        let agents = self.agents.values();
        agents.flat_map(|agent| agent.held.keys().map(move |it| (it, agent))).collect()
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

fn pipeline(name: &str) -> PipelineName {
    PipelineName::new(name).expect("a pipeline")
}
