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
use super::{command::CommandWorker, http::HttpWorker, travis::Travis};
use crate::backoff;
use crate::clock;
use crate::driver::{DriverHandle, DriverRequest, DriverStopped, Outcome};
use crate::log_limiter::LogLimiter;
use crate::refusal;

/// While something is to change the worker is asked so much more often.
const HASTE: u32 = 5;
/// How long after an answered order the worker surely shows what it has done.
const SETTLE: Duration = Duration::from_millis(100);

/// What a worker that reports counts is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A Travis worker.
    Travis(Travis),
    /// A worker with another HTTP interface.
    Http(HttpWorker),
    /// A worker that programs count and size.
    Command(CommandWorker),
}

/// The agent's side of one worker that counts for itself.
#[derive(Debug)]
pub(crate) struct PolledWorker {
    driver: DriverHandle,
    kind: Kind,
    interval: Duration,
    log_limiter: LogLimiter,
    /// It has failed so often since it last answered.
    failures: u32,
    /// It has answered.
    well: bool,
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

impl Kind {
    async fn look(&mut self) -> anyhow::Result<Observation> {
        match self {
            Self::Travis(travis) => travis.look().await,
            Self::Http(http) => http.look().await,
            Self::Command(command) => command.look().await,
        }
    }

    fn adjustment(&self, target: Target) -> Adjustment {
        match self {
            Self::Travis(travis) => travis.adjustment(target),
            Self::Http(http) => http.adjustment(target),
            Self::Command(command) => command.adjustment(target),
        }
    }

    async fn order(&mut self, size: u32, target: Target) -> anyhow::Result<()> {
        match self {
            Self::Travis(travis) => travis.order(size, target).await,
            Self::Http(http) => http.order(size, target).await,
            Self::Command(command) => command.order(size, target).await,
        }
    }
}

impl PolledWorker {
    /// The agent's side of a worker of this kind, which is asked at this interval.
    pub(crate) fn new(kind: Kind, interval: Duration, driver: DriverHandle) -> Self {
        Self {
            driver,
            kind,
            interval,
            log_limiter: LogLimiter::default(),
            failures: 0,
            well: false,
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
        if let Adjustment::Order { size, .. } = self.kind.adjustment(target)
            && let Err(error) = self.kind.order(size, target).await
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
                self.silent(&error);
                (Next::Retry, self.target().await?)
            }
        };
        let pause = match next {
            Next::Idle => self.interval,
            Next::Retry => self.interval.max(self.retry()),
            Next::Soon => self.interval / HASTE,
            Next::Settled => SETTLE,
        };
        self.wait(changes, pause, target).await
    }

    /// Polls the worker, reports, and adjusts its size; returns when to poll again.
    async fn step(&mut self) -> anyhow::Result<(Next, Target)> {
        let sight = self.kind.look().await?;
        match sight {
            Observation::Working { running, limit } => self.report(running, limit).await?,
            Observation::Unsized => {}
            Observation::Ended => self.report(0, 0).await?,
        }
        let target = self.target().await?;
        if sight == Observation::Ended {
            self.driver.metrics().set_worker_problem(Some("its process has exited".into()));
            return Ok((Next::Soon, target));
        }
        self.answered();
        let next = match self.kind.adjustment(target) {
            Adjustment::Nothing => Next::Idle,
            Adjustment::Look => Next::Soon,
            Adjustment::Order { size, grows } => {
                if grows
                    && self.driver.ask(|reply| DriverRequest::Size { reply }).await? != target.size
                {
                    // It has changed meanwhile, or could not be recorded.
                    return Ok((Next::Soon, target));
                }
                self.kind.order(size, target).await?;
                Next::Settled
            }
        };
        Ok((next, target))
    }

    async fn report(&self, running: u32, obeyed: u32) -> anyhow::Result<()> {
        let told = self.driver.ask(|reply| DriverRequest::Count { running, obeyed, reply }).await?;
        told.or_else(|refused| {
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

    /// How long to wait after failures. A worker that programs ask costs more than a packet.
    fn retry(&self) -> Duration {
        match self.kind {
            Kind::Travis(_) | Kind::Http(_) => Duration::ZERO,
            Kind::Command(_) => backoff::RETRY.wait(self.failures),
        }
    }

    fn answered(&mut self) {
        self.failures = 0;
        if !std::mem::replace(&mut self.well, true) {
            tracing::info!("the worker answers");
        }
        self.driver.metrics().set_worker_problem(None);
    }

    fn silent(&mut self, error: &anyhow::Error) {
        self.well = false;
        self.failures = self.failures.saturating_add(1);
        let why = format!("{error:#}");
        self.driver.metrics().worker_failures.fetch_add(1, Relaxed);
        if let Some(unsaid) = self.log_limiter.admit("worker", &why, clock::now()) {
            tracing::warn!(why, unsaid, "cannot reach the worker; its last counts stay in force");
        }
        self.driver.metrics().set_worker_problem(Some(why));
    }
}
