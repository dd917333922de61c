//! How a whole core heals what a lost worker served, with agents that answer at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Node, Pipeline, Rebalance, Spread,
};
use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::limits::{PIPELINES_MAX, STREAMS_PER_WORKER_MAX};
use leasehold_types::message::{
    Beat, CoordinatorMessage, Grant, Hello, Release, Report, StreamState,
};
use leasehold_types::{
    ClusterName, Epoch, Load, Moment, NodeName, Nonce, PipelineName, TermId, WorkerKey, WorkerName,
};

use crate::{Options, format_time, median, print_row};

/// How large a fleet is.
#[derive(Clone, Copy, Debug)]
struct Size {
    pipelines: usize,
    /// Workers of each of the two classes.
    workers: usize,
    /// Pipelines that one worker can serve, which the lost one does.
    per_worker: usize,
}

const SIZES: [Size; 3] = [
    Size { pipelines: 500, workers: 3, per_worker: 500 },
    Size { pipelines: 1_000, workers: 3, per_worker: 1_000 },
    // The most pipelines, and the most shares of one worker.
    Size { pipelines: PIPELINES_MAX, workers: 12, per_worker: STREAMS_PER_WORKER_MAX },
];
/// Longer than a run.
const TTL: Duration = Duration::from_secs(3_600);

/// Prints a row for each size.
pub(crate) fn bench(options: &Options) {
    println!("\nhealing, a worker lost, pipelines of two nodes, each of another class");
    print_row(&format!(
        "{:>9} {:>7} {:>7} {:>7} {:>12} {:>12}",
        "pipelines", "workers", "lost", "rounds", "time", "longest"
    ));
    let sizes = SIZES.iter().take(if options.quick { SIZES.len() - 1 } else { SIZES.len() });
    for size in sizes.copied() {
        let Size { pipelines, workers, per_worker } = size;
        let what = format!("{per_worker} of {pipelines} pipelines healed");
        let (time, (rounds, longest)) = median(options.runs, &what, || {
            let mut cell = Cell::new(size);
            let time = cell.lose_first();
            (time, (cell.rounds, cell.longest))
        });
        print_row(&format!(
            "{pipelines:>9} {:>7} {per_worker:>7} {rounds:>7} {:>12} {:>12}",
            2 * workers,
            format_time(time),
            format_time(longest)
        ));
    }
}

/// A core and its agents.
struct Cell {
    core: Core,
    agents: BTreeMap<ConnId, Agent>,
    pipelines: usize,
    rounds: usize,
    longest: Duration,
}

#[derive(Default)]
struct Agent {
    nonce: u64,
    inbox: Vec<Grant>,
}

const NOW: Moment = Moment(1_000_000_000_000);

fn class_name(name: &str) -> ClusterName {
    ClusterName::new(name).expect("a name")
}

impl Cell {
    /// All pipelines are Ready, on as few workers of each class as can serve them; the first
    /// worker by name serves as many as it can.
    fn new(size: Size) -> Self {
        let Size { pipelines, workers, per_worker } = size;
        let mut desired = Desired::default();
        let load = Load::per_second(1).expect("a load");
        for name in ["blue", "green"] {
            let class = Class {
                capacity: Load::per_second(per_worker as u64).expect("a load"),
                workers_min: 0,
                workers_max: workers as u32,
                utilization: 70,
                spread: Spread::Fewest,
                rebalance: Rebalance::Never,
                handover_deadline: TTL,
            };
            let cluster = Cluster {
                jobs_max: 0,
                jobs_per_worker_max: 1,
                drain_deadline: TTL,
                ttl: TTL,
                class: Some(class),
                ..Cluster::example()
            };
            desired.clusters.insert(class_name(name), Arc::new(cluster));
        }
        let node = |name: &str| NodeName::new(name).expect("a name");
        for at in 0..pipelines {
            let first = Node { class: class_name("blue"), next: [node("out")].into() };
            let last = Node { class: class_name("green"), next: [].into() };
            let nodes = [(node("in"), first), (node("out"), last)].into();
            let name = PipelineName::new(&format!("p{at}")).expect("a name");
            desired.pipelines.insert(name, Arc::new(Pipeline { load, nodes }));
        }
        let mut cell = Self {
            core: Core::new(Config::default()),
            agents: BTreeMap::new(),
            pipelines,
            rounds: 0,
            longest: Duration::ZERO,
        };
        cell.core.handle(Event::Desired(Arc::new(desired)), NOW);
        let elected = Elected {
            epoch: Epoch(1),
            term: TermId(0),
            cell: None,
            until: NOW + TTL,
            predecessor_end: NOW,
            exposed: Default::default(),
            unreadable: Default::default(),
        };
        cell.core.handle(Event::Elected(elected), NOW);
        for (at, (class, worker)) in keys(workers).enumerate() {
            cell.join(ConnId(at as u64 + 1), &class, &worker);
        }
        cell.run();
        cell
    }

