//! The link to the agent: it follows the lease, and is made again whenever it breaks.
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
use crate::state::{Client, Key, Kind, Shared};

/// Between two attempts to reach the agent.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long an answer may take beyond what the question allows it.
const ANSWER: Duration = Duration::from_secs(5);

/// The answer to a question that lets the agent wait for so long.
pub(crate) async fn answer<T>(
    asked: impl Future<Output = Result<Response<T>, Status>>,
    wait: Duration,
) -> Result<T, Error> {
    let answered = tokio::time::timeout(wait.saturating_add(ANSWER), asked).await;
    Ok(answered.map_err(|_| Error::lost("it does not answer"))??.into_inner())
}

/// The link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: Address,
    /// None where another process of the worker says that it starts.
    pub(crate) start_id: Option<String>,
    pub(crate) shared: Arc<Shared>,
}

impl Link {
    /// Follows the lease until it is dropped.
    pub(crate) async fn follow_always(self) {
        let mut pause = PAUSE_MIN;
        loop {
            let followed = self.follow().await;
            let was_up = self.shared.change(|state| state.client.take().is_some());
            let Err(error) = followed else { continue };
            if was_up {
                tracing::warn!(%error, "the connection to the agent is lost");
                pause = PAUSE_MIN;
            } else {
                tracing::debug!(%error, "cannot connect to the agent");
                pause = (pause * 2).min(PAUSE_MAX);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Follows the lease until somebody consumes what it does not show. The agent takes what it
    /// shows for what the worker may work on, so it is asked for what is consumed here alone.
    async fn follow(&self) -> Result<(), Error> {
        let channel = self.address.connect().await?;
        let mut client = Client::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (running, consumed) =
            self.shared.change(|state| (state.begin_era(), state.consumed.clone()));
        // It may be another process than before, with or without a memory: this is right for both.
        self.say_start(&mut client, running).await?;
        let asked = clock::now();
        let request = wire::WatchLeaseRequest {
            without_streams: !consumed.contains(&Kind::Stream),
            without_bindings: !consumed.contains(&Kind::Binding),
        };
        let mut leases = answer(client.watch_lease(request), Duration::ZERO).await?;
        let more = self.shared.until(|state| (state.consumed != consumed).then_some(()));
        let mut more = std::pin::pin!(more);
        loop {
            let message = tokio::select! {
                message = leases.message() => message?,
                () = &mut more => return Ok(()),
            };
            let Some(wire::WatchLeaseResponse { lease }) = message else {
                return Err(Error::lost("it ended the watch"));
            };
            let lease = lease.ok_or_else(|| Error::lost("its answer has no lease"))?;
            self.shared.change(|state| {
                state.obey(&lease, asked);
                if state.client.is_none() {
                    tracing::info!(era = state.era, "connected to the agent");
                    state.client = Some(client.clone());
                }
            });
        }
    }

    async fn say_start(&self, client: &mut Client, running: u32) -> Result<(), Error> {
        let Some(start_id) = self.start_id.clone() else { return Ok(()) };
        let request = wire::StartWorkerRequest { start_id, running };
        answer(client.start_worker(request), Duration::ZERO).await?;
        Ok(())
    }
}

/// Sends the agent what it must know, until it has confirmed all of it.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) start_id: Option<String>,
    pub(crate) shared: Arc<Shared>,
}

impl Teller {
    /// Tells until it is dropped.
    pub(crate) async fn tell_always(self) {
        let mut pause = PAUSE_MIN;
        loop {
            let (era, client) = self.owing().await;
            match self.tell_all(era, client).await {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => {
                    tracing::debug!(%error, "the agent has not confirmed an end or a release");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    async fn owing(&self) -> (u64, Client) {
        let owing = self.shared.until(|state| {
            let client = state.client.clone()?;
            (state.owes() || state.fewer_unnamed).then_some((state.era, client))
        });
        owing.await
    }

    async fn tell_all(&self, era: u64, mut client: Client) -> Result<(), Error> {
        let (ended, released) = {
            let state = self.shared.look();
            (state.ended.clone(), state.released.clone())
        };
        for job_id in ended {
            let request = wire::EndJobRequest { job_id: job_id.clone() };
            heard(answer(client.end_job(request), Duration::ZERO).await, &["invalid"])?;
            self.shared.change(|state| state.end_heard(&job_id, era));
        }
        for (key, token) in released {
            // What is not held any more needs no release.
            let over = ["not_held", "invalid"];
            heard(release(&mut client, key.clone(), token.to_string()).await, &over)?;
            self.shared.change(|state| state.released.remove(&(key, token)));
        }
        self.tell_fewer(era, client).await
    }

    /// Over the era's own connection: another process may know less than this one does.
    async fn tell_fewer(&self, era: u64, mut client: Client) -> Result<(), Error> {
        let left = {
            let state = self.shared.look();
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

/// Whether the agent has answered: with success, or one of these refusals.
fn heard<T>(answered: Result<T, Error>, over: &[&str]) -> Result<(), Error> {
    match answered {
        Err(error) if !over.contains(&error.reason()) => Err(error),
        _ => Ok(()),
    }
}
