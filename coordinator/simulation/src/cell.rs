//! One cell in simulated time: the real core of its coordinator and those of its agents, joined by
//! messages and a store that take a fixed time. No process runs, and a turn takes no time.
//!
//! **Invariant**: the cores see no other time than that of their clock, and one seed is one run.

mod agent;
mod clock;
mod steps;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use leasehold_agent_core::RequestError;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::view::ClassView;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::CoordinatorMessage;
use leasehold_types::{
    ClusterName, Epoch, JobId, LinkNumber, Load, Moment, StartId, StreamKey, TimeBounds, Token,
    WorkerKey,
};

use self::agent::{Agent, WorkerPhase};
use self::clock::CoresClock;
use self::store::Store;
use crate::schedule::{Place, Schedule};

/// How long a message is on its way, and how long the store takes.
const LATENCY: Duration = Duration::from_millis(5);
/// How long after a machine is lost the coordinator ends the connection of its agent: a keepalive
/// every 10 s, and 10 s for its answer.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How long after the store is back, or a leader has given up, a coordinator takes the next term.
const ELECTED_AFTER: Duration = Duration::from_secs(1);
/// Between two renewals of leadership, by the cores' clock.
const RENEWED_EVERY: Duration = Duration::from_secs(2);
/// How many times slower the cores' clock runs while nothing but beats and renewals happens.
const SLOWDOWN: u32 = 100;
/// Added to the time for which the clock is exact after something that leases' times matter for.
const EXACT_MARGIN: Duration = Duration::from_secs(10);

/// Names a worker of a cell: the first one is 0.
pub(crate) type WorkerNumber = usize;

/// Whether the beats of idle times are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleTime {
    /// All of them.
    Simulated,
    /// One in many: the cores' clock runs slower while neither a lease's end nor the moves of
    /// streams depend on it.
    Skipped,
}

/// What has happened in a cell that its surroundings act on. A share of a pipeline is leased as a
/// stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The number of jobs that this worker may begin may have changed.
    SlotsChanged(WorkerNumber),
    /// This worker has drained: it holds nothing.
    Drained(WorkerNumber),
    /// This worker is to release a stream.
    Revoked {
        /// The worker.
        worker: WorkerNumber,
        /// The stream.
        stream: StreamKey,
        /// Under this token.
        token: Token,
    },
    /// A worker has a stream from now on.
    Granted {
        /// The worker.
        worker: WorkerNumber,
        /// The stream.
        stream: StreamKey,
        /// Its load, if it is a share.
        load: Option<Load>,
    },
    /// A worker has a stream no longer: it has released the stream, or its lease has ended. The
    /// coordinator may not know it yet.
    Freed {
        /// The worker.
        worker: WorkerNumber,
        /// The stream.
        stream: StreamKey,
    },
}

/// A cell whose workers ask before each job.
#[derive(Debug)]
pub struct Cell {
    now: Moment,
    idle_time: IdleTime,
    clock: CoresClock,
    /// The clock is exact at least until then.
    exact_until: Moment,
    rng: fastrand::Rng,
    desired: Arc<Desired>,
    core: Core,
    /// How many coordinators were killed: what was sent to one of them is lost.
    process: u64,
    store: Store,
    agents: Vec<Agent>,
    numbers: BTreeMap<WorkerKey, WorkerNumber>,
    connections: Vec<Connection>,
    /// Links that were dialled while no coordinator leads.
    unanswered: Vec<(WorkerNumber, LinkNumber)>,
    messages: Schedule<Message>,
    /// By the cores' clock.
    wakeups: Schedule<Sleeper>,
    /// The place of the coordinator's next wake-up.
    core_wakeup: Option<Place>,
    happenings: VecDeque<Happening>,
}

/// One connection of an agent; a [`ConnId`] is its place among all.
#[derive(Clone, Copy, Debug)]
struct Connection {
    worker: WorkerNumber,
    link: LinkNumber,
    process: u64,
}

/// What is on its way.
#[derive(Debug)]
enum Message {
    /// The link of this number of an agent is open.
    Opened(WorkerNumber, LinkNumber),
    /// A message of an agent, or the end of its connection.
    ToCoordinator(ConnId, Box<Event>),
    ToAgent(ConnId, Box<CoordinatorMessage>),
    /// The coordinator has closed the connection.
    ClosedAtAgent(ConnId),
    /// An order of the leader of this term, on its way to the store.
    ToStore(Epoch, Box<Order>),
    /// A coordinator takes the next term, if nobody leads.
    Election,
}

/// Who is woken.
#[derive(Clone, Copy, Debug)]
enum Sleeper {
    Coordinator,
    Agent(WorkerNumber),
    /// The renewal of leadership.
    Renewal,
}

