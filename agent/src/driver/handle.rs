//! The driver to the driver: how every other task asks the holder something.

use std::sync::Arc;
use std::time::Duration;

use leasehold_agent_core::{Kinds, Lease, Refused};
use leasehold_types::{JobId, Moment, StartId, StreamKey, Token};
use tokio::sync::{mpsc, oneshot, watch};

use super::Outcome;
use crate::metrics::Metrics;

/// Answers one request.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Refused>>;

/// A request to the driver.
#[derive(Debug)]
pub(crate) enum DriverRequest {
    /// Show the worker its lease, with these kinds of leases beside the pool.
    Lease { kinds: Kinds, reply: oneshot::Sender<Snapshot> },
    /// The lease for the agent's own eyes: the worker has not seen it.
    Peek { reply: oneshot::Sender<Lease> },
    /// What is waited for, in words; none where nothing is.
    Outstanding { reply: oneshot::Sender<Option<String>> },
    /// The pool size alone, for a polled worker that is about to get it.
    Size { reply: oneshot::Sender<u32> },
    /// The worker starts.
    Start { start: StartId, running: u32, reply: Reply<()> },
    /// A job wants to begin, and waits for a slot so long.
    Begin { job: JobId, wait: Duration, reply: Reply<Token> },
    /// A job has ended.
    End { job: JobId, reply: Reply<()> },
    /// The worker's own count, and the pool size that it keeps to.
    Count { running: u32, obeyed: u32, reply: Reply<()> },
    /// The worker has released a stream.
    Release { stream: StreamKey, token: Token, reply: Reply<()> },
    /// Drain, and say when that has ended.
    Drain { ended: Option<oneshot::Sender<u32>> },
    /// Send what is to be sent, and end.
    Stop,
}

/// The lease as it was at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The lease.
    pub(crate) lease: Arc<Lease>,
    /// The moment, which is after the question was asked.
    pub(crate) now: Moment,
    /// How long a lease lasts from one renewal on, once a coordinator has sent that.
    pub(crate) ttl: Option<Duration>,
}

/// The driver has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent is stopping")]
pub(crate) struct DriverStopped;

/// The driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverHandle {
    commands: mpsc::Sender<DriverRequest>,
    changes: watch::Receiver<u64>,
    outcome: watch::Receiver<Option<Outcome>>,
    metrics: Arc<Metrics>,
}

impl DriverHandle {
    pub(super) fn new(
        commands: mpsc::Sender<DriverRequest>,
        changes: watch::Receiver<u64>,
        outcome: watch::Receiver<Option<Outcome>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { commands, changes, outcome, metrics }
    }

    /// Asks the driver something.
    pub(crate) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> DriverRequest,
    ) -> Result<T, DriverStopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| DriverStopped)?;
        answer.await.map_err(|_| DriverStopped)
    }

    /// The lease now, shown to the worker.
    pub(crate) async fn lease(&self) -> Result<Snapshot, DriverStopped> {
        self.lease_of(Kinds::ALL).await
    }

    /// The same for a worker that takes leases of these kinds alone.
    pub(crate) async fn lease_of(&self, kinds: Kinds) -> Result<Snapshot, DriverStopped> {
        self.ask(|reply| DriverRequest::Lease { kinds, reply }).await
    }

    /// Reports to the holder that all earlier jobs of the worker have ended.
    pub(crate) async fn report_no_jobs(&self) -> Result<(), String> {
        let id = format!("agent-{:016x}", fastrand::u64(..));
        let start = StartId::new(&id).expect("letters and digits are printable");
        let told = self.ask(|reply| DriverRequest::Start { start, running: 0, reply }).await;
        told.map_err(|gone| gone.to_string())?.map_err(|refused| crate::refusal::message(&refused))
    }

    /// Begins a drain and does not wait for its end.
    pub(crate) async fn drain(&self) -> Result<(), DriverStopped> {
        self.commands.send(DriverRequest::Drain { ended: None }).await.map_err(|_| DriverStopped)
    }

    /// Lets the driver end.
    pub(crate) async fn stop(&self) {
        let _ = self.commands.send(DriverRequest::Stop).await;
    }

    /// Changes whenever the lease reads differently or is renewed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Why the agent is to end, once it is.
    pub(crate) async fn ended(&self) -> Result<Outcome, DriverStopped> {
        let mut outcome = self.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await.map_err(|_| DriverStopped)?;
        Ok(ended.expect("it was waited for"))
    }

    /// Waits until this agent must end: a newer one runs for its
    /// worker, or the driver is gone.
    pub(crate) async fn superseded(&self) -> Result<Outcome, DriverStopped> {
        let mut outcome = self.outcome.clone();
        let superseded = |outcome: &Option<Outcome>| *outcome == Some(Outcome::Superseded);
        outcome.wait_for(superseded).await.map_err(|_| DriverStopped)?;
        Ok(Outcome::Superseded)
    }

    /// Why the agent is to end, if it is.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        *self.outcome.borrow()
    }

    /// Whether the driver still runs.
    pub(crate) fn is_open(&self) -> bool {
        !self.commands.is_closed()
    }

    /// The agent's figures.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}
