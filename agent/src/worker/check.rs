//! Whether the worker lives: what its check, its calls and its process say, and the report to the
//! driver.
//!
//! Invariant: a worker counts as failing only because of something that it did not do in time,
//! never because the agent was late.

mod judge;
mod probe;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_types::Moment;
use leasehold_types::message::WorkerFailure;
use tokio::sync::{Notify, watch};

use self::judge::{CallJudge, PollJudge, ProbeJudge, StartJudge};
use self::probe::{ProbeError, Prober};
use crate::backoff;
use crate::clock;
use crate::config::Check;
use crate::driver::{DriverHandle, DriverRequest};
use crate::log_limiter::LogLimiter;
use crate::reaper::{Exit, Reaper};

/// How long a call that came in time may wait to be read.
const CALL_GRACE: Duration = Duration::from_millis(100);
/// How often the restart of a worker that breaks its promise is asked for.
const WANT_AGAIN: Duration = Duration::from_secs(10);

/// What an earlier agent has found out about the worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HealthBefore {
    /// It failed.
    pub(crate) fails: bool,
    /// What it promised of its calls.
    pub(crate) promised: Option<Duration>,
}

/// The health of the worker: every part of the agent that hears of the worker notes it here.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHealth(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    judges: Mutex<Judges>,
    /// The verdict may have changed.
    changed: Notify,
    /// Counts how often it was said that the worker is to be restarted.
    restarts: watch::Sender<u64>,
}

/// What is known, by its source.
#[derive(Debug)]
struct Judges {
    /// None if the agent asks the worker nothing.
    probe: Option<ProbeJudge>,
    calls: CallJudge,
    polls: PollJudge,
    starts: StartJudge,
    /// The id of the worker's last reported start.
    last_start: Option<String>,
    /// The worker failed under an earlier agent, and has shown no sign of life since.
    failed_before: bool,
}

impl Judges {
    /// Why the worker fails; none if it does not.
    fn failure(&self, now: Moment) -> Option<String> {
        let probe = || self.probe.as_ref()?.failure();
        let (calls, polls) = (|| self.calls.failure(), || self.polls.failure());
        self.starts.failure(now).or_else(probe).or_else(calls).or_else(polls)
    }

    /// When the verdict changes by time alone.
    fn next_change(&self, now: Moment) -> Option<Moment> {
        [self.starts.next_change(now), self.calls.next_change()].into_iter().flatten().min()
    }
}

impl WorkerHealth {
    /// `before`: what an earlier agent has found out.
    pub(crate) fn new(check: &Check, before: HealthBefore, now: Moment) -> Self {
        let HealthBefore { fails, promised } = before;
        let judges = Judges {
            probe: check.probe.as_ref().map(|probe| ProbeJudge::new(probe, now)),
            calls: CallJudge::new(check.call_timeout, promised, now),
            failed_before: fails,
            polls: PollJudge::default(),
            starts: StartJudge::default(),
            last_start: None,
        };
        Self(Arc::new(Shared {
            judges: Mutex::new(judges),
            changed: Notify::new(),
            restarts: watch::Sender::new(0),
        }))
    }

    /// The worker has called the worker API.
    pub(crate) fn called(&self) {
        self.waits(Duration::ZERO);
    }

    /// The worker has called, and the agent may let it wait for this long.
    pub(crate) fn waits(&self, wait: Duration) {
        let now = clock::now();
        let mut judges = self.judges();
        let failed = judges.calls.called(wait, now) | std::mem::take(&mut judges.failed_before);
        drop(judges);
        if failed {
            self.0.changed.notify_one();
        }
    }

    /// The worker has called, and calls again within this time; none if it promises nothing.
    pub(crate) fn promised(&self, within: Option<Duration>) {
        let mut judges = self.judges();
        judges.calls.promised(within, clock::now());
        judges.failed_before = false;
        drop(judges);
        self.0.changed.notify_one();
    }

    /// The worker has reported a start with this id. A repeated id counts as a call only.
    pub(crate) fn reported_start(&self, start: &str) {
        let before = self.judges().last_start.replace(start.to_owned());
        if before.as_deref() != Some(start) {
            self.started();
        }
        self.called();
    }

    fn started(&self) {
        let now = clock::now();
        let mut judges = self.judges();
        judges.probe.iter_mut().for_each(|probe| probe.started(now));
        judges.calls.started(now);
        judges.polls.started();
        drop(judges);
        self.0.changed.notify_one();
    }

    /// The agent has started COMMAND.
    pub(crate) fn child_started(&self) {
        let mut judges = self.judges();
        judges.starts.started(clock::now());
        judges.failed_before = false;
        drop(judges);
        self.started();
    }

