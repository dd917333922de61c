//! An agent whose worker is its child. SIGTERM means: drain first, then let the child end.
//!
//! Invariant: the holder learns of the child's exit before another child starts, and not before its
//! process group is empty. So no job of the previous child counts as running, and every running job
//! is counted.

mod event;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::anyhow;
use leasehold_types::duration;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{drain, own_code};
use crate::backoff;
use crate::child::{ChildEvent, ChildRunner, NotStarted, RunningChild};
use crate::config::{ChildSignal, Restart};
use crate::driver::{DriverHandle, DriverStopped, Outcome};
use crate::launcher::is_launching;
use crate::process_group::ProcessGroup;
use crate::reaper::Exit;
use crate::signals::{SignalAction, Signals, exit_code};
use crate::worker::check::WorkerHealth;
use event::{Due, Event, next_of, until_due, until_launched};

/// How often the agent checks whether the file that the child reads shows the current lease.
const FILE_POLL: Duration = Duration::from_millis(20);
/// How often the agent checks whether another agent still has the worker's name.
const NAME_POLL: Duration = Duration::from_millis(500);
/// How often the agent checks whether a coordinator has answered: the worker waits for that.
const ANSWER_POLL: Duration = Duration::from_millis(2);
/// How long a first start waits for a coordinator to answer whether another agent has the name.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often the log says that a child does not exit.
const REMIND: Duration = Duration::from_secs(30);

/// The agent and its child.
pub(super) struct ChildSupervisor<'a> {
    driver: DriverHandle,
    health: WorkerHealth,
    /// Changes when the child is to be restarted because it fails its check.
    restart_wanted: watch::Receiver<u64>,
    runner: ChildRunner,
    signals: &'a mut Signals,
    child: Option<RunningChild>,
    /// The group of a previous agent's child, while its first process is a launcher.
    launching: Option<ProcessGroup>,
    last_exit: Option<Exit>,
    /// How many SIGTERMs and SIGINTs have arrived: two or more mean exit at once.
    shutdown_signals: u32,
    /// The result of the agent's own work, once it has ended.
    ended: Option<Result<Outcome, DriverStopped>>,
    /// Changes when the deadline of a drain has passed.
    overdue: watch::Receiver<u64>,
    /// The child was to end because of that.
    is_cut_off: bool,
    /// The child was to end because it fails its check: it restarts, whatever its exit code.
    is_ended_to_restart: bool,
    /// The child exited while its worker drained and had no job.
    is_drained: bool,
    /// The next timed step, and when it is due.
    due: Option<(Instant, Due)>,
    restarts: u32,
    /// The holder has not recorded yet that the jobs of all earlier processes have ended.
    start_unreported: bool,
    /// Failures in a row of what must precede a start.
    start_failures: u32,
    /// When the agent started.
    since: Instant,
    /// The coordinator ordered the drain before this start.
    drain_ordered: bool,
    /// COMMAND cannot be started, so the agent drains and exits.
    failed: bool,
}

/// Why the child was not started.
enum StartFailure {
    NotStarted(NotStarted),
    /// A signal ends the agent at once.
    Signal(SignalAction),
}

impl<'a> ChildSupervisor<'a> {
    pub(super) fn new(
        driver: DriverHandle,
        health: WorkerHealth,
        runner: ChildRunner,
        signals: &'a mut Signals,
        drain_ordered: bool,
    ) -> Self {
        Self {
            overdue: driver.overdue(),
            restart_wanted: health.restarts(),
            is_ended_to_restart: false,
            health,
            is_cut_off: false,
            is_drained: false,
            driver,
            runner,
            signals,
            child: None,
            launching: None,
            last_exit: None,
            shutdown_signals: 0,
            ended: None,
            due: None,
            restarts: 0,
            start_unreported: false,
            start_failures: 0,
            since: Instant::now(),
            drain_ordered,
            failed: false,
        }
    }

    /// Runs until the child has exited and will not restart. Returns the exit code.
    pub(super) async fn run(mut self) -> anyhow::Result<u8> {
        let predecessor = self.runner.find()?;
        let mut code = match predecessor {
            Some(group) if is_launching(&group) => {
                self.launching = Some(group);
                None
            }
            group => self.adopt_or_start(group).await,
        };
        while code.is_none() {
            code = match self.next().await {
                Event::Child(ChildEvent::LeaderExited(exit)) => self.handle_leader_exit(exit).await,
                Event::Child(ChildEvent::Exited(exit)) => self.handle_exit(exit).await,
                Event::Ended(outcome) => self.handle_end(outcome),
                Event::Overdue => self.handle_overdue().await,
                Event::RestartWanted => {
                    self.handle_restart_wanted().await;
                    None
                }
                Event::Signal(asked) => self.handle_signal(asked).await,
                Event::Due(due) => self.handle_due(due).await,
                Event::Watchdog(event) => {
                    self.runner.handle_watchdog(event);
                    None
                }
                Event::Launched => {
                    let group = self.launching.take();
                    self.adopt_or_start(group).await
                }
            };
        }
        Ok(code.expect("it was waited for"))
    }

