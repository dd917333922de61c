//! The driver: the one task that owns the holder and reads the clock. It passes events to the
//! holder one at a time, and carries out all effects of one event before the next.

mod drain;
mod handle;
mod job_clock;
mod job_queue;
mod notices;
mod outstanding;
mod session_state;

use std::path::absolute;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use leasehold_agent_core::{Effect, Holder, INCARNATION_OFFSET_MAX, Memory, Notice};
use leasehold_proto::map;
use leasehold_types::message::{AgentProcess, CoordinatorMessage, WorkerFailure};
use leasehold_types::{AgentId, Incarnation, LinkNumber, Moment, WorkerKey};
use rustix::system::uname;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

pub(crate) use handle::{DriverHandle, DriverRequest, DriverStopped, Snapshot};
pub(crate) use job_clock::{RunningJob, RunningJobs};
pub(crate) use outstanding::amount;

use crate::cells::Cells;
use crate::clock;
use crate::config::Config;
use crate::journal::AgentJournal;
use crate::leader_watch::{LeaderWatch, Successor, WelcomedLink};
use crate::link::{CoordinatorPorts, Dialer, Link, LinkChange, LinkEvent};
use crate::metrics::Metrics;
use drain::Drain;
use job_clock::JobClock;
use job_queue::{JobQueue, QueuedJob};
use notices::NoticeLogger;
use session_state::SessionState;

/// Queued requests to the driver; further senders wait.
const REQUESTS_MAX: usize = 1024;
/// Queued events of the link; further sends wait.
const LINK_EVENTS_MAX: usize = 64;
/// The driver reads the clock at least this often: leases count the time during which the host is
/// suspended, tokio's timers do not.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Links that may be closing at once.
const CLOSING_LINKS_MAX: usize = 8;
/// How long the last messages may take to reach the coordinator.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the agent must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The drain has ended.
    Drained {
        /// Jobs that still run after the deadline.
        jobs_left: u32,
        /// Whether a coordinator has received the report that the agent leaves.
        reported: bool,
    },
    /// A newer agent has taken over this worker.
    Superseded,
}

/// The driver of one agent.
#[derive(Debug)]
pub(crate) struct Driver {
    holder: Holder<AgentJournal>,
    dialer: Dialer,
    link: Option<Link>,
    closing_links: JoinSet<()>,
    link_events: mpsc::Receiver<LinkEvent>,
    leader_watch: LeaderWatch,
    successors: mpsc::Receiver<Successor>,
    commands: mpsc::Receiver<DriverRequest>,
    changes: watch::Sender<u64>,
    outcome: watch::Sender<Option<Outcome>>,
    /// How many drains have outlasted their deadline.
    overdue: watch::Sender<u64>,
    job_queue: JobQueue,
    job_clock: JobClock,
    cells: Cells,
    /// What a hello says of this process.
    process: AgentProcess,
    drain_waiters: Vec<oneshot::Sender<u32>>,
    drain: Drain,
    metrics: Arc<Metrics>,
    session: SessionState,
    notices: NoticeLogger,
    /// The time from a renewal to the end of the lease.
    ttl: Option<Duration>,
    stopping: bool,
}

/// This process, as a person finds it.
fn this_process(config: &Config) -> AgentProcess {
    let host = uname().nodename().to_string_lossy().into_owned();
    let folder = config.state_dir.as_deref();
    let state_dir = folder.and_then(|folder| Some(absolute(folder).ok()?.display().to_string()));
    AgentProcess { host, id: std::process::id(), state_dir }
}

