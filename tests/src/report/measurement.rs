//! What a report measures, in order: fleets of growing size, then one with many streams and one
//! that agents join, then assignments and a rollout without a fleet, then one agent.

mod joins;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::task::block_in_place;

use super::assignors::{AssignmentFigures, Assignments};
use super::broadcast::{self, Broadcast};
use super::environment::Environment;
use super::etcd::Etcd;
use super::fleet::{Failover, Fleet};
use super::options::Options;
use super::push::{Push, Pushes, median};
use super::results::{Results, SizeFigures};
use super::row::{Row, Unit};
use super::sizes::{AGENTS, AGENTS_LARGE, AGENTS_SMALL, STREAMS, Sizes, WORKERS_REPLACED};
use crate::agent_cost::{MeasuredAgent, size_mb};
use crate::bench::grouped;
use crate::process::{HANG, soon_within};
use crate::toolbox;

/// Streams of each agent, where a fleet does not have many.
const STREAMS_PER_AGENT: usize = 2;
/// Failovers in a row between two lines of progress.
const FAILOVERS_PER_LINE: usize = 10;
/// How much longer than that of the broadcast the spread of an edit may be.
const SPREAD_FACTOR: f64 = 1.3;
/// The highest figure of each row for a number of agents.
const EDIT_MS: [(usize, f64); 1] = [(AGENTS_LARGE, 200.0)];
const CONNECT_S: [(usize, f64); 2] = [(AGENTS, 0.4), (AGENTS_LARGE, 2.0)];
const KILL_S: [(usize, f64); 2] = [(AGENTS, 0.25), (AGENTS_LARGE, 1.5)];
const STOP_S: [(usize, f64); 1] = [(AGENTS_SMALL, 2.0)];
const MOVED: [(usize, f64); 2] = [(AGENTS_SMALL, 0.0), (AGENTS, 0.0)];
const LONGEST_FAILOVER_S: [(usize, f64); 1] = [(AGENTS, 5.0)];
const AGENT_KIB: [(usize, f64); 2] = [(AGENTS, 20.0), (AGENTS_LARGE, 20.0)];
const IDLE_PERCENT: [(usize, f64); 1] = [(AGENTS_SMALL, 0.5)];
const NEEDLESS_MOVES: [(usize, f64); 1] = [(AGENTS_SMALL, 0.0)];
const JOBS_BEYOND: [(usize, f64); 1] = [(WORKERS_REPLACED, 0.0)];
/// The same for a number of streams.
const OWNED_S: [(usize, f64); 1] = [(STREAMS, 2.0)];
const KILL_WITH_STREAMS_S: [(usize, f64); 1] = [(STREAMS, 2.0)];
const STREAM_BYTES: [(usize, f64); 1] = [(STREAMS, 250.0)];
const LINE_MS: [(usize, f64); 1] = [(STREAMS, 50.0)];
/// The same for an agent whose program is built as for the image.
const PROGRAM_MB: f64 = 10.0;
const RESIDENT_KIB: f64 = 8.0 * 1024.0;
const IDLE_AGENT_PERCENT: f64 = 0.1;

/// The goal at this size, where one is declared for it.
fn goal(goals: &[(usize, f64)], size: usize) -> Option<f64> {
    goals.iter().find_map(|(declared, most)| (*declared == size).then_some(*most))
}

/// A run and what it has measured so far.
#[derive(Debug)]
pub(super) struct Measurement {
    /// The rows that are asked for; all if empty.
    only: Vec<u8>,
    /// The agent's program as it is built for the image.
    image_agent: Option<PathBuf>,
    sizes: Sizes,
    rows: Vec<Row>,
    compared: Vec<Pushes>,
    samples: Vec<Pushes>,
    by_size: BTreeMap<usize, SizeFigures>,
    failures: Vec<String>,
}