impl Cell {
    /// A cell without workers, whose coordinator has just come to lead.
    ///
    /// # Errors
    /// If the cores do what they do only where a rule of the protocol is broken.
    pub fn new(desired: Desired, idle_time: IdleTime, seed: u64, now: Moment) -> Result<Self> {
        let desired = Arc::new(desired);
        let mut cell = Self {
            now,
            idle_time,
            clock: CoresClock::new(now),
            exact_until: now,
            rng: fastrand::Rng::with_seed(seed),
            desired: Arc::clone(&desired),
            core: Core::new(Config::default()),
            process: 0,
            store: Store::new(now),
            agents: Vec::new(),
            numbers: BTreeMap::new(),
            connections: Vec::new(),
            unanswered: Vec::new(),
            messages: Schedule::new(now),
            wakeups: Schedule::new(now),
            core_wakeup: None,
            happenings: VecDeque::new(),
        };
        cell.wakeups.add(now + RENEWED_EVERY, Sleeper::Renewal);
        cell.take_event(Event::Desired(desired))?;
        cell.elect()?;
        Ok(cell)
    }

    /// The next thing that has happened, oldest first.
    pub fn take_happening(&mut self) -> Option<Happening> {
        self.happenings.pop_front()
    }

    /// How many more jobs a worker may begin; 0 once it has ended.
    #[must_use]
    pub fn free_slots(&self, worker: WorkerNumber) -> u32 {
        let agent = &self.agents[worker];
        if agent.phase == WorkerPhase::Running { agent.free_slots } else { 0 }
    }

