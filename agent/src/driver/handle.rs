//! The handle to the driver: how every other task sends requests to the holder.

use std::sync::Arc;
use std::time::Duration;

use leasehold_agent_core::{Lease, LeaseKinds, RequestError};
use leasehold_types::message::WorkerFailure;
use leasehold_types::{JobId, Moment, StartId, StreamKey, Token};
use tokio::sync::{mpsc, oneshot, watch};

use super::Outcome;
use super::job_clock::RunningJobs;
use crate::metrics::Metrics;

/// Answers one request.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, RequestError>>;

/// A request to the driver.
#[derive(Debug)]
pub(crate) enum DriverRequest {
    /// Return the pool and these kinds of leases; unless it is a `peek`, they count as shown to the
    /// worker.
    Lease { kinds: LeaseKinds, peek: bool, reply: oneshot::Sender<Snapshot> },
    /// Return the running jobs.
    Jobs { reply: oneshot::Sender<RunningJobs> },
    /// Describe what the agent waits for; none if nothing.
    Outstanding { reply: oneshot::Sender<Option<String>> },
    /// Return the pool size only, for a polled worker that is about to get it.
    Size { reply: oneshot::Sender<u32> },
    /// The worker starts.
    Start { start: StartId, running: u32, reply: Reply<()> },
    /// A job waits for a slot, at most this long.
    Begin { job: JobId, wait: Duration, reply: Reply<Token> },
    /// A job has ended.
    End { job: JobId, reply: Reply<()> },
    /// The worker's own count, and the pool size that it keeps to.
    Count { running: u32, in_effect: u32, reply: Reply<()> },
    /// The same, as an adapter has observed it.
    ObservedCount { running: u32, in_effect: u32, reply: Reply<()> },
    /// The worker has released a stream.
    Release { stream: StreamKey, token: Token, reply: Reply<()> },
    /// Why the worker fails its check; none if it passes. Reply whether that is in force.
    Failure { failure: Option<WorkerFailure>, reply: oneshot::Sender<bool> },
    /// What the worker promises of its calls: the next agent has to know it, too.
    Promise { within: Option<Duration>, reply: oneshot::Sender<()> },
    /// Drain, and reply when the drain has ended.
    Drain { ended: Option<oneshot::Sender<u32>> },
    /// The container in which a drain was requested has ended.
    ContainerEnded,
    /// Send the queued messages, and stop.
    Stop,
}

/// The lease as it was at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The lease.
    pub(crate) lease: Arc<Lease>,
    /// The moment, which is after the request was made.
    pub(crate) now: Moment,
    /// The time from a renewal to the end of the lease; none before a coordinator has sent it.
    pub(crate) ttl: Option<Duration>,
}

/// The driver has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent is stopping")]
pub(crate) struct DriverStopped;

/// The handle to the driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverHandle {
    commands: mpsc::Sender<DriverRequest>,
    changes: watch::Receiver<u64>,
    outcome: watch::Receiver<Option<Outcome>>,
    overdue: watch::Receiver<u64>,
    metrics: Arc<Metrics>,
}

impl DriverHandle {
    pub(super) fn new(
        commands: mpsc::Sender<DriverRequest>,
        changes: watch::Receiver<u64>,
        outcome: watch::Receiver<Option<Outcome>>,
        overdue: watch::Receiver<u64>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { commands, changes, outcome, overdue, metrics }
    }

    /// Sends a request to the driver, and waits for the answer.
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
        self.lease_of(LeaseKinds::ALL).await
    }

    /// The same for a worker that uses only these kinds of leases.
    pub(crate) async fn lease_of(&self, kinds: LeaseKinds) -> Result<Snapshot, DriverStopped> {
        self.ask(|reply| DriverRequest::Lease { kinds, peek: false, reply }).await
    }

    /// The lease for the agent's own use, without showing it to the worker.
    pub(crate) async fn peek(&self) -> Result<Arc<Lease>, DriverStopped> {
        Ok(self.peek_at(LeaseKinds::ALL).await?.lease)
    }

    /// These kinds of leases, without showing them to the worker.
    pub(crate) async fn peek_at(&self, kinds: LeaseKinds) -> Result<Snapshot, DriverStopped> {
        self.ask(|reply| DriverRequest::Lease { kinds, peek: true, reply }).await
    }

    /// Reports to the holder that all earlier jobs of the worker have ended.
    pub(crate) async fn report_no_jobs(&self) -> Result<(), String> {
        let id = format!("agent-{:016x}", fastrand::u64(..));
        let start = StartId::new(&id).expect("letters and digits are printable");
        let written = self.ask(|reply| DriverRequest::Start { start, running: 0, reply }).await;
        written
            .map_err(|stopped| stopped.to_string())?
            .map_err(|refused| crate::refusal::message(&refused))
    }

    /// Begins a drain and does not wait for its end.
    pub(crate) async fn drain(&self) -> Result<(), DriverStopped> {
        self.commands.send(DriverRequest::Drain { ended: None }).await.map_err(|_| DriverStopped)
    }

    /// Stops the driver.
    pub(crate) async fn stop(&self) {
        let _ = self.commands.send(DriverRequest::Stop).await;
    }

    /// Changes whenever the lease changes or is renewed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Changes whenever a drain has outlasted its deadline, and the agent goes on.
    pub(crate) fn overdue(&self) -> watch::Receiver<u64> {
        self.overdue.clone()
    }

    /// Waits until the agent must end, and returns why.
    pub(crate) async fn ended(&self) -> Result<Outcome, DriverStopped> {
        let mut outcome = self.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await.map_err(|_| DriverStopped)?;
        Ok(ended.expect("it was waited for"))
    }

    /// Waits until a newer agent has taken over the worker, or the driver has stopped.
    pub(crate) async fn superseded(&self) -> Result<Outcome, DriverStopped> {
        let mut outcome = self.outcome.clone();
        let superseded = |outcome: &Option<Outcome>| *outcome == Some(Outcome::Superseded);
        outcome.wait_for(superseded).await.map_err(|_| DriverStopped)?;
        Ok(Outcome::Superseded)
    }

    /// Why the agent must end, if it must.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        *self.outcome.borrow()
    }

    /// Whether the driver still runs.
    pub(crate) fn is_open(&self) -> bool {
        !self.commands.is_closed()
    }

    /// Reports that the container in which a drain was requested has ended. A driver that has
    /// stopped no longer drains.
    pub(crate) async fn container_ended(&self) {
        let _ = self.commands.send(DriverRequest::ContainerEnded).await;
    }

    /// The agent's metrics.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}
