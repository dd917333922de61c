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
use self::probe::Prober;
use crate::backoff;
use crate::clock;
use crate::config::Check;
use crate::driver::{DriverHandle, DriverRequest};
use crate::reaper::{Exit, Reaper};

/// The health of the worker: every part of the agent that hears of the worker notes it here.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHealth(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    judges: Mutex<Judges>,
    /// The verdict may have changed.
    changed: Notify,
    /// How often the worker must be restarted since it fails.
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
}

impl Judges {
    /// Why the worker fails; none if it does not.
    fn failure(&self, now: Moment) -> Option<String> {
        let probe = || self.probe.as_ref()?.failure();
        let polls = || self.polls.failure(now);
        self.starts.failure(now).or_else(probe).or_else(|| self.calls.failure(now)).or_else(polls)
    }

    /// When the verdict changes by time alone.
    fn next_change(&self, now: Moment) -> Option<Moment> {
        let changes = [
            self.starts.next_change(now),
            self.calls.next_change(now),
            self.polls.next_change(now),
        ];
        changes.into_iter().flatten().min()
    }
}

impl WorkerHealth {
    pub(crate) fn new(check: &Check, now: Moment) -> Self {
        let judges = Judges {
            probe: check.probe.as_ref().map(|probe| ProbeJudge::new(probe, now)),
            calls: CallJudge::new(check.call_timeout, now),
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
        let now = clock::now();
        let failed = self.judges().calls.called(now);
        if failed {
            self.0.changed.notify_one();
        }
    }

    /// The worker has called, and calls again within this time; none if it promises nothing.
    pub(crate) fn promised(&self, within: Option<Duration>) {
        self.judges().calls.promised(within, clock::now());
        self.0.changed.notify_one();
    }

    /// The worker has reported a start with this id; the same one again is none.
    pub(crate) fn reported_start(&self, start: &str) {
        let mut judges = self.judges();
        if judges.last_start.as_deref() != Some(start) {
            judges.last_start = Some(start.to_owned());
            drop(judges);
            self.started();
        }
    }

    fn started(&self) {
        let now = clock::now();
        let mut judges = self.judges();
        judges.probe.iter_mut().for_each(|probe| probe.started(now));
        judges.calls.started(now);
        drop(judges);
        self.0.changed.notify_one();
    }

    /// The agent has started COMMAND.
    pub(crate) fn child_started(&self) {
        self.judges().starts.started(clock::now());
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
        let failed = self.judges().polls.answered(clock::now());
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
        while driver.is_open() {
            let asked = tokio::time::Instant::now();
            let answer = prober.ask().await;
            let now = clock::now();
            let restart = match (answer, self.judges().probe.as_mut()) {
                (_, None) => false,
                (Ok(()), Some(judge)) => {
                    judge.passed();
                    false
                }
                (Err(why), Some(judge)) => {
                    tracing::debug!(why, "a check of the worker has failed");
                    judge.failed(why, now)
                }
            };
            if restart {
                self.0.restarts.send_modify(|restarts| *restarts += 1);
            }
            self.0.changed.notify_one();
            tokio::time::sleep_until(asked + prober.interval()).await;
        }
    }

    /// Tells the driver whenever the verdict changes.
    async fn report(self, driver: DriverHandle) {
        let mut reported = None;
        loop {
            let now = clock::now();
            let (verdict, next) = {
                let mut judges = self.judges();
                judges.calls.forgive_if_late(now);
                let failure = judges.failure(now);
                // A worker that failed under an earlier agent fails until it has passed.
                let undecided = judges.probe.as_ref().is_some_and(ProbeJudge::is_undecided);
                let verdict = (failure.is_some() || !undecided).then_some(failure);
                (verdict, judges.next_change(now))
            };
            let mut next = next.map(|at| at.since(now));
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

    fn judges(&self) -> MutexGuard<'_, Judges> {
        self.0.judges.lock().expect("the lock is not poisoned")
    }
}
