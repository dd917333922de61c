//! One fleet under measurement: two real coordinators and agents with two streams each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leasehold_types::Moment;
use rustix::process::Signal;
use tokio::task::block_in_place;

use super::push::{Push, now, until};
use super::shares::Shares;
use crate::agents::{
    Agent, AgentIdentity, CLUSTER, Coordinators, Counts, FleetRecord, JOBS_PER_WORKER,
    StandaloneReplicas,
};
use crate::bench;
use crate::process::{OWN_MEMORY, memory_kib, processor_seconds};
use crate::stream_fleet::moves_min;

/// How long a lease lasts, in seconds.
const TTL_SECONDS: u64 = 10;
/// How long a fleet is left alone between two pushes.
const PAUSE: Duration = Duration::from_millis(300);
/// The only stream set.
const SET: &str = "feeds";

/// A fleet that runs.
#[derive(Debug)]
pub(super) struct Fleet {
    size: usize,
    /// How long it is left alone before a measurement, so that what the last one left behind is not
    /// measured.
    settle: Duration,
    replicas: StandaloneReplicas,
    coordinators: Arc<Coordinators>,
    record: Arc<FleetRecord>,
    /// Those that were started.
    agents: Vec<Agent>,
    /// The size of each agent's pool that the manifest asks for.
    jobs_per_worker: u32,
    /// The numbers of the streams in the list of the set.
    list: Vec<usize>,
    /// What must not happen and did, in words.
    faults: Vec<String>,
}

/// What agents saw after their leader had ended.
#[derive(Debug)]
pub(super) struct Failover {
    /// The first grant of the next leader at each agent.
    pub(super) renewed: Push,
    /// Streams that went from one worker to another.
    pub(super) moved: usize,
    /// Pools that were granted anew.
    pub(super) pools: usize,
}

/// What happened when one more agent joined.
#[derive(Debug)]
pub(super) struct Join {
    /// The last change at each agent whose streams have changed.
    pub(super) changed: Push,
    /// How the streams are shared out afterwards.
    pub(super) shares: Shares,
}

