//! Workers that the agent polls: it asks how many jobs run, sets how many may run, and
//! reports both.
//!
//! Invariant: a larger size is journalled before the worker gets it, and a smaller one
//! counts only once the worker, polled after it got it, has shown that it keeps to it. A worker
//! that does not answer keeps the counts that it had.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::bail;
use leasehold_agent_core::Lease;
use tokio::sync::watch;
use tokio::time::Instant;

use super::sizing::{Adjustment, Observation, Target};
use crate::clock;
use crate::driver::{DriverHandle, DriverRequest, DriverStopped, Outcome};
use crate::log_limiter::LogLimiter;
use crate::refusal;

/// While something is to change the worker is asked so much more often.
const CHANGE_POLL_FACTOR: u32 = 5;
/// How long after an answered order the worker surely shows what it has done.
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

/// The agent's side of one worker that counts for itself.
#[derive(Debug)]
pub(crate) struct PolledWorker<W> {
    driver: DriverHandle,
    worker: W,
    interval: Duration,
    log_limiter: LogLimiter,
    /// It has failed so often since it last answered.
    failures: u32,
    /// It has answered.
    reachable: bool,
}

/// When to look again.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// While all is as it should be.
    Idle,
    /// After a failure.
    Retry,
    /// While something is to change.
    Soon,
    /// After an order.
    Settled,
}

impl<W: Polled> PolledWorker<W> {
    /// The agent's side of a worker of this kind, which is asked at this interval.
    pub(crate) fn new(worker: W, interval: Duration, driver: DriverHandle) -> Self {
        Self {
            driver,
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

    /// One look at the worker, what follows from it, and the wait for the next.
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
        let observation = self.worker.poll().await?;
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
        let next = match self.worker.adjustment(target) {
            Adjustment::Nothing => Next::Idle,
            Adjustment::PollSoon => Next::Soon,
            Adjustment::Order { size, grows } => {
                if grows
                    && self.driver.ask(|reply| DriverRequest::Size { reply }).await? != target.size
                {
                    // It has changed meanwhile, or could not be recorded.
                    return Ok((Next::Soon, target));
                }
                self.worker.order(size, target).await?;
                Next::Settled
            }
        };
        Ok((next, target))
    }

    async fn report(&self, running: u32, obeyed: u32) -> anyhow::Result<()> {
        let reported =
            self.driver.ask(|reply| DriverRequest::Count { running, obeyed, reply }).await?;
        reported.or_else(|refused| {
            bail!("cannot report its {running} jobs: {}", refusal::message(&refused))
        })
    }

    async fn target(&self) -> Result<Target, DriverStopped> {
        let lease: Lease = self.driver.ask(|reply| DriverRequest::Peek { reply }).await?;
        Ok(Target { size: lease.pool.size, draining: lease.draining })
    }

    /// Waits for the next look: a renewal, and the agent's own report, are no reason for one.
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
        if let Some(suppressed) = self.log_limiter.admit("worker", &why, clock::now()) {
            tracing::warn!(
                why,
                suppressed,
                "cannot reach the worker; its last counts stay in force"
            );
        }
        self.driver.metrics().set_worker_problem(Some(why));
    }
}
