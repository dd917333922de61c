//! One fleet from its first connection to its last change: every phase is timed, and judged by
//! what the holders saw.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tests::agents::{
    Agent, AgentIdentity, CLUSTER, Coordinators, FleetRecord, StandaloneReplicas, Turns,
};
use tests::bench;

use super::questions;

/// Streams that one worker may own.
const STREAMS_PER_WORKER_MAX: usize = leasehold_types::limits::STREAMS_PER_WORKER_MAX;
/// Jobs that begin one after another, on a worker each.
const JOBS_MAX: usize = 100;
/// After a failover every agent is to be back within this, in a fleet of at most so many agents and
/// streams.
const BACK_MAX: Duration = Duration::from_secs(5);
const BACK_AGENTS_MAX: usize = 2_000;
const BACK_STREAMS_MAX: usize = 10_000;
/// The resolution of the time that a phase takes.
const RESOLUTION: Duration = Duration::from_millis(5);

/// How large a fleet is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Its agents.
    pub(crate) agents: usize,
    /// Its streams, with those that are added at the end.
    pub(crate) streams: usize,
    /// How long a lease lasts.
    pub(crate) ttl: Duration,
    /// How long a phase may take: this bench judges no time but [`BACK_MAX`], and a phase that does
    /// not end is a failure.
    pub(crate) patience: Duration,
    /// How often its leader is killed.
    pub(crate) failovers: usize,
}

/// What a phase must do and must not.
struct Plan<'a> {
    name: &'a str,
    /// Elections that it is about.
    elections: u64,
    /// The fewest streams that have to move.
    moves_min: usize,
    /// No pool may be granted anew.
    keeps_pools: bool,
    /// How long it may take, where that is a promise of the product.
    time_max: Option<Duration>,
}

/// A fleet under way.
pub(crate) struct Scenario {
    size: Size,
    /// Streams that are wanted by now.
    wanted: usize,
    replicas: StandaloneReplicas,
    record: Arc<FleetRecord>,
    coordinators: Arc<Coordinators>,
    agents: Vec<Option<Agent>>,
    failures: usize,
}

/// Plays everything, and prints each failure when it happens. Returns how many there were.
pub(crate) async fn play(size: Size) -> usize {
    println!(
        "\n{} agents, {} streams, ttl {} s\n  {:<24} {:>9} {:>9} {:>6} {:>8} {:>8} {:>11} {:>9}",
        size.agents,
        size.streams,
        size.ttl.as_secs(),
        "",
        "time",
        "elections",
        "lost",
        "moved",
        "minimum",
        "turn",
        "lease age"
    );
    let mut scenario = Scenario::start(size);
    let ended = scenario.phases().await;
    if let Err(failure) = ended {
        scenario.fail(&failure);
    }
    println!("  the most memory of a coordinator: {} MiB", scenario.replicas.memory_mib());
    for agent in scenario.agents.into_iter().flatten() {
        agent.kill().await;
    }
    scenario.failures
}

impl Scenario {
    fn start(size: Size) -> Self {
        let replicas = StandaloneReplicas::start(size.agents, size.ttl.as_secs());
        let (addresses, agents_follow) = (replicas.addresses(), bench::may_follow(size.agents));
        let coordinators = Coordinators { addresses, tls: None, agents_follow }.into();
        // One more agent takes a lost one's place where the others have no room.
        let record = Arc::new(FleetRecord::new(size.agents + 1, size.streams));
        let agents = std::iter::repeat_with(|| None).take(size.agents + 1).collect();
        Self { size, wanted: 0, replicas, record, coordinators, agents, failures: 0 }
    }

    fn fail(&mut self, failure: &str) {
        self.failures += 1;
        println!("  !!! {failure}");
    }

    async fn phases(&mut self) -> Result<(), String> {
        let Size { agents, streams, .. } = self.size;
        let more = agents.min(streams / 10);
        let first = streams - more - 1;
        self.phase(
            plan("all connected"),
            |scenario| (0..agents).for_each(|index| scenario.dial(index)),
            |scenario| scenario.record.live_since(1) == agents,
        )
        .await?;
        self.phase(
            plan("all owned"),
            |scenario| scenario.put_set("first", 0..first),
            Self::all_owned,
        )
        .await?;
        for failover in 1..=self.size.failovers {
            self.failover(failover).await?;
        }
        self.phase(
            plan("one stream more"),
            |scenario| scenario.put_set("first", 0..first + 1),
            Self::all_owned,
        )
        .await?;
        let name = format!("one set of {more} more");
        let range = first + 1..streams;
        self.phase(plan(&name), |scenario| scenario.put_set("second", range), Self::all_owned)
            .await?;
        self.jobs().await?;
        self.questions()?;
        self.lose_one().await
    }

    fn questions(&self) -> Result<(), String> {
        let asked = tokio::task::block_in_place(|| questions::ask(&self.coordinators.addresses));
        asked?.iter().for_each(|line| println!("  {line}"));
        Ok(())
    }

