//! An agent whose worker is its child. SIGTERM means: drain first, then let the child end.
//!
//! Invariant: an end of the child is told to the holder before another child is started, so that
//! no job of the one before counts as running and none that runs goes uncounted.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use leasehold_types::duration;
use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{drain, own_code};
use crate::backoff;
use crate::child::{NotStarted, Nursery};
use crate::config::Restart;
use crate::driver::{Command, Door, Gone, Outcome};
use crate::init::Exit;
use crate::signals::{Asked, Signals, exit_code};

/// How often it is looked whether the file that the child reads is true.
const FILE_LOOK: Duration = Duration::from_millis(20);
/// How often it is looked whether another agent still has the worker's name.
const NAME_LOOK: Duration = Duration::from_millis(500);
/// How often it is looked whether a coordinator has answered: the worker waits for that.
const ASK_LOOK: Duration = Duration::from_millis(2);
/// How long a first start waits for a coordinator's word whether another agent has the name.
const ASK_MAX: Duration = Duration::from_secs(2);
/// How often the log is told that a child does not end.
const REMIND: Duration = Duration::from_secs(30);

/// The agent and its child.
pub(super) struct Supervised {
    door: Door,
    nursery: Nursery,
    signals: Signals,
    child: Option<Running>,
    last_exit: Option<Exit>,
    /// SIGTERM or SIGINT came so often.
    asked: u32,
    /// How the agent's own work ended.
    ended: Option<Result<Outcome, Gone>>,
    /// When to look after the child next: it should have ended, or should be started.
    due: Option<(Instant, Due)>,
    restarts: u32,
    /// The holder does not know yet that the jobs of every process before are over.
    untold: bool,
    /// What must be written before a start could not be, so often in a row.
    unwritten: u32,
    /// When the agent began.
    since: Instant,
    /// An order to drain stands since an earlier start.
    stands: bool,
    /// COMMAND could not be started, and never will be.
    failed: bool,
}

struct Running {
    exit: oneshot::Receiver<Exit>,
    since: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    /// Start the child again.
    Restart,
    /// The child was sent SIGTERM at the end of a drain.
    Grace,
    /// The agent was told twice to end: it does not wait for the child any longer.
    Leave(Signal),
}

enum Event {
    Exited(Exit),
    Ended(Result<Outcome, Gone>),
    Asked(Asked),
    Due(Due),
    GuardLost,
}

impl Supervised {
    pub(super) fn new(door: Door, nursery: Nursery, signals: Signals, stands: bool) -> Self {
        Self {
            door,
            nursery,
            signals,
            child: None,
            last_exit: None,
            asked: 0,
            ended: None,
            due: None,
            restarts: 0,
            untold: false,
            unwritten: 0,
            since: Instant::now(),
            stands,
            failed: false,
        }
    }

    /// Runs until the child has ended for good; its exit code.
    pub(super) async fn run(mut self) -> anyhow::Result<u8> {
        match self.nursery.adopt().await? {
            Some(process) => {
                self.child = Some(Running { exit: process.exit, since: Instant::now() });
            }
            None => {
                self.untold = true;
                let told = self.tell_start().await;
                // What a coordinator ordered outlives the worker that it was ordered for.
                if self.is_draining().await {
                    tracing::info!("COMMAND is not started: the drain goes on");
                } else if told {
                    self.start().await;
                }
            }
        }
        loop {
            let code = match self.next().await {
                Event::Exited(exit) => self.handle_exit(exit).await,
                Event::Ended(outcome) => self.handle_end(outcome),
                Event::Asked(asked) => self.handle_signal(asked).await,
                Event::Due(due) => self.handle_due(due).await,
                Event::GuardLost => {
                    self.nursery.guard_anew().await;
                    None
                }
            };
            if let Some(code) = code {
                return Ok(code);
            }
        }
    }

    async fn next(&mut self) -> Event {
        let due = self.due;
        tokio::select! {
            exit = exited(&mut self.child) => Event::Exited(exit),
            outcome = self.door.ended(), if self.ended.is_none() => Event::Ended(outcome),
            asked = self.signals.next() => Event::Asked(asked),
            due = pass(due) => {
                self.due = None;
                Event::Due(due)
            }
            () = self.nursery.guard_lost() => Event::GuardLost,
        }
    }

    /// Starts the child, unless the worker drains: once what ran before it is over for the holder,
    /// too, and what it will read is true. Not while another agent has the worker's name, or that
    /// has not been asked yet.
    async fn start(&mut self) {
        if self.untold && !self.tell_start().await {
            return;
        }
        if self.asked > 0 || self.is_draining().await {
            return;
        }
        let wait = match () {
            () if self.door.metrics().is_name_taken() => Some(NAME_LOOK),
            () if !self.has_asked() => Some(ASK_LOOK),
            () if !self.file_is_true().await => Some(FILE_LOOK),
            () => None,
        };
        if let Some(wait) = wait {
            self.due = Some((Instant::now() + wait, Due::Restart));
            return;
        }
        match self.nursery.spawn().await {
            Ok(process) => {
                self.note_written();
                self.child = Some(Running { exit: process.exit, since: Instant::now() });
            }
            Err(NotStarted::Unwritten(why)) => self.wait_to_write(&format!("{why:#}")),
            Err(NotStarted::Failed(error)) => {
                tracing::error!("{error:#}");
                self.failed = true;
                // What was granted meanwhile goes back: nothing of the worker runs.
                drain(&self.door).await;
            }
        }
    }