    /// Adopts the child of a previous agent, or starts the first one of this agent.
    async fn adopt_or_start(&mut self, predecessor: Option<ProcessGroup>) -> Option<u8> {
        self.child = predecessor.and_then(|group| self.runner.adopt(group));
        if self.child.is_some() {
            return None;
        }
        self.start_unreported = true;
        let reported = self.report_start().await;
        // A coordinator's order to drain also applies to the next process of the worker.
        if self.is_draining().await {
            tracing::info!("COMMAND is not started: the worker is draining");
            None
        } else if reported {
            self.start().await
        } else {
            None
        }
    }

    async fn next(&mut self) -> Event {
        let due = self.due;
        tokio::select! {
            event = next_of(&mut self.child) => Event::Child(event),
            outcome = self.driver.ended(), if self.ended.is_none() => Event::Ended(outcome),
            Ok(()) = self.overdue.changed() => Event::Overdue,
            Ok(()) = self.restart_wanted.changed() => Event::RestartWanted,
            asked = self.signals.next() => Event::Signal(asked),
            due = until_due(due) => {
                self.due = None;
                Event::Due(due)
            }
            event = self.runner.watchdog_event() => Event::Watchdog(event),
            () = until_launched(self.launching.as_ref()) => Event::Launched,
        }
    }

    /// Starts the child, unless the worker drains. Before that, the holder must have recorded the
    /// end of earlier jobs, the child's file must show the current lease, and a coordinator must
    /// have had time to answer whether another agent has the worker's name.
    /// Returns the agent's exit code if it must exit at once.
    async fn start(&mut self) -> Option<u8> {
        if self.start_unreported && !self.report_start().await {
            return None;
        }
        if self.shutdown_signals > 0 || self.is_draining().await {
            return None;
        }
        let wait = if self.driver.metrics().is_name_taken() {
            Some(NAME_POLL)
        } else if !self.name_is_checked() {
            Some(ANSWER_POLL)
        } else if !self.file_is_current().await {
            Some(FILE_POLL)
        } else {
            None
        };
        if let Some(wait) = wait {
            self.due = Some((Instant::now() + wait, Due::Restart));
            return None;
        }
        match self.spawn().await {
            Ok(child) => {
                self.note_start();
                (self.is_cut_off, self.is_ended_to_restart) = (false, false);
                self.child = Some(child);
                self.health.child_started();
            }
            Err(StartFailure::Signal(asked)) => {
                self.runner.abandon();
                return self.handle_signal(asked).await;
            }
            Err(StartFailure::NotStarted(NotStarted::NotYet(why))) => self.retry_start(&why),
            Err(StartFailure::NotStarted(NotStarted::Failed(error))) => {
                tracing::error!("{error:#}");
                self.failed = true;
                // Release what was granted in the meantime: the worker does not run.
                drain(&self.driver).await;
            }
        }
        None
    }

    /// Starts the child, and listens to signals meanwhile: a program or a watchdog that does not
    /// answer may take seconds. Signals to forward have no receiver before the program runs.
    async fn spawn(&mut self) -> Result<RunningChild, StartFailure> {
        let mut spawning = std::pin::pin!(self.runner.spawn());
        loop {
            tokio::select! {
                // A program that runs already may have asked for the signal: it is forwarded then.
                biased;
                spawned = &mut spawning => return spawned.map_err(StartFailure::NotStarted),
                asked = self.signals.next() => match asked {
                    SignalAction::Shutdown(_) if self.shutdown_signals == 0 => {
                        self.shutdown_signals = 1;
                        drain(&self.driver).await;
                    }
                    SignalAction::Shutdown(_) | SignalAction::Quit(_) => {
                        return Err(StartFailure::Signal(asked));
                    }
                    SignalAction::Forward(_) => {}
                },
            }
        }
    }

    /// Schedules another attempt after a failure of what must precede the start.
    fn retry_start(&mut self, why: &anyhow::Error) {
        let wait = backoff::RETRY.wait(self.start_failures);
        self.start_failures = self.start_failures.saturating_add(1);
        let problem = format!("COMMAND is not started yet: {why:#}");
        tracing::error!(again_in = %duration::format_short(wait), "{problem}");
        self.driver.metrics().set_child_problem(Some(problem));
        self.due = Some((Instant::now() + wait, Due::Restart));
    }