impl Measurement {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            only: options.only.clone(),
            image_agent: options.image_agent.clone(),
            sizes: Sizes::of(options),
            rows: Vec::new(),
            compared: Vec::new(),
            samples: Vec::new(),
            by_size: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    /// Measures everything that is asked for. What fails is noted, and the next fleet begins.
    pub(super) async fn run(&mut self) {
        let Sizes { agents, large, small, between, settle, .. } = self.sizes;
        for size in BTreeSet::from([small, between, agents, large]) {
            if self.needs_fleet(size) {
                let mut fleet = Fleet::start(size, size * STREAMS_PER_AGENT, settle);
                let measured = self.fleet(&mut fleet).await;
                self.end(fleet, measured).await;
            }
        }
        if self.wants(6) || self.wants(9) {
            let streams_max = self.sizes.streams + self.sizes.rounds;
            let mut fleet = Fleet::start(small, streams_max, settle);
            let measured = self.many_streams(&mut fleet).await;
            self.end(fleet, measured).await;
        }
        if self.wants(14) {
            let Sizes { streams_assigned, rounds, .. } = self.sizes;
            let mut fleet = Fleet::start(agents + rounds, streams_assigned, settle);
            let measured = self.joins(&mut fleet).await;
            self.end(fleet, measured).await;
        }
        if self.wants(11) {
            let measured = self.assignments().await;
            self.note_failure(measured);
        }
        if self.wants(12) {
            let measured = self.rollout();
            self.note_failure(measured);
        }
        if self.wants(13) {
            let measured = self.agent().await;
            self.note_failure(measured);
        }
    }

    /// The figures, once the run has ended.
    pub(super) fn results(self, environment: Environment) -> Results {
        let by_size = self.by_size.into_values().collect();
        let pushes = [self.compared, self.samples];
        Results::new(environment, self.rows, pushes, by_size, self.failures)
    }

    fn wants_all(&self) -> bool {
        self.only.is_empty()
    }

    fn wants(&self, row: u8) -> bool {
        self.wants_all() || self.only.contains(&row)
    }

    /// Whether the rows of edits need this fleet.
    fn wants_edits(&self, size: usize) -> bool {
        let Sizes { agents, large, .. } = self.sizes;
        self.wants_all() || (size == agents && self.wants(1)) || (size == large && self.wants(2))
    }

    /// Whether this fleet's leader is killed again and again.
    fn wants_failovers(&self, size: usize) -> bool {
        size == self.sizes.agents && self.wants(10)
    }

    /// Whether this fleet is one of those that rows 3, 4 and 7 are about.
    fn is_declared(&self, size: usize) -> bool {
        size == self.sizes.agents || size == self.sizes.large
    }

    fn needs_fleet(&self, size: usize) -> bool {
        let is_named = self.is_declared(size) && [3, 4, 7].iter().any(|row| self.wants(*row));
        let is_small = size == self.sizes.small && (self.wants(5) || self.wants(8));
        self.wants_edits(size) || self.wants_failovers(size) || is_named || is_small
    }

    fn note_failure(&mut self, measured: Result<()>) {
        self.failures.extend(measured.err().map(|error| format!("{error:#}")));
    }

    async fn end(&mut self, fleet: Fleet, measured: Result<()>) {
        self.note_failure(measured);
        self.failures.extend(fleet.end().await);
    }

    async fn fleet(&mut self, fleet: &mut Fleet) -> Result<()> {
        let size = fleet.size();
        self.connect(fleet).await?;
        fleet.own(size * STREAMS_PER_AGENT).await?;
        if self.wants_edits(size) {
            self.edits(fleet).await?;
        }
        let is_small = size == self.sizes.small;
        if is_small && self.wants(8) {
            let agents = begin(8, size, "an idle leader");
            let percent = fleet.idle(self.sizes.idle).await?;
            let name = format!("idle leader of {agents}: share of a core");
            self.add(8, name, Unit::Percent, percent, goal(&IDLE_PERCENT, size));
        }
        if self.wants_all() || (self.is_declared(size) && self.wants(4)) {
            let agents = begin(4, size, "kill -9 of the leader");
            let Failover { renewed, .. } = fleet.kill_leader().await?;
            self.figures(size).failover_ms = Some(renewed.all());
            if self.is_declared(size) {
                let name = format!("kill -9 of the leader of {agents}: all renewed");
                let seconds = renewed.all() / 1e3;
                self.add(4, name, Unit::Seconds, seconds, goal(&KILL_S, size));
            }
            self.sample(format!("kill -9 of the leader of {agents}"), renewed);
        }
        if self.wants_failovers(size) {
            self.failovers(fleet).await?;
        }
        if is_small && self.wants(5) {
            let agents = begin(5, size, "SIGSTOP of the leader");
            let Failover { renewed, moved, pools } = fleet.stop_leader().await?;
            let name = |what| format!("SIGSTOP of the leader of {agents}: {what}");
            let seconds = renewed.all() / 1e3;
            self.add(5, name("all renewed"), Unit::Seconds, seconds, goal(&STOP_S, size));
            for (what, count) in [("streams moved", moved), ("pools granted anew", pools)] {
                self.add(5, name(what), Unit::Count, count as f64, goal(&MOVED, size));
            }
            self.sample(format!("SIGSTOP of the leader of {agents}"), renewed);
        }
        Ok(())
    }