impl Driver {
    /// A driver, and the handle to it.
    pub(crate) fn new(
        config: &Config,
        memory: Memory,
        journal: AgentJournal,
        identity: AgentId,
        metrics: Arc<Metrics>,
    ) -> (Self, DriverHandle) {
        let now = clock::now();
        if let Some(epoch) = memory.epoch {
            metrics.epoch.store(epoch.0, Relaxed);
        }
        let after_last = memory.incarnation.map_or(0, |last| last.0.saturating_add(1));
        let who = leasehold_agent_core::Config {
            cluster: config.cluster.clone(),
            worker: config.worker.clone(),
            incarnation: Incarnation(clock::unix_millis().max(after_last)),
            identity: Some(identity),
            take_over: config.take_over,
            generation: config.generation,
            stops_worker: config.adapter.stops_worker(),
            address: config.worker_address.clone(),
            exposes_bindings: config.adapter.exposes_bindings(),
            drain_deadline: config.drain_deadline,
            goodbye_max: config.goodbye_max,
            insists_on_report: config.insists_on_report,
            stays_after_drain: config.sidecar,
            ends_worker: config.child.is_some(),
            incarnation_offset: fastrand::u64(1..=INCARNATION_OFFSET_MAX),
        };
        let (events, link_events) = mpsc::channel(LINK_EVENTS_MAX);
        let (command_sender, commands) = mpsc::channel(REQUESTS_MAX);
        let (changes, changes_seen) = watch::channel(0);
        let (outcome, outcome_seen) = watch::channel(None);
        let (overdue, overdue_seen) = watch::channel(0);
        let worker = WorkerKey { cluster: config.cluster.clone(), worker: config.worker.clone() };
        let coordinators = config.coordinators.iter().map(ToString::to_string).collect();
        let ports = CoordinatorPorts { tls: config.tls.clone() };
        let (leader_watch, successors) = LeaderWatch::start(worker, coordinators, ports);
        let holder = Holder::new(who, memory, journal, now);
        let running = holder.outstanding().jobs.unwrap_or(0);
        let driver = Self {
            holder,
            dialer: Dialer::new(config.coordinators.clone(), config.tls.clone(), events),
            link: None,
            closing_links: JoinSet::new(),
            link_events,
            leader_watch,
            successors,
            commands,
            changes,
            outcome,
            overdue,
            job_queue: JobQueue::default(),
            job_clock: JobClock::new(running, now),
            cells: Cells::new(config.coordinators.clone(), config.tls.clone()),
            process: this_process(config),
            drain_waiters: Vec::new(),
            drain: Drain {
                limit: config.drain_deadline,
                fixed: config.drain_deadline.is_some(),
                stays_after_drain: config.sidecar,
                goodbye_max: config.goodbye_max,
                warns_unacknowledged: !config.sidecar && !config.insists_on_report,
                ..Drain::default()
            },
            session: SessionState::new(metrics.clone()),
            notices: NoticeLogger::new(config.worker_address.is_some()),
            metrics: metrics.clone(),
            ttl: None,
            stopping: false,
        };
        driver.metrics.set_journal_problem(driver.holder.journal().problem());
        driver.metrics.set_failure(driver.holder.failure().map(ToString::to_string));
        let handle =
            DriverHandle::new(command_sender, changes_seen, outcome_seen, overdue_seen, metrics);
        (driver, handle)
    }