    /// A worker starts, with its agent.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn start_worker(
        &mut self,
        key: WorkerKey,
        generation: u64,
        now: Moment,
    ) -> Result<WorkerNumber> {
        self.begin(now);
        self.be_exact_for_streams();
        let number = self.agents.len();
        let cluster = self.desired.clusters.get(&key.cluster);
        let is_of_class = cluster.is_some_and(|cluster| cluster.class.is_some());
        let agent = Agent::new(key.clone(), number, generation, is_of_class, self.cores_now());
        self.agents.push(agent);
        self.numbers.insert(key, number);
        let start = StartId::new("start").expect("a start's id");
        self.drive(number, |holder, now| {
            holder.start_worker(start, 0, now).expect("a journal that succeeds");
        })?;
        Ok(number)
    }

    /// A worker asks for a job of this number. Returns whether it may begin the job.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn begin_job(&mut self, worker: WorkerNumber, job: u64, now: Moment) -> Result<bool> {
        self.begin(now);
        let id = job_id(job);
        let asked = self.drive(worker, |holder, now| holder.begin_job(id, now))?;
        match asked {
            Some(Ok(_)) => Ok(true),
            Some(Err(
                RequestError::NoLease { .. } | RequestError::NoSlot { .. } | RequestError::Draining,
            ))
            | None => Ok(false),
            Some(Err(why)) => bail!("worker {worker}: job {job} is refused: {why:?}"),
        }
    }

    /// A job of this number has ended.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn end_job(&mut self, worker: WorkerNumber, job: u64, now: Moment) -> Result<()> {
        self.begin(now);
        let id = job_id(job);
        self.drive(worker, |holder, now| {
            holder.end_job(&id, now).expect("a journal that succeeds");
        })?;
        Ok(())
    }

    /// A worker drains.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn drain(&mut self, worker: WorkerNumber, now: Moment) -> Result<()> {
        self.begin(now);
        self.be_exact_for_streams();
        self.drive(worker, |holder, now| holder.drain(now))?;
        if self.has_streams() {
            let lease = self.agents[worker].holder.peek(self.cores_now());
            for stream in lease.streams.into_iter().filter(|stream| stream.revoked.is_some()) {
                let (stream, token) = (stream.stream, stream.token);
                self.happenings.push_back(Happening::Revoked { worker, stream, token });
            }
        }
        Ok(())
    }

    /// A worker releases a stream or share that was revoked under this token, unless it may keep it
    /// now.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn release(
        &mut self,
        worker: WorkerNumber,
        stream: &StreamKey,
        token: Token,
        now: Moment,
    ) -> Result<()> {
        self.begin(now);
        let lease = self.agents[worker].holder.peek(self.cores_now());
        let is_asked = |of: &StreamKey, held: Token, revoked: Option<Moment>| {
            of == stream && held == token && revoked.is_some()
        };
        let mut streams = lease.streams.iter();
        let mut shares = lease.bindings.iter();
        if streams.any(|held| is_asked(&held.stream, held.token, held.revoked))
            || shares.any(|held| is_asked(&held.key.stream(), held.token, held.revoked))
        {
            // It may have expired at this moment.
            let _ = self.drive(worker, |holder, now| holder.release_stream(stream, token, now))?;
        }
        Ok(())
    }

    /// The machine of a worker is lost: nothing of the worker runs, and nobody is told.
    pub fn lose(&mut self, worker: WorkerNumber, now: Moment) {
        self.begin(now);
        self.be_exact_for(Duration::ZERO);
        self.end_processes(worker, WorkerPhase::Lost, KEEPALIVE);
    }

    /// Nothing of a worker runs, and the platform says so to the coordinator.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn end_worker(&mut self, worker: WorkerNumber, now: Moment) -> Result<()> {
        self.begin(now);
        self.be_exact_for_streams();
        self.end_processes(worker, WorkerPhase::Gone, LATENCY);
        self.tell_gone(vec![self.agents[worker].key.clone()])
    }

    /// The manifests in force.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// What a coordinator says of a class; none if no class has this name.
    pub(crate) fn class(&self, name: &ClusterName) -> Option<ClassView> {
        let mut classes = self.core.classes(self.cores_now()).into_iter();
        classes.find(|class| class.name == *name)
    }

    /// The workers of a class that can be removed now, one after the other.
    pub(crate) fn removable(&self, class: &ClusterName) -> Vec<WorkerNumber> {
        let names = self.core.removable(class, self.cores_now()).into_iter();
        let keys = names.map(|worker| WorkerKey { cluster: class.clone(), worker });
        keys.filter_map(|key| self.numbers.get(&key).copied()).collect()
    }

    /// Other manifests are in force.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn set_desired(&mut self, desired: Desired, now: Moment) -> Result<()> {
        self.begin(now);
        self.desired = Arc::new(desired);
        self.be_exact_for_streams();
        self.take_event(Event::Desired(Arc::clone(&self.desired)))
    }

    /// The leader is killed, and another coordinator takes over this much later.
    pub fn fail_over(&mut self, after: Duration, now: Moment) {
        self.begin(now);
        self.be_exact_for(after);
        self.process += 1;
        self.store.lose_leader();
        self.core = Core::new(Config::default());
        if let Some(place) = self.core_wakeup.take() {
            self.wakeups.cancel(place);
        }
        for (_, conn) in self.agents.iter().filter_map(|agent| agent.open) {
            self.messages.add(now + LATENCY, Message::ClosedAtAgent(conn));
        }
        self.messages.add(now + after, Message::Election);
    }

    /// The store does not answer from now on.
    pub fn begin_outage(&mut self, now: Moment) {
        self.begin(now);
        self.be_exact_for(Duration::ZERO);
        self.store.go_away();
    }

    /// The store answers again.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn end_outage(&mut self, now: Moment) -> Result<()> {
        self.begin(now);
        self.be_exact_for(Duration::ZERO);
        for (epoch, order) in self.store.come_back() {
            self.messages.add(now + LATENCY, Message::ToStore(epoch, Box::new(order)));
        }
        if !self.store.is_led() {
            self.messages.add(now + ELECTED_AFTER, Message::Election);
            return Ok(());
        }
        self.renew()?;
        self.tell_all_gone()
    }

    /// Something happens in the surroundings at this moment.
    fn begin(&mut self, now: Moment) {
        self.now = self.now.max(now);
    }

    /// What the cores' clock shows now.
    fn cores_now(&self) -> Moment {
        self.clock.shown_at(self.now)
    }

    /// Whether there are streams, or shares of pipelines, which move like them.
    fn has_streams(&self) -> bool {
        !self.desired.sets.is_empty() || !self.desired.pipelines.is_empty()
    }

    /// Has the clock run exactly while the times of leases decide something, and for this long
    /// before that.
    fn be_exact_for(&mut self, before: Duration) {
        let bounds = TimeBounds::default();
        let leases = self.desired.clusters.values().map(|cluster| bounds.outlast(cluster.ttl));
        let sets = self.desired.sets.values();
        let moves = sets.map(|set| set.moves.settle + set.moves.cooldown + set.handover_deadline);
        let classes = self.desired.clusters.values().filter_map(|cluster| cluster.class.as_ref());
        let moves = moves.chain(classes.map(|class| class.handover_deadline));
        let [leases, moves] = [leases.max(), moves.max()].map(Option::unwrap_or_default);
        let until = self.now + before + leases * 2 + moves + EXACT_MARGIN;
        self.exact_until = self.exact_until.max(until);
        if !self.clock.is_exact() {
            self.clock.set_slowdown(1, self.now);
        }
    }

    /// The same where streams may move.
    fn be_exact_for_streams(&mut self) {
        if self.has_streams() {
            self.be_exact_for(Duration::ZERO);
        }
    }

    /// Whether a coordinator is to give a lost worker up at its time: a leader counts that from
    /// its own beginning, so that a failover puts it off.
    fn awaits_give_up(&self) -> bool {
        self.store.workers().any(|key| {
            let number = self.numbers.get(key);
            let is_lost =
                number.is_some_and(|number| self.agents[*number].phase == WorkerPhase::Lost);
            let cluster = self.desired.clusters.get(&key.cluster);
            is_lost && cluster.is_some_and(|cluster| cluster.lost_after.is_some())
        })
    }
}

fn job_id(job: u64) -> JobId {
    JobId::new(&format!("job-{job}")).expect("a job's id")
}
