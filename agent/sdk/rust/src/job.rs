//! A job: it asks for a slot, runs, and ends.
//!
//! Invariant: a job runs only after the agent's present process has admitted it, or has learnt of
//! it when its era began.

use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use leasehold_types::{Moment, Token};

use crate::clock;
use crate::error::Error;
use crate::link::{PAUSE_MAX, PAUSE_MIN, answer};
use crate::session::Session;
use crate::state::{Client, State};

/// How long the agent may hold one request for a slot.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// A job that may run, until it is dropped: dropping ends it.
#[derive(Debug)]
pub struct Job {
    id: String,
    token: Token,
    session: Arc<Session>,
}

impl Job {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The pool lease's token.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Ends the job, and returns when the agent has confirmed that.
    pub async fn end(self) {
        let (session, id) = (self.session.clone(), self.id.clone());
        drop(self);
        session.shared.until(|state| (!state.ended.contains(&id)).then_some(())).await;
    }

    pub(crate) async fn begin(
        session: Arc<Session>,
        id: String,
        until: Option<Moment>,
    ) -> Result<Self, Error> {
        let mut pending = PendingJob::new(session, id, until)?;
        let token = pending.admit().await?;
        Ok(Self { id: pending.id.clone(), token, session: pending.session.clone() })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.session.shared.change(|state| state.end(&self.id));
    }
}

/// A job that waits for its slot. If it is dropped before it runs, it leaves no slot in use.
struct PendingJob {
    session: Arc<Session>,
    id: String,
    until: Option<Moment>,
    pause: Duration,
    /// The agent may have admitted it although this process got no answer.
    unsure: bool,
}

impl PendingJob {
    fn new(session: Arc<Session>, id: String, until: Option<Moment>) -> Result<Self, Error> {
        let free = session
            .shared
            .change(|state| !state.running.contains(&id) && state.pending.insert(id.clone()));
        if free {
            Ok(Self { session, id, until, pause: PAUSE_MIN, unsure: false })
        } else {
            Err(Error::Runs(id))
        }
    }

    /// Asks until the agent admits the job, refuses it for good, or the time is over.
    async fn admit(&mut self) -> Result<Token, Error> {
        loop {
            let (era, mut client) = self.link().await?;
            match self.admit_once(&mut client).await {
                Ok(admitted) => {
                    let token = admitted.token.parse().map_err(Error::lost)?;
                    if self.runs_in(era) {
                        return Ok(token);
                    }
                }
                Err(error @ Error::Unreachable(_)) => self.pause(error).await?,
                Err(error) => {
                    self.unsure = false;
                    match error.reason() {
                        "draining" | "invalid" => return Err(error),
                        // The agent has already held this request until its wait was over.
                        "no_slot" | "no_lease" | "failing" if !self.is_over() => {}
                        _ => self.pause(error).await?,
                    }
                }
            }
        }
    }

    async fn admit_once(&mut self, client: &mut Client) -> Result<wire::BeginJobResponse, Error> {
        let session = self.session.clone();
        let _permit = session.slot_requests.acquire().await.expect("it is never closed");
        let wait = self.left().map_or(WAIT_MAX, |left| left.min(WAIT_MAX));
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let request = wire::BeginJobRequest { job_id: self.id.clone(), wait_ms };
        self.unsure = true;
        answer(client.begin_job(request), wait).await
    }

    /// Records that the job runs, unless another process of the agent's has taken over meanwhile:
    /// that one does not know the job, so it is asked as well.
    fn runs_in(&mut self, era: u64) -> bool {
        let runs = self.session.shared.change(|state| {
            let same = state.era == era;
            if same {
                state.running.insert(self.id.clone());
            }
            same
        });
        self.unsure = !runs;
        runs
    }

    /// Waits for a connection over which the agent may be asked.
    async fn link(&self) -> Result<(u64, Client), Error> {
        let ready = self.session.shared.until(|state: &mut State| {
            if state.closed {
                return Some(Err(Error::Closed));
            }
            if state.draining {
                return Some(Err(Error::Draining));
            }
            // An unconfirmed end of an earlier job of the same id would end this one.
            let client = state.client.clone().filter(|_| !state.ended.contains(&self.id))?;
            Some(Ok((state.era, client)))
        });
        match self.left() {
            None => ready.await,
            Some(left) => {
                let lost = |_| Error::lost("it is away");
                tokio::time::timeout(left, ready).await.map_err(lost)?
            }
        }
    }

    async fn pause(&mut self, error: Error) -> Result<(), Error> {
        if self.is_over() {
            return Err(error);
        }
        tokio::time::sleep(self.left().map_or(self.pause, |left| left.min(self.pause))).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.since(clock::now()))
    }

    fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

impl Drop for PendingJob {
    fn drop(&mut self) {
        self.session.shared.change(|state| {
            state.pending.remove(&self.id);
            if self.unsure {
                state.ended.insert(self.id.clone());
            }
        });
    }
}