    async fn connect(&mut self, fleet: &mut Fleet) -> Result<()> {
        let size = fleet.size();
        let agents = begin(3, size, "connect and first grant");
        if size == self.sizes.agents && self.wants(3) {
            let bare = Broadcast::start(size).await?;
            let name = format!("{} streams to the broadcast's server: all open", shown(size));
            self.add(3, name, Unit::Seconds, bare.opened_in().as_secs_f64(), None);
        }
        let before = fleet.memory_bytes().await?;
        let connected = fleet.connect().await?;
        let after = fleet.memory_bytes().await?;
        self.figures(size).connect_ms = Some(connected.all());
        if self.is_declared(size) && self.wants(3) {
            let name = format!("connect and first grant of {agents}");
            let seconds = connected.all() / 1e3;
            self.add(3, name, Unit::Seconds, seconds, goal(&CONNECT_S, size));
        }
        if self.is_declared(size) && self.wants(7) {
            let name = format!("memory of an agent, of {agents}");
            let kib = (after - before) / size as f64 / 1024.0;
            self.add(7, name, Unit::Kibibytes, kib, goal(&AGENT_KIB, size));
        }
        self.sample(format!("connect of {agents}"), connected);
        Ok(())
    }

    /// Failovers in a row: the longest, and all that moved in any of them.
    async fn failovers(&mut self, fleet: &mut Fleet) -> Result<()> {
        let (size, count) = (fleet.size(), self.sizes.failovers);
        let agents = begin(10, size, &format!("{count} failovers in a row"));
        let (mut longest, mut moved, mut pools) = (0.0_f64, 0, 0);
        let mut renewals = Pushes::new(format!("failovers of {agents}"));
        for done in 1..=count {
            let failover = fleet.kill_leader().await?;
            longest = longest.max(failover.renewed.all());
            (moved, pools) = (moved + failover.moved, pools + failover.pools);
            renewals.rounds_ms.push(failover.renewed);
            if done % FAILOVERS_PER_LINE == 0 {
                println!("    {done} of {count} failovers, the longest {longest:.0} ms");
            }
        }
        let name = |what| format!("{count} failovers of {agents}: {what}");
        let most = goal(&LONGEST_FAILOVER_S, size);
        self.add(10, name("all renewed, the longest"), Unit::Seconds, longest / 1e3, most);
        for (what, count) in [("streams moved", moved), ("pools granted anew", pools)] {
            self.add(10, name(what), Unit::Count, count as f64, goal(&MOVED, size));
        }
        self.samples.push(renewals);
        Ok(())
    }

