//! A fleet that a coordinator grants its slots: the real core of the coordinator and that of each
//! agent, with messages that take a fixed time. Each worker asks its agent before it begins a job.
//!
//! **Invariant**: nothing fails, so each agent dials once, and a lease is renewed in time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leasehold_agent_core::{Config as AgentConfig, Effect as AgentEffect, Holder, Memory};
use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use leasehold_types::{
    ClusterName, Epoch, JobId, LinkNumber, Moment, StartId, TermId, WorkerKey, WorkerName,
};

use super::{JOB_MEANS_MAX, JobTimes, Place, Rollout, RolloutFigures, START, Schedule, SlotUse};
use crate::agents::Unwritten;

/// How long a message is on its way, and how long the platform takes to store something.
const LATENCY: Duration = Duration::from_millis(5);
/// How long before the rollout the old workers start: they have all slots by then.
const WARM_UP: Duration = Duration::from_secs(5);
/// A term of leadership that outlasts every rollout.
const TERM: Duration = Duration::from_secs(1_000_000);
/// The only link of an agent.
const LINK: LinkNumber = LinkNumber(1);

/// The simulation.
pub(super) struct GrantedFleet {
    rollout: Rollout,
    core: Core,
    /// The place of the coordinator's next wake-up.
    wakeup: Option<Place>,
    /// By worker's number, which is that of its connection, too.
    agents: Vec<Agent>,
    schedule: Schedule<Step>,
    slots: SlotUse,
}

/// A worker and its agent.
struct Agent {
    holder: Holder<Unwritten>,
    /// The place of the agent's next wake-up.
    wakeup: Option<Place>,
    jobs_begun: u64,
    job_times: JobTimes,
}

enum Step {
    /// All old workers drain.
    BeginRollout,
    /// A new worker starts.
    StartWorker,
    /// The link of the agent with this number is open.
    OpenLink(usize),
    /// A message or an answer arrives at the coordinator.
    ToCoordinator(Box<Event>),
    /// A message arrives at the agent with this number.
    ToAgent(usize, Box<CoordinatorMessage>),
    WakeCoordinator,
    /// Wakes the agent with this number.
    WakeAgent(usize),
    /// A job of the worker with this number ends.
    EndJob(usize, JobId),
}

impl GrantedFleet {
    /// A leading coordinator, and old workers that have just started.
    pub(super) fn new(rollout: Rollout) -> Result<Self> {
        let cluster = Cluster {
            jobs_max: rollout.budget(),
            jobs_per_worker_max: rollout.jobs_per_worker,
            // No drain takes as long.
            drain_deadline: rollout.job_mean.mul_f64(2.0 * JOB_MEANS_MAX),
            ..Cluster::example()
        };
        let clusters = [(cluster_name(), Arc::new(cluster))].into();
        let desired = Desired { clusters, ..Desired::default() };
        let elected = Elected {
            epoch: Epoch(1),
            term: TermId(1),
            cell: None,
            until: START + TERM,
            predecessor_end: START,
            exposed: [].into(),
            unreadable: [].into(),
        };
        let mut fleet = Self {
            rollout,
            core: Core::new(Config::default()),
            wakeup: None,
            agents: Vec::new(),
            schedule: Schedule::new(START),
            slots: SlotUse::new(rollout, START),
        };
        fleet.take_event(Event::Desired(Arc::new(desired)))?;
        fleet.take_event(Event::Elected(elected))?;
        let begins_at = fleet.begins_at();
        fleet.schedule.add(begins_at, Step::BeginRollout);
        for number in 0..rollout.workers {
            fleet.start_worker()?;
            let ready_at = begins_at + rollout.ready_after(number);
            fleet.schedule.add(ready_at, Step::StartWorker);
        }
        Ok(fleet)
    }

    /// Simulates until no old worker runs a job.
    pub(super) fn run(mut self) -> Result<RolloutFigures> {
        while self.schedule.now < self.begins_at() || self.slots.running_old > 0 {
            let step = self.schedule.take_next().context("the old workers' jobs do not end")?;
            self.take(step)?;
        }
        Ok(self.slots.figures())
    }

    fn begins_at(&self) -> Moment {
        START + WARM_UP
    }

    fn take(&mut self, step: Step) -> Result<()> {
        match step {
            Step::BeginRollout => self.begin_rollout(),
            Step::StartWorker => self.start_worker(),
            Step::OpenLink(number) => {
                self.drive_agent(number, |holder, now| holder.handle_open(LINK, now))
            }
            Step::ToCoordinator(event) => self.take_event(*event),
            Step::ToAgent(number, message) => {
                self.drive_agent(number, |holder, now| holder.handle_message(LINK, *message, now))
            }
            Step::WakeCoordinator => self.take_event(Event::Wake),
            Step::WakeAgent(number) => {
                self.drive_agent(number, |holder, now| holder.handle_wake(now))
            }
            Step::EndJob(number, job) => {
                self.slots.end_job(number, self.schedule.now);
                self.drive_agent(number, |holder, now| {
                    holder.end_job(&job, now).expect("a journal that succeeds");
                })
            }
        }
    }

    fn begin_rollout(&mut self) -> Result<()> {
        let (running, budget) = (self.slots.running, self.rollout.budget());
        ensure!(running == budget, "{running} jobs run before the rollout, not {budget}");
        self.slots.begin_rollout(self.schedule.now);
        (0..self.rollout.workers)
            .try_for_each(|number| self.drive_agent(number, |holder, now| holder.drain(now)))
    }

