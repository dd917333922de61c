//! The adapter `api`: answers the requests of the worker, for HTTP and gRPC alike. Texts become ids
//! here, through the mapping module.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::Stream;
use leasehold_agent_core::{LeaseKinds, RequestError};
use leasehold_proto::map::{self, Invalid};
use leasehold_types::{JobId, Moment, StreamKey, Token, WorkerKey};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::check::WorkerHealth;
use super::{JobsView, LeaseView};
use crate::driver::{DriverHandle, DriverRequest, DriverStopped};
use crate::refusal;

/// Concurrent watches and waiting reads.
const WATCHERS_MAX: usize = 256;
/// The longest wait of one request, in milliseconds.
pub(crate) const WAIT_MS_MAX: u32 = 60_000;

/// The shortest time within which a worker may promise to call again, in milliseconds.
const BEAT_MS_MIN: u32 = 100;

/// How soon a caller that keeps a drain in force is there, or is back after a lost connection. One
/// that is not has ended with its container.
const HOLD_GRACE: Duration = Duration::from_secs(5);

/// A refused request: a reason of the proto in lower case, and a message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The request is valid in itself: the worker's state refuses it.
    pub(crate) is_state: bool,
}

impl Denial {
    /// The request is invalid.
    pub(crate) fn invalid(message: impl ToString) -> Self {
        Self { reason: "invalid", message: message.to_string(), is_state: false }
    }
}

impl From<Invalid> for Denial {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid)
    }
}

impl From<RequestError> for Denial {
    fn from(refused: RequestError) -> Self {
        let (reason, message) = (refusal::reason(&refused), refusal::message(&refused));
        Self { reason, message, is_state: true }
    }
}

impl From<DriverStopped> for Denial {
    fn from(gone: DriverStopped) -> Self {
        Self { reason: "stopping", message: gone.to_string(), is_state: true }
    }
}

/// The requests of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerApi {
    driver: DriverHandle,
    health: WorkerHealth,
    who: WorkerKey,
    watchers: Arc<Semaphore>,
    /// Callers act for the worker as a whole. The programs of single streams do not.
    takes_promises: bool,
    /// The agent continues after a drain.
    stays_after_drain: bool,
    /// Callers that keep a drain in force.
    drain_holds: Arc<AtomicUsize>,
}

impl WorkerApi {
    /// The API of this worker. `stays_after_drain`: the agent continues after a drain.
    /// `takes_promises`: its callers act for the worker as a whole.
    pub(crate) fn new(
        driver: DriverHandle,
        health: WorkerHealth,
        who: WorkerKey,
        stays_after_drain: bool,
        takes_promises: bool,
    ) -> Self {
        let watchers = Arc::new(Semaphore::new(WATCHERS_MAX));
        Self {
            driver,
            health,
            who,
            watchers,
            takes_promises,
            stays_after_drain,
            drain_holds: Arc::default(),
        }
    }

    /// The driver behind it.
    pub(crate) fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    /// The lease with these kinds. With `after_version`, waits until the version differs, at most
    /// `wait_ms`. With `peek`, a person asks, and the worker has not seen it.
    pub(crate) async fn lease(
        &self,
        kinds: LeaseKinds,
        after_version: Option<u64>,
        wait_ms: u32,
        peek: bool,
    ) -> Result<LeaseView, Denial> {
        let end = Instant::now() + wait(wait_ms)?;
        if !peek {
            self.health.waits(wait(wait_ms)?);
        }
        let mut changes = self.driver.changes();
        changes.mark_unchanged();
        let read = async || {
            if peek { self.driver.peek_at(kinds).await } else { self.driver.lease_of(kinds).await }
        };
        let mut snapshot = read().await?;
        let asked = snapshot.now;
        if after_version == Some(snapshot.lease.version) && wait_ms > 0 {
            let _permit = self.watcher()?;
            while after_version == Some(snapshot.lease.version) {
                match tokio::time::timeout_at(end, changes.changed()).await {
                    Err(_) => break,
                    Ok(Err(_)) => return Err(DriverStopped.into()),
                    Ok(Ok(())) => snapshot = read().await?,
                }
            }
            snapshot = read().await?;
        }
        Ok(LeaseView::new(&snapshot.lease, asked, &self.who))
    }

    /// The lease now, and again after every change and renewal, until the agent exits. Its times
    /// count from when the watch was opened.
    pub(crate) async fn watch(
        &self,
        kinds: LeaseKinds,
    ) -> Result<impl Stream<Item = LeaseView> + Send + use<>, Denial> {
        let permit = self.watcher()?;
        self.health.called();
        let mut changes = self.driver.changes();
        changes.mark_changed();
        let watch = Watch { api: self.clone(), kinds, changes, asked: None, _permit: permit };
        Ok(futures_util::stream::unfold(watch, Watch::next))
    }

    /// The worker's process starts.
    pub(crate) async fn start(&self, start_id: &str, running: u32) -> Result<(), Denial> {
        let start = map::start_id(start_id)?;
        self.health.reported_start(start_id);
        Ok(self.driver.ask(|reply| DriverRequest::Start { start, running, reply }).await??)
    }

    /// Begins a job, and returns the pool lease's token.
    pub(crate) async fn begin(&self, job: &str, wait_ms: u32) -> Result<String, Denial> {
        let wait = wait(wait_ms)?;
        let job: JobId = map::job_id(job)?;
        self.health.waits(wait);
        let token = self.driver.ask(|reply| DriverRequest::Begin { job, wait, reply }).await??;
        Ok(token.to_string())
    }

    /// The job has ended.
    pub(crate) async fn end(&self, job: &str) -> Result<(), Denial> {
        let job = map::job_id(job)?;
        self.health.called();
        Ok(self.driver.ask(|reply| DriverRequest::End { job, reply }).await??)
    }