    fn join(&mut self, conn: ConnId, class: &ClusterName, worker: &WorkerName) {
        let hello = Hello::example(WorkerKey { cluster: class.clone(), worker: worker.clone() });
        self.agents.insert(conn, Agent { nonce: 1, inbox: Vec::new() });
        self.core.handle(Event::Hello(conn, hello, None), NOW);
        self.core.handle(Event::Report(conn, Report::example()), NOW);
    }

    /// The first worker of the first class is gone; how long the core is at work until all is well.
    fn lose_first(&mut self) -> Duration {
        (self.rounds, self.longest) = (0, Duration::ZERO);
        let (cluster, worker) = keys(1).next().expect("a worker");
        self.agents.remove(&ConnId(1));
        let start = Instant::now();
        self.core.handle(Event::Gone(vec![WorkerKey { cluster, worker }]), NOW);
        start.elapsed() + self.run()
    }

    /// Rounds until all pipelines are Ready; the time that the core took.
    fn run(&mut self) -> Duration {
        let mut time = Duration::ZERO;
        loop {
            let answers = self.settle(&mut time);
            if self.is_ready() {
                return time;
            }
            self.rounds += 1;
            let start = Instant::now();
            answers.into_iter().for_each(|event| self.core.handle(event, NOW));
            time += start.elapsed();
        }
    }

    /// Whether all pipelines are Ready. It ends at the first one that is not: to look at all of
    /// them takes longer than a round.
    fn is_ready(&self) -> bool {
        let are_there = self.core.pipelines_len() == self.pipelines;
        let mut pipelines = self.core.pipelines(None);
        are_there && pipelines.all(|pipeline| pipeline.phase == PipelinePhase::Ready)
    }

    /// One look of the core, and what agents answer to it in the next round.
    fn settle(&mut self, time: &mut Duration) -> Vec<Event> {
        let start = Instant::now();
        self.core.settle(NOW, NOW);
        while self.core.has_more() {
            self.core.settle(NOW, NOW);
        }
        let taken = start.elapsed();
        *time += taken;
        self.longest = self.longest.max(taken);
        let mut events = Vec::new();
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Send { conn, message } => {
                    events.push(Event::Sent(conn));
                    if let CoordinatorMessage::Grant(grant) = message
                        && let Some(agent) = self.agents.get_mut(&conn)
                    {
                        agent.inbox.push(grant);
                    }
                }
                Effect::Order { order: Order::Register(entries), .. } => {
                    events.push(Event::Registered(entries));
                }
                Effect::Order { epoch, order: Order::Confirm } => {
                    let until = NOW + TTL;
                    events.push(Event::Renewed(Renewed { epoch, sent_at: NOW, until }));
                }
                _ => {}
            }
        }
        events.extend(self.agents.iter_mut().filter_map(|(conn, agent)| agent.answer(*conn)));
        events
    }
}

impl Agent {
    /// Applies what it was sent, and releases what it is asked for.
    fn answer(&mut self, conn: ConnId) -> Option<Event> {
        let applied = self.inbox.last()?.number;
        let streams = self.inbox.drain(..).flat_map(|grant| grant.streams);
        let asked = streams.filter(|grant| matches!(grant.state, StreamState::Revoked { .. }));
        let released =
            asked.map(|grant| Release { stream: grant.stream, token: grant.token }).collect();
        self.nonce += 1;
        let beat = Beat { nonce: Nonce(self.nonce), applied, released, ..Beat::example() };
        Some(Event::Beat(conn, beat))
    }
}

/// This many workers of each class, each with its class.
fn keys(workers: usize) -> impl Iterator<Item = (ClusterName, WorkerName)> {
    let name = |at: usize| WorkerName::new(&format!("w{at}")).expect("a name");
    ["blue", "green"]
        .into_iter()
        .flat_map(move |class| (0..workers).map(move |at| (class_name(class), name(at))))
}