    fn start_worker(&mut self) -> Result<()> {
        let number = self.agents.len();
        let worker = WorkerName::new(&format!("worker-{number}")).expect("a worker's name");
        let key = WorkerKey { cluster: cluster_name(), worker };
        let generation = u64::from(!self.rollout.is_old(number));
        let config = AgentConfig { generation, ..AgentConfig::example(key) };
        let holder = Holder::new(config, Memory::default(), Unwritten, self.schedule.now);
        let job_times = self.rollout.job_times(number);
        self.agents.push(Agent { holder, wakeup: None, jobs_begun: 0, job_times });
        let start = StartId::new("start").expect("a start's id");
        self.drive_agent(number, |holder, now| {
            holder.start_worker(start, 0, now).expect("nothing runs yet");
        })
    }

    /// Lets something happen to an agent; its worker then begins the jobs that the lease allows.
    fn drive_agent(
        &mut self,
        number: usize,
        happens: impl FnOnce(&mut Holder<Unwritten>, Moment),
    ) -> Result<()> {
        let (now, begins_at) = (self.schedule.now, self.begins_at());
        let agent = &mut self.agents[number];
        happens(&mut agent.holder, now);
        while let Some(job) = agent.begin_job(now) {
            self.slots.begin_job(number, now);
            // The run times of the first jobs count from the start of the rollout.
            let ends_at = now.max(begins_at) + agent.job_times.draw();
            self.schedule.add(ends_at, Step::EndJob(number, job));
        }
        let conn = ConnId(number as u64);
        while let Some(effect) = agent.holder.poll_effect() {
            let step = match effect {
                AgentEffect::Dial { link: LINK, .. } => Step::OpenLink(number),
                AgentEffect::Dial { .. } => bail!("worker {number}: its agent dials again"),
                AgentEffect::Superseded => bail!("worker {number}: its agent is superseded"),
                AgentEffect::Send(_, message) => {
                    Step::ToCoordinator(Box::new(event_of(conn, message)))
                }
                AgentEffect::Hangup(_) => Step::ToCoordinator(Box::new(Event::Closed(conn))),
                AgentEffect::LeaseChanged
                | AgentEffect::LeaseRenewed
                | AgentEffect::DrainEnded { .. }
                | AgentEffect::DrainOverdue { .. }
                | AgentEffect::Resumed
                | AgentEffect::Notice(_) => continue,
            };
            self.schedule.add(now + LATENCY, step);
        }
        if let Some(place) = agent.wakeup.take() {
            self.schedule.cancel(place);
        }
        let wakeup = agent.holder.poll_timeout();
        agent.wakeup = wakeup.map(|wakeup| self.schedule.add(wakeup.at, Step::WakeAgent(number)));
        Ok(())
    }

    /// One turn of the coordinator, and those that follow at once. A message counts as written when
    /// it is sent.
    fn take_event(&mut self, event: Event) -> Result<()> {
        let now = self.schedule.now;
        self.core.handle(event, now);
        loop {
            self.core.settle(now, now);
            let mut written = Vec::new();
            while let Some(effect) = self.core.poll_effect() {
                let step = match effect {
                    Effect::Send { conn, message } => {
                        written.push(conn);
                        Step::ToAgent(conn.0 as usize, Box::new(message))
                    }
                    Effect::Order { epoch, order } => {
                        Step::ToCoordinator(Box::new(answer(epoch, order, now)?))
                    }
                    // An agent that has its last message hangs up by itself.
                    Effect::Close(_) | Effect::Notice(_) => continue,
                };
                self.schedule.add(now + LATENCY, step);
            }
            if written.is_empty() && !self.core.has_more() {
                break;
            }
            written.into_iter().for_each(|conn| self.core.handle(Event::Sent(conn), now));
        }
        if let Some(place) = self.wakeup.take() {
            self.schedule.cancel(place);
        }
        let wakeup = self.core.poll_timeout();
        self.wakeup = wakeup.map(|wakeup| self.schedule.add(wakeup.at, Step::WakeCoordinator));
        Ok(())
    }
}

impl Agent {
    /// The worker begins a job, if a slot is free.
    fn begin_job(&mut self, now: Moment) -> Option<JobId> {
        let pool = self.holder.peek(now).pool;
        if pool.running >= pool.size {
            return None;
        }
        let job = JobId::new(&format!("job-{}", self.jobs_begun)).expect("a job's id");
        self.jobs_begun += 1;
        self.holder.begin_job(job.clone(), now).expect("a free slot");
        Some(job)
    }
}

fn cluster_name() -> ClusterName {
    ClusterName::new("builds").expect("a cluster's name")
}

fn event_of(conn: ConnId, message: AgentMessage) -> Event {
    match message {
        AgentMessage::Hello(hello) => Event::Hello(conn, hello, None),
        AgentMessage::Report(report) => Event::Report(conn, report),
        AgentMessage::Beat(beat) => Event::Beat(conn, beat),
    }
}

/// What the platform answers to an order that it is given now.
fn answer(epoch: Epoch, order: Order, now: Moment) -> Result<Event> {
    Ok(match order {
        Order::Register(workers) => Event::Registered(workers),
        Order::Unregister(workers) => Event::Unregistered(workers),
        Order::Confirm | Order::AskTerm { .. } => {
            Event::Renewed(Renewed { epoch, sent_at: now, until: now + TERM })
        }
        Order::StepDown { .. } => bail!("the coordinator gives its term up"),
    })
}