    /// COMMAND has exited after this time, and restarts.
    pub(crate) fn child_exited(&self, exit: Exit, ran: Duration) {
        self.judges().starts.exited(exit, ran);
        self.0.changed.notify_one();
    }

    /// The worker, which the agent polls for its jobs, has answered. Returns whether it failed
    /// before.
    pub(crate) fn answered(&self) -> bool {
        let mut judges = self.judges();
        let failed = judges.polls.answered() | std::mem::take(&mut judges.failed_before);
        drop(judges);
        self.0.changed.notify_one();
        failed
    }

    /// The worker, which the agent polls for its jobs, has not answered.
    pub(crate) fn unanswered(&self, why: &str) {
        self.judges().polls.unanswered(why, clock::now());
        self.0.changed.notify_one();
    }

    /// Changes whenever the worker is to be restarted.
    pub(crate) fn restarts(&self) -> watch::Receiver<u64> {
        self.0.restarts.subscribe()
    }

    /// Checks the worker, and reports to the driver until that has stopped.
    pub(crate) async fn run(self, check: Check, driver: DriverHandle, reaper: Reaper) {
        if let Some(probe) = check.probe {
            let prober = Prober::new(probe, reaper);
            tokio::join!(self.clone().probe(prober, driver.clone()), self.report(driver));
        } else {
            self.report(driver).await;
        }
    }

    async fn probe(self, prober: Prober, driver: DriverHandle) {
        let mut log_limiter = LogLimiter::default();
        while driver.is_open() {
            let asked = tokio::time::Instant::now();
            match prober.ask().await {
                Ok(()) => {
                    let mut judges = self.judges();
                    judges.probe.iter_mut().for_each(ProbeJudge::passed);
                    judges.failed_before = false;
                }
                Err(ProbeError::Failed(why)) => {
                    tracing::debug!(why, "a check of the worker has failed");
                    if self.failed(why) {
                        self.want_restart();
                    }
                }
                Err(ProbeError::CannotRun(why)) => {
                    if log_limiter.admit("check", &why, clock::now()).is_some() {
                        tracing::warn!(
                            why,
                            "the check itself cannot run, which counts as a failed check: correct \
                             the command, or give its path (the agent's PATH applies)"
                        );
                    }
                    // Another process of the worker would be checked no better.
                    self.failed(why);
                }
                Err(ProbeError::NotAsked(why)) => {
                    tracing::warn!(why, "cannot check the worker: nothing follows from that");
                }
            }
            self.0.changed.notify_one();
            tokio::time::sleep_until(asked + prober.interval()).await;
        }
    }

    /// A check has failed; returns whether the worker fails.
    fn failed(&self, why: String) -> bool {
        let now = clock::now();
        self.judges().probe.as_mut().is_some_and(|judge| judge.failed(why, now))
    }

    /// Tells the driver whenever the verdict changes.
    async fn report(self, driver: DriverHandle) {
        let mut reported = None;
        loop {
            if self.judges().calls.is_due(clock::now()) {
                // A call may have come in time and wait to be read.
                tokio::time::sleep(CALL_GRACE).await;
                self.judges().calls.judge(clock::now());
            }
            let now = clock::now();
            let (verdict, next, breaks_promise) = {
                let judges = self.judges();
                let failure = judges.failure(now);
                // A worker that failed under an earlier agent fails until it shows that it lives.
                let undecided = judges.probe.as_ref().is_some_and(ProbeJudge::is_undecided);
                let is_well = !undecided && !judges.failed_before;
                let verdict = (failure.is_some() || is_well).then_some(failure);
                (verdict, judges.next_change(now), judges.calls.is_failing())
            };
            let mut next = next.map(|at| at.since(now));
            if breaks_promise {
                self.want_restart();
                next = Some(next.map_or(WANT_AGAIN, |next| next.min(WANT_AGAIN)));
            }
            if let Some(failure) = verdict
                && reported.as_ref() != Some(&failure)
            {
                let told = failure.as_deref().and_then(WorkerFailure::new);
                let asked = driver.ask(|reply| DriverRequest::Failure { failure: told, reply });
                match asked.await {
                    Err(_) => return,
                    Ok(true) => reported = Some(failure),
                    // It cannot be recorded now.
                    Ok(false) => next = Some(backoff::RETRY.wait(0)),
                }
            }
            let wait = async {
                match next {
                    Some(next) => tokio::time::sleep(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.0.changed.notified() => {}
                _ = driver.superseded() => return,
            }
        }
    }

    /// The worker's present process fails. Said again and again: it may not be possible at once.
    fn want_restart(&self) {
        self.0.restarts.send_modify(|wanted| *wanted += 1);
    }

    fn judges(&self) -> MutexGuard<'_, Judges> {
        self.0.judges.lock().expect("the lock is not poisoned")
    }
}