    /// Edits of all pools, each followed by a push of each peer where the fleet is compared.
    async fn edits(&mut self, fleet: &mut Fleet) -> Result<()> {
        let size = fleet.size();
        let is_compared = size == self.sizes.agents && self.wants(1);
        let row = if is_compared { 1 } else { 2 };
        let agents = begin(row, size, "edits of every pool");
        let mut edits = Pushes::new(format!("edit of {agents}"));
        let mut broadcasts = Pushes::new(format!("broadcast to {} streams", shown(size)));
        let mut watches = Pushes::new(format!("etcd watch of {} watchers", shown(size)));
        let (mut broadcast, mut etcd) = (None, None);
        if is_compared {
            broadcast = Some(Broadcast::start(size).await?);
            etcd = Etcd::start(size, broadcast::message_bytes()).await?;
        }
        for _ in 0..self.sizes.rounds {
            edits.rounds_ms.push(fleet.edit().await?);
            if let Some(broadcast) = &broadcast {
                broadcasts.rounds_ms.push(broadcast.push().await?);
                Fleet::pause().await;
            }
            if let Some(etcd) = &mut etcd {
                watches.rounds_ms.push(etcd.push().await?);
                Fleet::pause().await;
            }
        }
        self.figures(size).edit_ms = Some(edits.median(Push::all));
        if size == self.sizes.large && self.wants(2) {
            self.add_push(2, &edits, goal(&EDIT_MS, size));
        }
        if !is_compared {
            self.samples.push(edits);
            return Ok(());
        }
        self.compared = vec![edits, broadcasts];
        self.compared.extend(etcd.map(|_| watches));
        let most = SPREAD_FACTOR * self.compared[1].median(Push::spread);
        for (index, pushes) in self.compared.clone().iter().enumerate() {
            self.add_push(1, pushes, None);
            let most = (index == 0 && size == AGENTS).then_some(most);
            let name = format!("{}: spread", pushes.name);
            self.add(1, name, Unit::Milliseconds, pushes.median(Push::spread), most);
        }
        Ok(())
    }

    /// A fleet with many streams: rows 6 and 9.
    async fn many_streams(&mut self, fleet: &mut Fleet) -> Result<()> {
        let streams = self.sizes.streams;
        let size = fleet.size();
        begin(6, size, &format!("{} streams", shown(streams)));
        fleet.connect().await?;
        let before = fleet.memory_bytes().await?;
        let owned = fleet.own(streams).await?;
        // The goals are those of both sizes.
        let declared = if size == AGENTS_SMALL { streams } else { 0 };
        let name = |what| format!("{} streams of {} agents: {what}", shown(streams), shown(size));
        if self.wants(6) {
            let after = fleet.memory_bytes().await?;
            let most = goal(&OWNED_S, declared);
            self.add(6, name("all owned"), Unit::Seconds, owned.as_secs_f64(), most);
            let bytes = (after - before) / streams as f64;
            let most = goal(&STREAM_BYTES, declared);
            self.add(6, name("memory of a stream"), Unit::Bytes, bytes, most);
        }
        if self.wants(9) {
            begin(9, size, &format!("one line of {} edited", shown(streams)));
            let mut times = Vec::new();
            for _ in 0..self.sizes.rounds {
                times.push(fleet.edit_line().await?.as_secs_f64() * 1e3);
            }
            let name = format!("one line of {} edited: first agent", shown(streams));
            self.add(9, name, Unit::Milliseconds, median(times), goal(&LINE_MS, declared));
        }
        if self.wants(6) {
            begin(6, size, &format!("kill -9 of the leader of {} streams", shown(streams)));
            let Failover { renewed, .. } = fleet.kill_leader().await?;
            let most = goal(&KILL_WITH_STREAMS_S, declared);
            let seconds = renewed.all() / 1e3;
            self.add(6, name("kill -9, all renewed"), Unit::Seconds, seconds, most);
            self.sample(name("kill -9"), renewed);
        }
        Ok(())
    }

    /// Row 11: assignments without a fleet.
    async fn assignments(&mut self) -> Result<()> {
        let Sizes { small, streams_assigned: streams, rounds: runs, .. } = self.sizes;
        // Where one leaves, another one stays.
        let workers = small.max(2);
        let what = format!("where {} streams go when one leaves or joins", shown(streams));
        begin(11, workers, &what);
        let assignments = Assignments { workers, streams, runs };
        let planned = block_in_place(|| assignments.plan());
        self.add_assignments(planned, goal(&NEEDLESS_MOVES, workers));
        let asked = assignments.ask_kafka().await?;
        self.add_assignments(asked.unwrap_or_default(), None);
        Ok(())
    }