    fn note_start(&mut self) {
        self.start_failures = 0;
        self.driver.metrics().set_child_problem(None);
    }

    /// Whether a coordinator has answered, cannot be reached, or has had its time.
    fn name_is_checked(&self) -> bool {
        self.driver.metrics().answered.load(Relaxed) || self.since.elapsed() >= ANSWER_WAIT_MAX
    }

    /// Whether the file that the child reads, if any, shows the current lease: a stale file could
    /// name streams that another worker owns by now.
    async fn file_is_current(&self) -> bool {
        if !self.runner.reads_file() {
            return true;
        }
        let lease = self.driver.peek().await;
        let shown = self.driver.metrics().file_shows.load(Relaxed);
        lease.is_ok_and(|lease| shown >= lease.version)
    }

    /// Reports to the holder that the jobs of all earlier processes have ended. Returns whether
    /// that is recorded; until then they count as running, and the report is repeated.
    async fn report_start(&mut self) -> bool {
        match self.driver.report_no_jobs().await {
            Ok(()) => {
                self.start_unreported = false;
                self.note_start();
            }
            Err(why) => {
                self.retry_start(&anyhow!(why).context("cannot record the start of COMMAND"));
            }
        }
        !self.start_unreported
    }

    /// The worker runs as long as any process of the child's group does: it keeps its jobs, and no
    /// other one starts.
    async fn handle_leader_exit(&mut self, exit: Exit) -> Option<u8> {
        self.runner.note_leader_exit();
        self.remember_exit(exit).await;
        let (code, group) = (exit.0, self.child.as_ref().map(RunningChild::group_id));
        if self.leaves_rest() {
            return Some(self.code());
        }
        tracing::warn!(
            code,
            group,
            "the first process of COMMAND has exited, and a process that it started still runs: \
             the worker counts as running until this process group is empty"
        );
        None
    }

    /// Whether the agent has done its work and leaves without the rest of the child's group, which
    /// is not its to end. The record stays, so that no successor starts a second worker.
    fn leaves_rest(&self) -> bool {
        let is_its_own = self.runner.spec().signal == ChildSignal::Group;
        let done = self.ended.is_some() || self.is_cut_off || self.shutdown_signals > 1;
        !is_its_own && done && self.child.as_ref().is_some_and(RunningChild::has_lost_leader)
    }

    async fn handle_exit(&mut self, exit: Exit) -> Option<u8> {
        let ran = self.child.take().map_or(Duration::ZERO, |child| child.ran());
        self.runner.note_exit();
        self.due = None;
        let (draining, jobs) = self.remember_exit(exit).await;
        log_exit(exit, ran, draining, jobs);
        self.start_unreported = true;
        self.report_start().await;
        if self.shutdown_signals > 1 || self.ended.is_some() {
            return Some(self.code());
        }
        let again = match self.runner.spec().restart {
            Restart::Always => true,
            Restart::OnFailure => exit != Exit(0),
            Restart::Never => false,
        } || self.is_ended_to_restart;
        if draining || !again {
            drain(&self.driver).await;
            return None;
        }
        if !self.is_ended_to_restart {
            self.health.child_exited(exit, ran);
        }
        self.restarts = if ran >= backoff::RAN_WELL { 0 } else { self.restarts.saturating_add(1) };
        let wait = backoff::RESTART.wait(self.restarts);
        tracing::info!(wait = %duration::format_short(wait), "the child restarts");
        self.due = Some((Instant::now() + wait, Due::Restart));
        None
    }

    /// Remembers how the child exited; returns whether its worker drained, and how many jobs it
    /// ran. The drain may come from a previous agent: it ends with the adopted child.
    async fn remember_exit(&mut self, exit: Exit) -> (bool, u32) {
        self.last_exit = Some(exit);
        let (drains, jobs) = self.drain_state().await;
        let draining = self.shutdown_signals > 0 || drains;
        self.is_drained = draining && jobs == 0;
        (draining, jobs)
    }

    /// The drain has ended, or a newer agent has taken over: end the child, then the agent.
    fn handle_end(&mut self, outcome: Result<Outcome, DriverStopped>) -> Option<u8> {
        self.ended = Some(outcome);
        self.end_launcher();
        if self.child.is_none() || outcome.is_err() || self.leaves_rest() {
            return Some(self.code());
        }
        self.end_child();
        None
    }