impl Fleet {
    /// Starts the coordinators of this many agents; `streams_max` is the number of streams that
    /// will ever be in the list. Before a measurement the fleet is left alone for `settle`.
    pub(super) fn start(size: usize, streams_max: usize, settle: Duration) -> Self {
        let replicas = StandaloneReplicas::start(size, TTL_SECONDS);
        let agents_follow = bench::may_follow(size);
        let coordinators =
            Coordinators { addresses: replicas.addresses(), tls: None, agents_follow };
        Self {
            size,
            settle,
            replicas,
            coordinators: Arc::new(coordinators),
            record: Arc::new(FleetRecord::new(size, streams_max)),
            agents: Vec::new(),
            jobs_per_worker: JOBS_PER_WORKER,
            list: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Connects all agents: the first grant of each, from when the first one began to dial.
    pub(super) async fn connect(&mut self) -> Result<Push> {
        self.connect_first(self.size).await
    }

    /// The same for this many of them; the others join later.
    pub(super) async fn connect_first(&mut self, agents: usize) -> Result<Push> {
        let begun = now();
        (0..agents).for_each(|_| self.start_agent());
        let connected = until("all agents connected", || self.first_grants(1, begun)).await?;
        until("all pools granted", || self.pools(begun)).await?;
        self.followed().await?;
        Ok(connected)
    }

    /// Adds streams, and waits until all have an owner: how long that took.
    pub(super) async fn own(&mut self, streams: usize) -> Result<Duration> {
        self.list = (0..streams).collect();
        let begun = block_in_place(|| self.replicas.put_set(SET, 0..streams));
        self.all_owned().await?;
        Ok(now().since(begun))
    }

    /// The same with streams that may move again right after they have moved.
    pub(super) async fn own_movable(&mut self, streams: usize) -> Result<()> {
        self.list = (0..streams).collect();
        block_in_place(|| self.replicas.put_set_without_cooldown(SET, 0..streams));
        self.all_owned().await
    }

    /// One more agent connects, and gets its share of the streams. It counts as a fault if other
    /// streams move.
    pub(super) async fn join(&mut self) -> Result<Join> {
        self.settle().await;
        let (streams, joining) = (self.list.len(), self.agents.len());
        let mut owned = self.record.streams_per_agent();
        owned.truncate(joining + 1);
        let share = moves_min(owned, streams);
        self.record.expect_change();
        let begun = now();
        self.start_agent();
        let has_share = || {
            self.record.first_change()?;
            let all_owned = self.record.owned() == streams;
            (all_owned && self.record.streams_per_agent()[joining] >= share).then_some(())
        };
        until("one more agent to have its share of the streams", has_share).await?;
        let changed = Push::of(begun, self.record.changes_since(begun).map(Some));
        // Streams that move needlessly do so until then.
        self.settle().await;
        let most = self.record.streams_per_agent().into_iter().max().unwrap_or(0);
        let Counts { moved, expired, faults, .. } = self.record.take();
        if moved != share {
            self.faults.push(format!("{moved} streams moved when one joined, and {share} have to"));
        }
        if expired > 0 {
            let what = "leases ended without renewal before one had joined";
            self.faults.push(format!("{expired} {what}"));
        }
        self.faults.extend(faults);
        let changed = changed.context("no agent's streams have changed")?;
        Ok(Join { changed, shares: Shares { moved, most } })
    }

    /// Edits the manifest so that every agent's pool changes: the arrival of the change at each.
    pub(super) async fn edit(&mut self) -> Result<Push> {
        self.jobs_per_worker += 1;
        let begun = self.replicas.put_cluster(self.jobs_per_worker);
        let pushed = until("an edit at all agents", || self.pools(begun)).await?;
        Self::pause().await;
        Ok(pushed)
    }

    /// Replaces one line of the list of streams: how long the first agent waits for the change.
    pub(super) async fn edit_line(&mut self) -> Result<Duration> {
        let added = self.list.iter().max().map_or(0, |last| last + 1);
        let line = self.list.len() / 2;
        // Each edit takes another line.
        let line = (line + added) % self.list.len();
        self.list[line] = added;
        self.record.expect_change();
        let begun = block_in_place(|| self.replicas.put_list(SET, self.list.iter().copied()));
        let changed = until("one line edited", || self.record.first_change()).await?;
        Self::pause().await;
        self.all_owned().await?;
        Ok(changed.since(begun))
    }

    /// Kills the leader; another replica takes its place as a standby afterwards.
    pub(super) async fn kill_leader(&mut self) -> Result<Failover> {
        let epoch = self.begin_failover().await?;
        let (place, ended) = block_in_place(|| self.replicas.end_leader(Signal::KILL));
        let failover = self.failover("kill -9", epoch, ended).await?;
        block_in_place(|| self.replicas.start_again(place));
        Ok(failover)
    }

    /// Stops the leader without ending it, and kills it once all agents have another.
    pub(super) async fn stop_leader(&mut self) -> Result<Failover> {
        let epoch = self.begin_failover().await?;
        let (stopped, ended) = block_in_place(|| self.replicas.stop_leader());
        let failover = self.failover("SIGSTOP", epoch, ended).await;
        drop(stopped);
        failover
    }

    /// The share of one core, in percent, that the leader takes while nothing is changed.
    pub(super) async fn idle(&self, span: Duration) -> Result<f64> {
        self.settle().await;
        let leader = block_in_place(|| self.replicas.leader_process());
        let seconds = || processor_seconds(leader).context("the leader has ended");
        let (before, begun) = (seconds()?, Instant::now());
        tokio::time::sleep(span).await;
        Ok((seconds()? - before) / begun.elapsed().as_secs_f64() * 100.0)
    }

    /// The memory of the leader's own, in bytes, once it has settled.
    pub(super) async fn memory_bytes(&self) -> Result<f64> {
        self.settle().await;
        let leader = block_in_place(|| self.replicas.leader_process());
        let kib = memory_kib(leader, OWN_MEMORY).context("the leader has ended")?;
        Ok(kib as f64 * 1024.0)
    }

    /// Ends all of it; what must not happen and did.
    pub(super) async fn end(self) -> Vec<String> {
        let Self { size, agents, record, mut faults, .. } = self;
        for agent in agents {
            agent.kill().await;
        }
        faults.extend(record.take().faults);
        faults.into_iter().map(|fault| format!("{size} agents: {fault}")).collect()
    }

    /// Leaves the fleet alone between two pushes.
    pub(super) async fn pause() {
        tokio::time::sleep(PAUSE).await;
    }

    /// Starts the next agent.
    fn start_agent(&mut self) {
        let identity = AgentIdentity::numbered(self.agents.len(), CLUSTER);
        let (coordinators, record) = (Arc::clone(&self.coordinators), Arc::clone(&self.record));
        self.agents.push(Agent::start(identity, coordinators, record));
    }

    async fn all_owned(&self) -> Result<()> {
        let streams = self.list.len();
        until("all streams owned", || (self.record.owned() == streams).then_some(())).await
    }

    async fn settle(&self) {
        tokio::time::sleep(self.settle).await;
    }

    /// Counts from the next moment on in which nothing happens. Returns the lowest epoch that the
    /// next leader may have.
    async fn begin_failover(&mut self) -> Result<u64> {
        self.followed().await?;
        self.settle().await;
        let faults = self.record.take().faults;
        self.faults.extend(faults);
        Ok(self.record.epoch() + 1)
    }

    /// Waits until each agent follows at the standby who leads: this begins some seconds after its
    /// welcome.
    async fn followed(&self) -> Result<()> {
        if !self.coordinators.agents_follow {
            return Ok(());
        }
        let follow = || {
            let watches = block_in_place(|| self.replicas.sum("leasehold_leader_watches"));
            (watches >= self.agents.len() as f64).then_some(())
        };
        until("all agents to follow who leads", follow).await
    }

    async fn failover(&mut self, signal: &str, epoch: u64, ended: Moment) -> Result<Failover> {
        let streams = self.list.len();
        let renewed = || {
            let is_owned = self.record.owned() == streams;
            is_owned.then(|| self.first_grants(epoch, ended)).flatten()
        };
        let renewed = until(&format!("all agents renewed after {signal}"), renewed).await?;
        self.settle().await;
        let counts = self.record.take();
        for (count, what) in [
            (counts.moved, "streams moved"),
            (counts.pools, "pools were granted anew"),
            (counts.expired, "leases ended without renewal"),
        ] {
            if count > 0 {
                self.faults.push(format!("{count} {what} after {signal} of the leader"));
            }
        }
        self.faults.extend(counts.faults);
        Ok(Failover { renewed, moved: counts.moved, pools: counts.pools })
    }

    /// The first grant of this epoch or a later one at each agent; `None` while one has none.
    fn first_grants(&self, epoch: u64, begun: Moment) -> Option<Push> {
        let agents = 0..self.agents.len();
        Push::of(begun, agents.map(|agent| self.record.first_grant(agent, epoch)))
    }

    /// The grant of the pool that the manifest asks for at each agent; `None` while one has none.
    fn pools(&self, begun: Moment) -> Option<Push> {
        let granted = |agent| self.record.pool_of_size(agent, self.jobs_per_worker);
        Push::of(begun, (0..self.agents.len()).map(granted))
    }
}
