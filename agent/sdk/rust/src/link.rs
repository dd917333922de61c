//! The link to the agent: it watches the lease, and connects again when the connection breaks.
//!
//! Invariant: one connection is one process of the agent's, an *era*. A request goes over it only
//! after that process knows this start and the running jobs.

use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use tonic::{Response, Status};

use crate::address::Address;
use crate::clock;
use crate::error::Error;
use crate::owned::{Key, Kind};
use crate::state::{Client, Shared};

/// Between two attempts to reach the agent.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long there may be no agent before a warning says so, once.
const WARN_AFTER: Duration = Duration::from_secs(3);
/// What to do where nothing answers.
const ADVICE: &str = "start this program as the COMMAND of leasehold-agent run, or set \
                      LEASEHOLD_ADDR to the agent's --listen, as http://HOST:PORT";
/// How long an answer may take beyond the wait that the request allows.
const ANSWER: Duration = Duration::from_secs(5);

/// The answer to a request that lets the agent wait for `wait`.
pub(crate) async fn answer<T>(
    request: impl Future<Output = Result<Response<T>, Status>>,
    wait: Duration,
) -> Result<T, Error> {
    let answered = tokio::time::timeout(wait.saturating_add(ANSWER), request).await;
    Ok(answered.map_err(|_| Error::lost("it does not answer"))??.into_inner())
}

/// The link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: Address,
    /// None if another process of this worker announces the start.
    pub(crate) start_id: Option<String>,
    pub(crate) shared: Arc<Shared>,
}

impl Link {
    /// Watches the lease until this future is dropped.
    pub(crate) async fn run(self) {
        let mut pause = PAUSE_MIN;
        // None once the log has said that there is no agent.
        let mut warn_at = Some(clock::now() + WARN_AFTER);
        loop {
            let watched = self.watch().await;
            let was_up = self.shared.change(|state| state.client.take().is_some());
            let Err(error) = watched else { continue };
            if was_up {
                tracing::warn!(%error, "the connection to the agent is lost");
                warn_at = Some(clock::now() + WARN_AFTER);
                pause = PAUSE_MIN;
            } else {
                tracing::debug!(%error, "cannot connect to the agent");
                pause = (pause * 2).min(PAUSE_MAX);
            }
            if warn_at.is_some_and(|at| clock::now() >= at) {
                tracing::warn!(address = %self.address, "{error} ({ADVICE}); still trying");
                warn_at = None;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Watches the lease until this process also consumes the other kind of lease. The agent counts
    /// what it lists as in use by the worker, so the request names only the kinds consumed here.
    async fn watch(&self) -> Result<(), Error> {
        let channel = self.address.connect().await?;
        let mut client = Client::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (running, consumed) =
            self.shared.change(|state| (state.begin_era(), state.consumed.clone()));
        // Announce the start each time: the agent may be a new process, with or without a journal.
        self.announce_start(&mut client, running).await?;
        let asked = clock::now();
        let request = wire::WatchLeaseRequest {
            without_streams: !consumed.contains(&Kind::Stream),
            without_bindings: !consumed.contains(&Kind::Binding),
        };
        let mut leases = answer(client.watch_lease(request), Duration::ZERO).await?;
        let consumes_more = self.shared.until(|state| (state.consumed != consumed).then_some(()));
        let mut consumes_more = std::pin::pin!(consumes_more);
        loop {
            let message = tokio::select! {
                message = leases.message() => message?,
                () = &mut consumes_more => return Ok(()),
            };
            let Some(wire::WatchLeaseResponse { lease }) = message else {
                return Err(Error::lost("it ended the watch"));
            };
            let lease = lease.ok_or_else(|| Error::lost("its answer has no lease"))?;
            self.shared.change(|state| {
                state.apply(&lease, asked);
                if state.client.is_none() {
                    tracing::info!(era = state.era, "connected to the agent");
                    state.client = Some(client.clone());
                }
            });
        }
    }

    async fn announce_start(&self, client: &mut Client, running: u32) -> Result<(), Error> {
        let Some(start_id) = self.start_id.clone() else { return Ok(()) };
        let request = wire::StartWorkerRequest { start_id, running };
        answer(client.start_worker(request), Duration::ZERO).await?;
        Ok(())
    }
}

/// Notifies the agent of ends and releases until the agent has confirmed each of them.
#[derive(Debug)]
pub(crate) struct Notifier {
    pub(crate) start_id: Option<String>,
    pub(crate) shared: Arc<Shared>,
}

impl Notifier {
    /// Notifies until this future is dropped.
    pub(crate) async fn run(self) {
        let mut pause = PAUSE_MIN;
        loop {
            let (era, client) = self.unconfirmed().await;
            match self.notify_all(era, client).await {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => {
                    tracing::debug!(%error, "the agent has not confirmed an end or a release");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Waits until something is unconfirmed and there is a connection.
    async fn unconfirmed(&self) -> (u64, Client) {
        let ready = self.shared.until(|state| {
            let client = state.client.clone()?;
            (state.has_unconfirmed() || state.fewer_unnamed).then_some((state.era, client))
        });
        ready.await
    }

    async fn notify_all(&self, era: u64, mut client: Client) -> Result<(), Error> {
        let (ended, released) = {
            let state = self.shared.lock();
            (state.ended.clone(), state.released.clone())
        };
        for job_id in ended {
            let request = wire::EndJobRequest { job_id: job_id.clone() };
            accept_refusals(answer(client.end_job(request), Duration::ZERO).await, &["invalid"])?;
            self.shared.change(|state| state.end_confirmed(&job_id, era));
        }
        for (key, token) in released {
            // A lease that the agent no longer holds needs no release.
            let accepted = ["not_held", "invalid"];
            accept_refusals(release(&mut client, key.clone(), token.to_string()).await, &accepted)?;
            self.shared.change(|state| state.released.remove(&(key, token)));
        }
        self.notify_fewer_jobs(era, client).await
    }

    /// Sends the lower number of jobs. It is valid for this era only: a later process of the
    /// agent's gets a number of its own.
    async fn notify_fewer_jobs(&self, era: u64, mut client: Client) -> Result<(), Error> {
        let left = {
            let state = self.shared.lock();
            (state.era == era && state.fewer_unnamed).then(|| state.unnamed_left())
        };
        let Some(running) = left else { return Ok(()) };
        if let Some(start_id) = self.start_id.clone() {
            let request = wire::StartWorkerRequest { start_id, running };
            answer(client.start_worker(request), Duration::ZERO).await?;
        }
        self.shared.change(|state| {
            if state.era == era && state.unnamed_left() == running {
                state.fewer_unnamed = false;
            }
        });
        Ok(())
    }
}

async fn release(client: &mut Client, key: Key, token: String) -> Result<(), Error> {
    let Key { kind, of, name, index } = key;
    match kind {
        Kind::Stream => {
            let request = wire::ReleaseStreamRequest { set: of, stream: name, token };
            answer(client.release_stream(request), Duration::ZERO).await.map(drop)
        }
        Kind::Binding => {
            let request = wire::ReleaseBindingRequest { pipeline: of, node: name, index, token };
            answer(client.release_binding(request), Duration::ZERO).await.map(drop)
        }
    }
}

/// Treats these refusals as success: they mean that there is nothing left to do.
fn accept_refusals<T>(answered: Result<T, Error>, accepted: &[&str]) -> Result<(), Error> {
    match answered {
        Err(error) if !accepted.contains(&error.reason()) => Err(error),
        _ => Ok(()),
    }
}