    /// Runs until a request stops it, or every handle is dropped.
    pub(crate) async fn run(mut self) {
        self.run_effects(clock::now());
        while !self.stopping {
            let pause = self.pause(clock::now());
            tokio::select! {
                Some(event) = self.link_events.recv() => self.handle_link(event),
                Some(successor) = self.successors.recv() => self.handle_successor(successor),
                command = self.commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => self.stopping = true,
                },
                () = tokio::time::sleep(pause) => {}
            }
            let now = clock::now();
            self.wake(now);
            self.run_effects(now);
            self.check_journal(now);
            self.log_drain_progress(now);
            self.job_queue.log_wait(&self.holder, now);
        }
        self.close_link(None);
        while self.closing_links.join_next().await.is_some() {}
    }

    /// Closes the link, if it has this number or none is given, after its queued messages.
    fn close_link(&mut self, number: Option<LinkNumber>) {
        while self.closing_links.try_join_next().is_some() {}
        let this = |link: &mut Link| number.is_none_or(|number| link.number == number);
        let Some(link) = self.link.take_if(this).filter(|link| link.opened) else { return };
        if self.closing_links.len() < CLOSING_LINKS_MAX {
            self.closing_links.spawn(link.finish(CLOSE_TIMEOUT));
        }
    }

    /// How long to sleep unless an event arrives.
    fn pause(&self, now: Moment) -> Duration {
        let holder = self.holder.poll_timeout().map(|wakeup| wakeup.at);
        let next = holder.into_iter().chain(self.job_queue.next_end()).min();
        next.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))
    }

    /// Processes due timers first, so that no decision is based on a lease that has ended.
    fn wake(&mut self, now: Moment) {
        if self.holder.poll_timeout().is_some_and(|wakeup| wakeup.at <= now) {
            self.holder.handle_wake(now);
        }
    }

    /// Retries a journal that cannot be written, and publishes its problem.
    fn check_journal(&mut self, now: Moment) {
        let journal = self.holder.journal_mut();
        journal.retry(now);
        self.metrics.set_journal_problem(journal.problem());
    }

    fn handle_link(&mut self, event: LinkEvent) {
        let LinkEvent { link, change } = event;
        if self.link.as_ref().is_none_or(|current| current.number != link) {
            return;
        }
        let now = clock::now();
        self.wake(now);
        match change {
            LinkChange::Opened => {
                self.link.as_mut().expect("checked above").opened = true;
                self.holder.handle_open(link, now);
            }
            LinkChange::Closed(why) => {
                let closed = self.link.take();
                let address = closed.as_ref().map_or("", |link| link.address.as_str());
                self.session.closed(address, &why);
                self.notices.link_closed(address, &why, now);
                self.holder.handle_closed(link, &why, now);
            }
            LinkChange::TokenIgnored => {
                let address = self.link.as_ref().map_or("", |link| link.address.as_str());
                self.notices.token_ignored(address, now);
            }
            LinkChange::Waiting(ahead) => {
                let address = self.link.as_ref().map_or("", |link| link.address.as_str());
                self.notices.waiting(address, ahead, now);
            }
            LinkChange::Message(message) => {
                self.note_terms(&message);
                self.holder.handle_message(link, *message, now);
                self.cells.set_own(self.holder.cell());
            }
        }
    }

    /// A leader that hangs does not end its link: the agent does, once another replica leads.
    fn handle_successor(&mut self, successor: Successor) {
        let now = clock::now();
        self.wake(now);
        let Successor { over, leader, epoch } = successor;
        let dialled = self.link.as_ref().map(|link| link.address.as_str());
        if self.holder.handle_successor(over, leader.clone(), dialled, now) {
            tracing::info!(leader, epoch = epoch.0, "another replica leads now");
        }
    }

    fn note_terms(&mut self, message: &CoordinatorMessage) {
        let terms = match message {
            CoordinatorMessage::Welcome(welcome) => welcome.terms,
            CoordinatorMessage::Grant(grant) => grant.terms,
            CoordinatorMessage::Refusal(_) => return,
        };
        self.ttl = Some(terms.ttl);
        if !self.drain.fixed {
            self.drain.limit = Some(terms.drain_deadline);
        }
    }

    fn handle_command(&mut self, command: DriverRequest) {
        let now = clock::now();
        self.wake(now);
        match command {
            DriverRequest::Lease { kinds, peek, reply } => {
                let lease = if peek {
                    let mut lease = self.holder.peek(now);
                    lease.keep(kinds);
                    lease
                } else {
                    self.holder.lease_of(kinds, now)
                };
                let _ = reply.send(Snapshot { lease: Arc::new(lease), now, ttl: self.ttl });
            }
            DriverRequest::Jobs { reply } => {
                let _ = reply.send(self.running_jobs(now));
            }
            DriverRequest::Outstanding { reply } => {
                let outstanding = self.holder.outstanding();
                let _ = reply.send(if outstanding.draining {
                    Some(format!("draining: {}", self.describe_drain(&outstanding, now)))
                } else {
                    outstanding::describe_work(&outstanding)
                });
            }
            DriverRequest::Size { reply } => {
                let _ = reply.send(self.holder.size_for_worker(now));
            }
            DriverRequest::Start { start, running, reply } => {
                let _ = reply.send(self.holder.start_worker(start, running, now));
                self.job_queue.recheck();
            }
            DriverRequest::Begin { job, wait, reply } => {
                let waiter = QueuedJob { job, since: now, until: now + wait, reply };
                self.job_queue.begin(&mut self.holder, waiter, &self.metrics, now);
            }
            DriverRequest::End { job, reply } => {
                let _ = reply.send(self.holder.end_job(&job, now));
                self.job_queue.recheck();
            }
            DriverRequest::Count { running, in_effect, reply } => {
                let _ = reply.send(self.holder.report_count(running, in_effect, now));
                self.job_queue.recheck();
            }
            DriverRequest::ObservedCount { running, in_effect, reply } => {
                let _ = reply.send(self.holder.observe_count(running, in_effect, now));
                self.job_queue.recheck();
            }
            DriverRequest::Release { stream, token, reply } => {
                let _ = reply.send(self.holder.release_stream(&stream, token, now));
            }
            DriverRequest::Failure { failure, reply } => {
                let _ = reply.send(self.set_failure(failure, now));
            }
            DriverRequest::Promise { within, reply } => {
                self.holder.note_promise(within);
                let _ = reply.send(());
            }
            DriverRequest::Drain { ended } => self.begin_drain(ended, now),
            DriverRequest::ContainerEnded => {
                // A failure is in the log already, and the drain continues.
                if self.holder.container_ended(now).is_ok() {
                    self.job_queue.recheck();
                }
            }
            DriverRequest::Stop => self.stopping = true,
        }
    }

    /// Sets why the worker fails its check; returns whether that is in force. A recovery that
    /// cannot be recorded is not.
    fn set_failure(&mut self, failure: Option<WorkerFailure>, now: Moment) -> bool {
        let is_in_force = match failure {
            Some(failure) => {
                self.holder.fail(failure, now);
                true
            }
            None => self.holder.recover(now).is_ok(),
        };
        self.metrics.set_failure(self.holder.failure().map(ToString::to_string));
        is_in_force
    }

    fn running_jobs(&self, now: Moment) -> RunningJobs {
        self.job_clock.running_jobs(self.holder.jobs(), self.holder.running(), now)
    }

    /// Carries out all effects, then admits waiting jobs, until no work is left.
    fn run_effects(&mut self, now: Moment) {
        loop {
            let effects: Vec<_> = std::iter::from_fn(|| self.holder.poll_effect()).collect();
            if !effects.is_empty() {
                self.note_jobs(&effects, now);
                effects.into_iter().for_each(|effect| self.apply(effect, now));
                continue;
            }
            if !self.job_queue.serve(&mut self.holder, &self.metrics, now) {
                return;
            }
        }
    }

    /// Notes which jobs have begun and ended, before a message among the effects is sent.
    fn note_jobs(&mut self, effects: &[Effect], now: Moment) {
        for effect in effects {
            match effect {
                Effect::Notice(Notice::JobBegan(job)) => self.job_clock.began(job.clone(), now),
                Effect::Notice(Notice::JobEnded(job)) => self.job_clock.ended(job, now),
                _ => {}
            }
        }
        if let Some(running) = self.holder.outstanding().jobs {
            self.job_clock.settle(running, now);
        }
    }

    fn apply(&mut self, effect: Effect, now: Moment) {
        match effect {
            Effect::Dial { link, target, attempt } => {
                // Events of the old link are ignored from now on.
                self.close_link(None);
                self.session.dialled();
                self.link = Some(self.dialer.dial(link, target, attempt, self.ttl));
            }
            Effect::Hangup(link) => {
                self.close_link(Some(link));
                self.session.disconnected();
            }
            Effect::Send(number, message) => {
                let mut request = self.job_clock.attach(message, now);
                map::attach_agent_process(&mut request, &self.process);
                if let Some(other) = self.cells.other() {
                    map::attach_other_cell(&mut request, other);
                }
                let link = self.link.as_ref().filter(|link| link.number == number);
                let stalled = link.is_some_and(|link| !link.send(request));
                if stalled {
                    let why = "the coordinator reads too slowly";
                    self.link = None;
                    self.holder.handle_closed(number, why, now);
                }
            }
            Effect::LeaseChanged => {
                self.changes.send_modify(|count| *count += 1);
                self.job_queue.recheck();
            }
            Effect::LeaseRenewed => self.changes.send_modify(|count| *count += 1),
            Effect::DrainEnded { jobs_left, reported } => self.end_drain(jobs_left, reported, now),
            Effect::DrainOverdue { jobs_left } => {
                let what = if self.drain.stays_after_drain {
                    "the agent ends nothing; it keeps reporting until nothing is left"
                } else {
                    "COMMAND is ended now, and the agent keeps reporting until it has"
                };
                let left = self.describe_drain(&self.holder.outstanding(), now);
                tracing::warn!(jobs_left, "the drain's deadline has passed: {left}; {what}");
                self.drain.overdue = true;
                self.overdue.send_modify(|count| *count += 1);
                self.answer_drain_waiters(jobs_left);
            }
            Effect::Resumed => {
                let jobs_left = self.holder.running();
                self.answer_drain_waiters(jobs_left);
                self.outcome.send_replace(None);
                (self.drain.since, self.drain.overdue) = (None, false);
                self.drain.goodbye_logged = false;
            }
            Effect::Superseded => {
                tracing::error!("a newer agent runs for this worker: this agent stops for good");
                self.drain_waiters.clear();
                self.outcome.send_replace(Some(Outcome::Superseded));
            }
            Effect::Notice(notice) => {
                if let (Notice::Welcomed(epoch), Some(link)) = (&notice, &self.link) {
                    self.leader_watch.set_welcomed(WelcomedLink {
                        number: link.number,
                        address: link.address.clone(),
                        epoch: *epoch,
                        cell: self.holder.cell(),
                    });
                }
                let address = self.link.as_ref().map_or("", |link| link.address.as_str());
                self.session.observe(&notice, address);
                self.notices.log(notice, address, now);
            }
        }
    }
}
