//! Workers that the agent polls: it asks how many jobs run, sets how many may run, and reports
//! both.
//!
//! Invariant: a larger size is journalled before the worker gets it. A smaller size counts only
//! after a later poll shows that the worker respects it. A worker that does not answer keeps its
//! last counts.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::bail;
use tokio::sync::watch;
use tokio::time::Instant;

use super::check::WorkerHealth;
use super::sizing::{Adjustment, Observation, Target};
use crate::clock;
use crate::driver::{DriverHandle, DriverRequest, DriverStopped, Outcome};
use crate::log_limiter::{Admitted, LogLimiter};
use crate::refusal;

/// During a change the worker is polled this many times as often.
const CHANGE_POLL_FACTOR: u32 = 5;
/// The pause after an accepted order, until a poll shows its result.
const SETTLE: Duration = Duration::from_millis(100);

/// How one kind of worker is polled and sized. Each polled adapter implements it.
pub(crate) trait Polled: Send + Sync + 'static {
    /// Asks the worker for its state.
    fn poll(&mut self) -> impl Future<Output = anyhow::Result<Observation>> + Send;

    /// The order that the worker needs to reach `target`, if any.
    fn adjustment(&self, target: Target) -> Adjustment;

    /// Sends the order that [`Self::adjustment`] returned.
    fn order(
        &mut self,
        size: u32,
        target: Target,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// The least pause after this many failures in a row.
    fn retry_pause(&self, failures: u32) -> Duration {
        let _ = failures;
        Duration::ZERO
    }
}

/// Polls one worker, reports its counts, and sets its pool size.
#[derive(Debug)]
pub(crate) struct PolledWorker<W> {
    driver: DriverHandle,
    health: WorkerHealth,
    worker: W,
    interval: Duration,
    log_limiter: LogLimiter,
    /// Failures since the last answer.
    failures: u32,
    /// The last poll was answered.
    reachable: bool,
}

/// When to poll again.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// At the interval: the worker respects its target.
    Idle,
    /// After a failure.
    Retry,
    /// More often: the worker has not reached its target.
    Soon,
    /// After an order.
    Settled,
}

impl<W: Polled> PolledWorker<W> {
    /// Polls a worker at this interval.
    pub(crate) fn new(
        worker: W,
        interval: Duration,
        driver: DriverHandle,
        health: WorkerHealth,
    ) -> Self {
        Self {
            driver,
            health,
            worker,
            interval,
            log_limiter: LogLimiter::default(),
            failures: 0,
            reachable: false,
        }
    }

    /// Runs until the driver ends, and then sends a drained worker its last order.
    pub(crate) async fn run(mut self) {
        let mut changes = self.driver.changes();
        while self.turn(&mut changes).await.is_ok() {}
        if !matches!(self.driver.outcome(), Some(Outcome::Drained { .. })) {
            return;
        }
        let target = Target { size: 0, draining: true };
        if let Adjustment::Order { size, .. } = self.worker.adjustment(target)
            && let Err(error) = self.worker.order(size, target).await
        {
            tracing::warn!("cannot stop the drained worker: {error:#}");
        }
    }

    /// One poll, its consequences, and the wait for the next poll.
    async fn turn(&mut self, changes: &mut watch::Receiver<u64>) -> Result<(), DriverStopped> {
        changes.mark_unchanged();
        let (next, target) = match self.step().await {
            Ok(next) => next,
            Err(error) if error.is::<DriverStopped>() => return Err(DriverStopped),
            Err(error) => {
                self.note_failure(&error);
                (Next::Retry, self.target().await?)
            }
        };
        let pause = match next {
            Next::Idle => self.interval,
            Next::Retry => self.interval.max(self.worker.retry_pause(self.failures)),
            Next::Soon => self.interval / CHANGE_POLL_FACTOR,
            Next::Settled => SETTLE,
        };
        self.wait(changes, pause, target).await
    }

    /// Polls the worker, reports, and adjusts its size; returns when to poll again.
    async fn step(&mut self) -> anyhow::Result<(Next, Target)> {
        let observation = match self.worker.poll().await {
            Ok(observation) => observation,
            Err(error) => {
                self.health.unanswered(&format!("{error:#}"));
                return Err(error);
            }
        };
        let failed_before = self.health.answered();
        match observation {
            Observation::Working { running, limit } => self.report(running, limit).await?,
            Observation::Unsized => {}
            Observation::Ended => self.report(0, 0).await?,
        }
        let target = self.target().await?;
        if observation == Observation::Ended {
            self.driver.metrics().set_worker_problem(Some("its process has exited".into()));
            return Ok((Next::Soon, target));
        }
        self.note_success();
        if failed_before {
            // Until the coordinator has heard of it, its size is still that of one that fails.
            return Ok((Next::Settled, target));
        }
        let next = match self.worker.adjustment(target) {
            Adjustment::Nothing => Next::Idle,
            Adjustment::PollSoon => Next::Soon,
            Adjustment::Order { size, grows } => {
                if grows
                    && self.driver.ask(|reply| DriverRequest::Size { reply }).await? != target.size
                {
                    // The size has changed, or could not be recorded.
                    return Ok((Next::Soon, target));
                }
                self.worker.order(size, target).await?;
                Next::Settled
            }
        };
        Ok((next, target))
    }

    async fn report(&self, running: u32, in_effect: u32) -> anyhow::Result<()> {
        let reported = self
            .driver
            .ask(|reply| DriverRequest::ObservedCount { running, in_effect, reply })
            .await?;
        reported.or_else(|refused| {
            bail!("cannot report the worker's {running} jobs: {}", refusal::message(&refused))
        })
    }

    async fn target(&self) -> Result<Target, DriverStopped> {
        let lease = self.driver.peek().await?;
        Ok(Target { size: lease.pool.size, draining: lease.draining })
    }

    /// Waits for the next poll, or until the target changes. Renewals do not cause a poll.
    async fn wait(
        &self,
        changes: &mut watch::Receiver<u64>,
        pause: Duration,
        target: Target,
    ) -> Result<(), DriverStopped> {
        let end = Instant::now() + pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return Ok(()),
                changed = changes.changed() => {
                    changed.map_err(|_| DriverStopped)?;
                    if self.target().await? != target {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn note_success(&mut self) {
        self.failures = 0;
        if !std::mem::replace(&mut self.reachable, true) {
            tracing::info!("the worker answers");
        }
        self.driver.metrics().set_worker_problem(None);
    }

    fn note_failure(&mut self, error: &anyhow::Error) {
        self.reachable = false;
        self.failures = self.failures.saturating_add(1);
        let why = format!("{error:#}");
        self.driver.metrics().worker_failures.fetch_add(1, Relaxed);
        let admitted = self.log_limiter.admit("worker", &why, clock::now());
        if let Some(Admitted { suppressed }) = admitted {
            tracing::warn!(
                why,
                suppressed,
                "cannot reach the worker; its last counts stay in force"
            );
        }
        self.driver.metrics().set_worker_problem(Some(why));
    }
}