    /// The jobs that run.
    pub(crate) async fn jobs(&self) -> Result<JobsView, Denial> {
        let jobs = self.driver.ask(|reply| DriverRequest::Jobs { reply }).await?;
        Ok(JobsView::new(&jobs))
    }

    /// Reports the number of running jobs and the pool size that the worker respects.
    pub(crate) async fn count(&self, running: u32, in_effect: u32) -> Result<(), Denial> {
        self.health.called();
        Ok(self.driver.ask(|reply| DriverRequest::Count { running, in_effect, reply }).await??)
    }

    /// The worker has released the stream.
    pub(crate) async fn release(&self, set: &str, stream: &str, token: &str) -> Result<(), Denial> {
        self.give_back(map::stream_key(set, stream)?, map::token(token)?).await
    }

    /// The worker has released a share of a pipeline.
    pub(crate) async fn release_binding(
        &self,
        pipeline: &str,
        node: &str,
        index: u32,
        token: &str,
    ) -> Result<(), Denial> {
        let share = map::share_key(pipeline, node, index)?;
        let token = map::token(token)?;
        self.give_back(share.stream(), token).await
    }

    async fn give_back(&self, stream: StreamKey, token: Token) -> Result<(), Denial> {
        self.health.called();
        Ok(self.driver.ask(|reply| DriverRequest::Release { stream, token, reply }).await??)
    }

    /// The worker lives, and calls again within this time, in milliseconds; with 0 it takes an
    /// earlier promise back.
    pub(crate) async fn beat(&self, within_ms: Option<u32>) -> Result<(), Denial> {
        let within = match within_ms {
            Some(within) if self.takes_promises => within,
            None | Some(_) => {
                self.health.called();
                return Ok(());
            }
        };
        if (1..BEAT_MS_MIN).contains(&within) {
            return Err(Denial::invalid(format!(
                "within_ms: expected 0, or at least {BEAT_MS_MIN}, for example 10000"
            )));
        }
        let within = (within > 0).then(|| Duration::from_millis(u64::from(within)));
        self.health.promised(within);
        Ok(self.driver.ask(|reply| DriverRequest::Promise { within, reply }).await?)
    }

    /// Begins a drain. With `wait`, returns after its end how many jobs still run.
    pub(crate) async fn drain(&self, wait: bool) -> Result<u32, Denial> {
        if wait {
            return Ok(self
                .driver
                .ask(|reply| DriverRequest::Drain { ended: Some(reply) })
                .await?);
        }
        self.driver.drain().await?;
        Ok(self.driver.peek().await?.pool.running)
    }

    /// Begins a drain that lasts as long as the caller's container, and returns when it is over. If
    /// the caller goes away before, and does not come back soon, the drain ends with its container.
    pub(crate) async fn hold_drain(&self) -> Result<(), Denial> {
        if !self.stays_after_drain {
            return Err(Denial::invalid(
                "hold: only a sidecar works again after a drain, and this agent ends with it",
            ));
        }
        let _permit = self.watcher()?;
        let mut changes = self.driver.changes();
        changes.mark_unchanged();
        self.driver.drain().await?;
        let mut hold = DrainHold::new(self.clone());
        while self.driver.peek().await?.draining {
            changes.changed().await.map_err(|_| DriverStopped)?;
        }
        hold.is_over = true;
        Ok(())
    }

    /// A drain was requested for the caller's container, where another process is about to keep it
    /// in force: see [`Self::hold_drain`].
    pub(crate) fn expect_hold(&self) {
        if !self.stays_after_drain {
            return;
        }
        let (holds, driver) = (self.drain_holds.clone(), self.driver.clone());
        tokio::spawn(async move {
            tokio::time::sleep(HOLD_GRACE).await;
            if holds.load(Ordering::Relaxed) == 0 {
                driver.container_ended().await;
            }
        });
    }

    fn watcher(&self) -> Result<OwnedSemaphorePermit, Denial> {
        let permit = self.watchers.clone().try_acquire_owned();
        permit.map_err(|_| {
            let max = WATCHERS_MAX as u64;
            RequestError::Limit { what: "watches and waiting reads", max }.into()
        })
    }
}

/// A caller that keeps a drain in force.
struct DrainHold {
    api: WorkerApi,
    /// The drain is over.
    is_over: bool,
}

impl DrainHold {
    fn new(api: WorkerApi) -> Self {
        api.drain_holds.fetch_add(1, Ordering::Relaxed);
        Self { api, is_over: false }
    }
}

impl Drop for DrainHold {
    fn drop(&mut self) {
        self.api.drain_holds.fetch_sub(1, Ordering::Relaxed);
        if !self.is_over {
            self.api.expect_hold();
        }
    }
}

/// One watch of the lease.
struct Watch {
    api: WorkerApi,
    kinds: LeaseKinds,
    changes: watch::Receiver<u64>,
    /// When it was opened; none before the first answer.
    asked: Option<Moment>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    async fn next(mut self) -> Option<(LeaseView, Self)> {
        self.changes.changed().await.ok()?;
        let snapshot = self.api.driver.lease_of(self.kinds).await.ok()?;
        let asked = *self.asked.get_or_insert(snapshot.now);
        let view = LeaseView::new(&snapshot.lease, asked, &self.api.who);
        Some((view, self))
    }
}

fn wait(wait_ms: u32) -> Result<Duration, Denial> {
    if wait_ms <= WAIT_MS_MAX {
        Ok(Duration::from_millis(u64::from(wait_ms)))
    } else {
        Err(Denial::invalid(format!("invalid wait_ms {wait_ms}: use at most {WAIT_MS_MAX}")))
    }
}