    /// Two lines for each assignment; the goal is that of the needless moves.
    fn add_assignments(&mut self, assignments: Vec<AssignmentFigures>, most: Option<f64>) {
        for AssignmentFigures { name, time_ms, needless_moves } in assignments {
            let moves = format!("{name}, needless moves");
            self.add(11, name, Unit::Milliseconds, time_ms, None);
            self.add(11, moves, Unit::Count, needless_moves, most);
        }
    }

    /// Row 12: a rollout in simulated time.
    fn rollout(&mut self) -> Result<()> {
        let rollout = self.sizes.rollout;
        let workers = rollout.workers;
        begin(12, workers, "a rollout that replaces all, in simulated time");
        let leases = block_in_place(|| rollout.with_leases())?;
        let polls = block_in_place(|| rollout.with_polls());
        let sides = [
            ("Leasehold", leases, goal(&JOBS_BEYOND, workers)),
            ("worker-operator's formula", polls, None),
        ];
        for (side, figures, most) in sides {
            let name = |what| format!("{} workers replaced: {side}, {what}", shown(workers));
            let unused = figures.unused_slot_seconds;
            self.add(12, name("slots unused"), Unit::SlotSeconds, unused, None);
            let beyond = f64::from(figures.jobs_beyond);
            self.add(12, name("jobs beyond the budget"), Unit::Count, beyond, most);
        }
        Ok(())
    }

    /// Row 13: one agent that holds a pool and has nothing to do.
    async fn agent(&mut self) -> Result<()> {
        println!("==> row 13: one agent: its program, memory and share of a core");
        let image = self.image_agent.clone();
        let is_judged = image.is_some() && !self.sizes.are_short;
        let most = |declared: f64| is_judged.then_some(declared);
        let who = if image.is_some() { "agent, built as for the image" } else { "agent" };
        let program = image.unwrap_or_else(|| toolbox::binary("leasehold-agent"));
        let name = |what| format!("{who}: {what}");
        self.add(13, name("program"), Unit::Megabytes, size_mb(&program)?, most(PROGRAM_MB));
        let agent = block_in_place(|| MeasuredAgent::start(&program, 0));
        let granted = soon_within(HANG, || agent.has_leases().then_some(())).await;
        granted.context("the agent has no pool")?;
        tokio::time::sleep(self.sizes.settle).await;
        let before = agent.used()?;
        tokio::time::sleep(self.sizes.idle).await;
        let cost = agent.cost_since(before)?;
        let (resident, own) = (cost.resident_kib as f64, cost.own_kib as f64);
        let percent = cost.processor_percent;
        self.add(13, name("resident"), Unit::Kibibytes, resident, most(RESIDENT_KIB));
        self.add(13, name("memory of its own"), Unit::Kibibytes, own, None);
        let what = name("idle, share of a core");
        self.add(13, what, Unit::Percent, percent, most(IDLE_AGENT_PERCENT));
        Ok(())
    }

    /// First, p50 and all of the same pushes; the goal is that of all.
    fn add_push(&mut self, row: u8, pushes: &Pushes, most: Option<f64>) {
        let figures: [(&str, f64, Option<f64>); 3] = [
            ("first", pushes.median(Push::first), None),
            ("p50", pushes.median(Push::middle), None),
            ("all", pushes.median(Push::all), most),
        ];
        for (what, figure, most) in figures {
            self.add(row, format!("{}: {what}", pushes.name), Unit::Milliseconds, figure, most);
        }
    }

    fn add(&mut self, row: u8, name: String, unit: Unit, value: f64, most: Option<f64>) {
        self.rows.push(Row::new(row, name, unit, value).with_goal(most));
    }

    fn sample(&mut self, name: String, push: Push) {
        self.samples.push(Pushes { name, rounds_ms: vec![push] });
    }

    fn figures(&mut self, agents: usize) -> &mut SizeFigures {
        let empty = SizeFigures { agents, connect_ms: None, edit_ms: None, failover_ms: None };
        self.by_size.entry(agents).or_insert(empty)
    }
}

/// Shows that a row begins; the fleet in words.
fn begin(row: u8, agents: usize, what: &str) -> String {
    let agents = format!("{} agents", shown(agents));
    println!("==> row {row}: {agents}: {what}");
    agents
}

fn shown(number: usize) -> String {
    grouped(number as u64)
}
