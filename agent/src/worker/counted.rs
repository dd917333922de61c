//! Workers that count for themselves: the agent asks how many jobs run, tells how many may, and
//! reports both.
//!
//! Invariant: a larger size is written down before the worker is told of it, and a smaller one
//! counts only once the worker, asked after it was told, has shown that it keeps to it. A worker
//! that does not answer keeps the counts that it had.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::bail;
use leasehold_agent_core::Lease;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{command::CommandWorker, http::HttpWorker, travis::Travis, words};
use crate::backoff;
use crate::clock;
use crate::driver::{Command, Door, Gone, Outcome};
use crate::link::Complaints;

/// While something is to change the worker is asked so much more often.
const HASTE: u32 = 5;
/// How long after an answered order the worker surely shows what it has done.
const SETTLE: Duration = Duration::from_millis(100);

/// What a worker that counts for itself is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A Travis worker.
    Travis(Travis),
    /// A worker with another HTTP interface.
    Http(HttpWorker),
    /// A worker that programs count and size.
    Command(CommandWorker),
}

/// What a worker shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// It works.
    Working {
        /// Jobs that run.
        running: u32,
        /// The most jobs that it may come to run at once without another order.
        limit: u32,
    },
    /// It is to be told a size before it is known how many jobs it may come to run.
    Unsized,
    /// Its process has ended, and its jobs with it.
    Ended,
}

/// What the worker is to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Jobs at once.
    pub(crate) size: u32,
    /// It is to start none any more, for good; the size is 0.
    pub(crate) draining: bool,
}

/// What is to be done for the worker to keep to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// It is to be asked again soon.
    Look,
    /// It is to be told of this size.
    Order {
        /// The size, by the worker's own way of counting.
        size: u32,
        /// It may then run more jobs than before.
        grows: bool,
    },
}

/// The agent's side of one worker that counts for itself.
#[derive(Debug)]
pub(crate) struct CountedWorker {
    door: Door,
    kind: Kind,
    interval: Duration,
    complaints: Complaints,
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
    async fn look(&mut self) -> anyhow::Result<Sight> {
        match self {
            Self::Travis(travis) => travis.look().await,
            Self::Http(http) => http.look().await,
            Self::Command(command) => command.look().await,
        }
    }

    fn need(&self, target: Target) -> Need {
        match self {
            Self::Travis(travis) => travis.need(target),
            Self::Http(http) => http.need(target),
            Self::Command(command) => command.need(target),
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

impl CountedWorker {
    /// The agent's side of a worker of this kind, which is asked at this interval.
    pub(crate) fn new(kind: Kind, interval: Duration, door: Door) -> Self {
        Self { door, kind, interval, complaints: Complaints::default(), failures: 0, well: false }
    }

    /// Runs until the driver ends, and then tells a drained worker what it is still to be told.
    pub(crate) async fn run(mut self) {
        let mut changes = self.door.changes();
        while self.turn(&mut changes).await.is_ok() {}
        if !matches!(self.door.outcome(), Some(Outcome::Drained { .. })) {
            return;
        }
        let target = Target { size: 0, draining: true };
        if let Need::Order { size, .. } = self.kind.need(target)
            && let Err(error) = self.kind.order(size, target).await
        {
            tracing::warn!("the drained worker could not be told to end: {error:#}");
        }
    }

    /// One look at the worker, what follows from it, and the wait for the next.
    async fn turn(&mut self, changes: &mut watch::Receiver<u64>) -> Result<(), Gone> {
        changes.mark_unchanged();
        let (next, target) = match self.step().await {
            Ok(next) => next,
            Err(error) if error.is::<Gone>() => return Err(Gone),
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

    /// Looks, reports, and tells the worker what it is to keep to; with that, when to look again.
    async fn step(&mut self) -> anyhow::Result<(Next, Target)> {
        let sight = self.kind.look().await?;
        match sight {
            Sight::Working { running, limit } => self.report(running, limit).await?,
            Sight::Unsized => {}
            Sight::Ended => self.report(0, 0).await?,
        }
        let target = self.target().await?;
        if sight == Sight::Ended {
            self.door.metrics().set_worker_problem(Some("its process has ended".into()));
            return Ok((Next::Soon, target));
        }
        self.answered();
        let next = match self.kind.need(target) {
            Need::Nothing => Next::Idle,
            Need::Look => Next::Soon,
            Need::Order { size, grows } => {
                if grows && self.door.ask(|reply| Command::Size { reply }).await? != target.size {
                    // It has changed meanwhile, or could not be written down.
                    return Ok((Next::Soon, target));
                }
                self.kind.order(size, target).await?;
                Next::Settled
            }
        };
        Ok((next, target))
    }

    async fn report(&self, running: u32, obeyed: u32) -> anyhow::Result<()> {
        let told = self.door.ask(|reply| Command::Count { running, obeyed, reply }).await?;
        told.or_else(|refused| bail!("its count of {running} jobs: {}", words(&refused)))
    }

    async fn target(&self) -> Result<Target, Gone> {
        let lease: Lease = self.door.ask(|reply| Command::Peek { reply }).await?;
        Ok(Target { size: lease.pool.size, draining: lease.draining })
    }

    /// Waits for the next look: a renewal, and the agent's own report, are no reason for one.
    async fn wait(
        &self,
        changes: &mut watch::Receiver<u64>,
        pause: Duration,
        target: Target,
    ) -> Result<(), Gone> {
        let end = Instant::now() + pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return Ok(()),
                changed = changes.changed() => {
                    changed.map_err(|_| Gone)?;
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
        self.door.metrics().set_worker_problem(None);
    }

    fn silent(&mut self, error: &anyhow::Error) {
        self.well = false;
        self.failures = self.failures.saturating_add(1);
        let why = format!("{error:#}");
        self.door.metrics().worker_failures.fetch_add(1, Relaxed);
        if let Some(unsaid) = self.complaints.admit("worker", &why, clock::now()) {
            tracing::warn!(why, unsaid, "the worker cannot be told; its last counts stand");
        }
        self.door.metrics().set_worker_problem(Some(why));
    }
}