    /// What must be written before COMMAND is started could not be: that is tried again.
    fn wait_to_write(&mut self, why: &str) {
        let wait = backoff::RETRY.wait(self.unwritten);
        self.unwritten = self.unwritten.saturating_add(1);
        let problem = format!("COMMAND is not started before its start is written down: {why}");
        tracing::error!(again_in = %duration::format_short(wait), "{problem}");
        self.door.metrics().set_child_problem(Some(problem));
        self.due = Some((Instant::now() + wait, Due::Restart));
    }

    fn note_written(&mut self) {
        self.unwritten = 0;
        self.door.metrics().set_child_problem(None);
    }

    /// Whether a coordinator has answered, cannot be reached, or has had its time.
    fn has_asked(&self) -> bool {
        self.door.metrics().answered.load(Relaxed) || self.since.elapsed() >= ASK_MAX
    }

    /// Whether the file that the child reads, if it does, shows the lease as it is: one that names
    /// streams that went back would make a second owner of it.
    async fn file_is_true(&self) -> bool {
        if !self.nursery.reads_file() {
            return true;
        }
        let lease = self.door.ask(|reply| Command::Peek { reply }).await;
        let shown = self.door.metrics().file_shows.load(Relaxed);
        lease.is_ok_and(|lease| shown >= lease.version)
    }

    /// Tells the holder that the jobs of every process before are over; whether it knows it now.
    /// Until then they count, and it is told again.
    async fn tell_start(&mut self) -> bool {
        match self.door.start_anew().await {
            Ok(()) => {
                self.untold = false;
                self.note_written();
            }
            Err(why) => self.wait_to_write(&why),
        }
        !self.untold
    }

    async fn handle_exit(&mut self, exit: Exit) -> Option<u8> {
        let ran = self.child.take().map_or(Duration::ZERO, |child| child.since.elapsed());
        self.nursery.bury();
        self.last_exit = Some(exit);
        self.due = None;
        tracing::info!(code = exit.0, ran = %duration::format_short(ran), "the child has ended");
        // A drain that an agent before this one was asked for is over once its child is.
        let draining = self.asked > 0 || self.is_draining().await;
        self.untold = true;
        self.tell_start().await;
        if self.asked > 1 || self.ended.is_some() {
            return Some(self.code());
        }
        let again = match self.nursery.spec().restart {
            Restart::Always => true,
            Restart::OnFailure => exit != Exit(0),
            Restart::Never => false,
        };
        if draining || !again {
            drain(&self.door).await;
            return None;
        }
        self.restarts = if ran >= backoff::RAN_WELL { 0 } else { self.restarts.saturating_add(1) };
        let wait = backoff::RESTART.wait(self.restarts);
        tracing::info!(wait = %duration::format_short(wait), "the child is started again");
        self.due = Some((Instant::now() + wait, Due::Restart));
        None
    }

    /// The drain is over, or a newer agent has taken over: the child ends, then the agent.
    fn handle_end(&mut self, outcome: Result<Outcome, Gone>) -> Option<u8> {
        self.ended = Some(outcome);
        if self.child.is_none() || outcome.is_err() {
            return Some(self.code());
        }
        if self.asked < 2 {
            self.nursery.end(Signal::TERM);
            self.due = Some((Instant::now() + self.nursery.spec().grace, Due::Grace));
        }
        None
    }

    async fn handle_signal(&mut self, asked: Asked) -> Option<u8> {
        match asked {
            Asked::PassOn(signal) => self.nursery.pid().send(signal),
            Asked::End(_) if self.asked == 0 => {
                self.asked = 1;
                drain(&self.door).await;
            }
            Asked::End(signal) | Asked::EndNow(signal) => {
                let hurried = self.asked > 1;
                self.asked = 2;
                self.nursery.end(signal);
                if self.child.is_none() || hurried {
                    return Some(exit_code(signal));
                }
                tracing::warn!(signal = signal.as_raw(), "told to end at once; so is the child");
                let leave = Instant::now() + self.nursery.spec().grace;
                self.due = Some((leave, Due::Leave(signal)));
            }
        }
        None
    }

    async fn handle_due(&mut self, due: Due) -> Option<u8> {
        match due {
            Due::Restart => self.start().await,
            Due::Grace if self.nursery.spec().kill => {
                tracing::warn!("the child has not ended on SIGTERM: SIGKILL, as --child-kill says");
                self.nursery.end(Signal::KILL);
            }
            Due::Grace => {
                tracing::warn!(
                    "the child has not ended on SIGTERM; its jobs run on, the agent waits"
                );
                self.due = Some((Instant::now() + REMIND, Due::Grace));
            }
            Due::Leave(signal) => {
                tracing::error!("the child has not ended; the agent leaves it behind");
                return Some(exit_code(signal));
            }
        }
        None
    }

    async fn is_draining(&self) -> bool {
        let lease = self.door.ask(|reply| Command::Peek { reply }).await;
        lease.is_ok_and(|lease| lease.draining)
    }

    /// The child's code, unless the agent itself has failed.
    fn code(&self) -> u8 {
        if self.failed {
            return 1;
        }
        let own = self.ended.map_or(0, |ended| own_code(ended, self.stands));
        match (self.ended, self.last_exit) {
            (Some(Ok(Outcome::Superseded) | Err(Gone)), _) | (_, None) => own,
            (_, Some(Exit(code))) => code,
        }
    }
}

async fn exited(child: &mut Option<Running>) -> Exit {
    match child {
        None => std::future::pending().await,
        Some(child) => (&mut child.exit).await.expect("the reaper tells every end"),
    }
}

async fn pass(due: Option<(Instant, Due)>) -> Due {
    match due {
        None => std::future::pending().await,
        Some((at, due)) => {
            tokio::time::sleep_until(at).await;
            due
        }
    }
}