    /// The drain's deadline has passed: ends the child. The agent reports its jobs until it has
    /// ended, and no jobs after that, or if it was never started.
    async fn handle_overdue(&mut self) -> Option<u8> {
        self.is_cut_off = true;
        self.end_launcher();
        if self.leaves_rest() {
            return Some(self.code());
        }
        if self.child.is_some() {
            self.end_child();
        } else if self.launching.is_none() {
            self.start_unreported = true;
            self.report_start().await;
        }
        None
    }

    /// The child fails its check: ends it, if it is to restart.
    async fn handle_restart_wanted(&mut self) {
        let restarts = self.runner.spec().restart != Restart::Never;
        let ends = self.is_ended_to_restart || self.ended.is_some() || self.shutdown_signals > 0;
        if !restarts || ends || self.child.is_none() || self.is_draining().await {
            return;
        }
        let why = self.driver.metrics().failure();
        tracing::warn!(why, "COMMAND fails, and --restart is set: it is ended and restarts");
        self.is_ended_to_restart = true;
        self.end_child();
    }

    /// Ends the child, unless a second signal has ended it.
    fn end_child(&mut self) {
        if self.shutdown_signals < 2 {
            self.runner.end(Signal::TERM);
            self.due = Some((Instant::now() + self.runner.spec().grace, Due::Grace));
        }
    }

    /// Ends the previous agent's launcher, which runs no program yet. If it is stopped, it ends
    /// when it continues.
    fn end_launcher(&self) {
        self.launching.iter().for_each(|group| group.signal(Signal::TERM));
    }

    async fn handle_signal(&mut self, asked: SignalAction) -> Option<u8> {
        match asked {
            SignalAction::Forward(signal) => self.runner.forward(signal),
            SignalAction::Shutdown(_) if self.shutdown_signals == 0 => {
                self.shutdown_signals = 1;
                drain(&self.driver).await;
            }
            SignalAction::Shutdown(signal) | SignalAction::Quit(signal) => {
                let hurried = self.shutdown_signals > 1;
                self.shutdown_signals = 2;
                self.runner.end(signal);
                self.end_launcher();
                if self.child.is_none() || hurried || self.leaves_rest() {
                    return Some(exit_code(signal));
                }
                tracing::warn!(
                    signal = signal.as_raw(),
                    "second signal: the agent and its child exit now"
                );
                let leave = Instant::now() + self.runner.spec().grace;
                self.due = Some((leave, Due::Leave(signal)));
            }
        }
        None
    }

    async fn handle_due(&mut self, due: Due) -> Option<u8> {
        match due {
            Due::Restart => return self.start().await,
            Due::Grace if self.runner.spec().kill => {
                tracing::warn!(
                    "the child has not exited after SIGTERM: --child-kill is set, so it gets \
                     SIGKILL"
                );
                self.runner.end(Signal::KILL);
            }
            Due::Grace => {
                tracing::warn!(
                    "the child has not exited after SIGTERM: its jobs continue, and the agent waits"
                );
                self.due = Some((Instant::now() + REMIND, Due::Grace));
            }
            Due::Leave(signal) => {
                tracing::error!("the child has not exited: the agent exits without it");
                return Some(exit_code(signal));
            }
        }
        None
    }

    async fn is_draining(&self) -> bool {
        self.drain_state().await.0
    }

    /// Whether the worker drains, and how many jobs of it run.
    async fn drain_state(&self) -> (bool, u32) {
        let lease = self.driver.peek().await;
        lease.map_or((false, 0), |lease| (lease.draining, lease.pool.running))
    }

    /// The child's code, unless the agent itself has failed, or SIGTERM ended the child after a
    /// drain that had ended all jobs.
    fn code(&self) -> u8 {
        if self.failed {
            return 1;
        }
        let terminated = Exit(exit_code(Signal::TERM));
        let own = self.ended.map_or(0, |ended| own_code(ended, self.drain_ordered));
        match (self.ended, self.last_exit) {
            (Some(Ok(Outcome::Superseded) | Err(DriverStopped)), _) | (_, None) => own,
            (Some(Ok(Outcome::Drained { .. })), Some(exit))
                if exit == terminated && self.is_drained && self.shutdown_signals < 2 =>
            {
                own
            }
            (_, Some(Exit(code))) => code,
        }
    }
}

fn log_exit(exit: Exit, ran: Duration, draining: bool, jobs: u32) {
    let (code, ran) = (exit.0, duration::format_short(ran));
    match (jobs, draining || exit == Exit(0)) {
        (0, true) => tracing::info!(code, %ran, "the child has exited"),
        (0, false) => tracing::warn!(code, %ran, "the child has exited"),
        (jobs, _) => tracing::warn!(
            code,
            %ran,
            jobs,
            "the child has exited, and the jobs that it ran have ended with it"
        ),
    }
}