    /// The leader is killed. But for the last time, another replica takes its place as a standby.
    async fn failover(&mut self, number: usize) -> Result<(), String> {
        let (Size { agents, streams, .. }, before) = (self.size, self.record.epoch());
        let is_promised = agents <= BACK_AGENTS_MAX && streams <= BACK_STREAMS_MAX;
        let name = match number {
            1 => "leader killed".to_owned(),
            _ => format!("leader killed, time {number}"),
        };
        let plan = Plan {
            elections: 1,
            keeps_pools: true,
            time_max: is_promised.then_some(BACK_MAX),
            ..plan(&name)
        };
        let mark = self.mark();
        let (place, _) = self.replicas.end_leader(Signal::KILL);
        let back = move |scenario: &mut Self| {
            scenario.record.live_since(before + 1) == agents && scenario.all_owned()
        };
        self.end_phase(plan, mark, back).await?;
        if number < self.size.failovers {
            self.replicas.start_again(place);
        }
        Ok(())
    }

    async fn jobs(&mut self) -> Result<(), String> {
        let (mark, jobs) = (self.mark(), self.size.agents.min(JOBS_MAX));
        for (job, agent) in self.agents.iter().flatten().take(jobs).enumerate() {
            let id = format!("job-{job}").parse().expect("a job's id");
            if !agent.begin_job(id).await {
                return Err(format!("job {job} may not begin, and its worker has room"));
            }
        }
        let counted =
            |scenario: &mut Self| scenario.replicas.sum("leasehold_jobs_running") >= jobs as f64;
        self.end_phase(plan(&format!("{jobs} jobs begin")), mark, counted).await
    }

    async fn lose_one(&mut self) -> Result<(), String> {
        let lost = self.size.agents / 2;
        let mark = self.mark();
        let agent = self.agents[lost].take().expect("all live");
        agent.kill().await;
        let had = self.record.died(lost);
        let room = (self.size.agents - 1) * STREAMS_PER_WORKER_MAX;
        let name = if room < self.wanted {
            self.dial(self.size.agents);
            "one lost, one new"
        } else {
            "one lost"
        };
        self.end_phase(Plan { moves_min: had, ..plan(name) }, mark, Self::all_owned).await
    }

    fn dial(&mut self, index: usize) {
        let (coordinators, record) = (Arc::clone(&self.coordinators), Arc::clone(&self.record));
        let identity = AgentIdentity::numbered(index, CLUSTER);
        self.agents[index] = Some(Agent::start(identity, coordinators, record));
    }

    fn put_set(&mut self, set: &str, streams: Range<usize>) {
        self.wanted = streams.end;
        self.replicas.put_set(set, streams);
    }

    fn all_owned(&mut self) -> bool {
        self.record.owned() == self.wanted
    }

    async fn phase(
        &mut self,
        plan: Plan<'_>,
        act: impl FnOnce(&mut Self),
        done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), String> {
        let mark = self.mark();
        act(self);
        self.end_phase(plan, mark, done).await
    }

    fn mark(&self) -> PhaseStart {
        // What came since the last phase belongs to that one, and was judged with it.
        PhaseStart { epoch: self.epoch(), turns: self.replicas.turns(), begun: Instant::now() }
    }

    fn epoch(&self) -> u64 {
        self.replicas.epoch().max(self.record.epoch())
    }

    /// Waits for the end of a phase and for half a lease more, in which nothing may happen.
    async fn end_phase(
        &mut self,
        plan: Plan<'_>,
        mark: PhaseStart,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), String> {
        let Plan { name, elections, moves_min, keeps_pools, time_max } = plan;
        let mut took = None;
        while took.is_none() && mark.begun.elapsed() < self.size.patience {
            tokio::time::sleep(RESOLUTION).await;
            took = done(self).then(|| mark.begun.elapsed());
        }
        // A fixed wait: a needless move or a second election within it would be counted.
        tokio::time::sleep(self.size.ttl / 2).await;
        let counts = self.record.take();
        let elected = self.epoch().saturating_sub(mark.epoch);
        let turn = self.replicas.longest_turn(&mark.turns);
        let time =
            took.map_or("never".to_owned(), |duration| format!("{:.3} s", duration.as_secs_f64()));
        let age = counts.age.as_secs_f64() / self.size.ttl.as_secs_f64() * 100.0;
        println!(
            "  {name:<24} {time:>9} {elected:>9} {:>6} {:>8} {moves_min:>8} {turn:>11} \
             {age:>7.0} %",
            counts.expired, counts.moved
        );
        let mut fails = |what: String| self.fail(&format!("{name}: {what}"));
        if elected != elections {
            fails(format!("{elected} elections, and {elections} are needed"));
        }
        if counts.expired > 0 {
            fails(format!("{} leases ended without renewal", counts.expired));
        }
        if counts.moved != moves_min && took.is_some() {
            fails(format!("{} streams moved, and {moves_min} have to", counts.moved));
        }
        if keeps_pools && counts.pools > 0 {
            fails(format!("{} pools were granted anew", counts.pools));
        }
        if let (Some(took), Some(most)) = (took, time_max)
            && took > most
        {
            fails(format!("took {:.1} s, and {most:?} are promised", took.as_secs_f64()));
        }
        counts.faults.into_iter().for_each(&mut fails);
        if took.is_some() {
            return Ok(());
        }
        Err(format!(
            "{name}: not done after {} s: {} of {} streams owned, {} of {} agents live",
            self.size.patience.as_secs(),
            self.record.owned(),
            self.wanted,
            self.record.live_since(1),
            self.size.agents
        ))
    }
}

/// How things stood when a phase began.
struct PhaseStart {
    epoch: u64,
    turns: Turns,
    begun: Instant,
}

/// A phase that needs no election and no move.
fn plan(name: &str) -> Plan<'_> {
    Plan { name, elections: 0, moves_min: 0, keeps_pools: false, time_max: None }
}
