//! A job: from the question whether it may run to the word that it is over.
//!
//! Invariant: a job runs only after a yes of the agent's present process, or one that was told of
//! it when its era began.

use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use leasehold_types::{Moment, Token};

use crate::clock;
use crate::error::Error;
use crate::link::{PAUSE_MAX, PAUSE_MIN, answer};
use crate::state::{Client, State};
use crate::worker::Inner;

/// How long the agent may keep one question for a slot.
const ASK_MAX: Duration = Duration::from_secs(10);

/// A job that may run, until it is dropped: dropping ends it.
#[derive(Debug)]
pub struct Job {
    id: String,
    token: Token,
    inner: Arc<Inner>,
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
        let (inner, id) = (self.inner.clone(), self.id.clone());
        drop(self);
        inner.shared.until(|state| (!state.ended.contains(&id)).then_some(())).await;
    }

    pub(crate) async fn begin(
        inner: Arc<Inner>,
        id: String,
        until: Option<Moment>,
    ) -> Result<Self, Error> {
        let mut asking = Asking::new(inner, id, until)?;
        let token = asking.ask().await?;
        Ok(Self { id: asking.id.clone(), token, inner: asking.inner.clone() })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.inner.shared.change(|state| state.end(&self.id));
    }
}

/// A job on its way to its slot. Dropped on the way, it leaves no slot taken.
struct Asking {
    inner: Arc<Inner>,
    id: String,
    until: Option<Moment>,
    pause: Duration,
    /// The agent may have admitted it without our knowing.
    unsure: bool,
}

impl Asking {
    fn new(inner: Arc<Inner>, id: String, until: Option<Moment>) -> Result<Self, Error> {
        let free = inner
            .shared
            .change(|state| !state.running.contains(&id) && state.asking.insert(id.clone()));
        match free {
            true => Ok(Self { inner, id, until, pause: PAUSE_MIN, unsure: false }),
            false => Err(Error::Runs(id)),
        }
    }

    /// Asks until there is a yes, a no that stays one, or no time left.
    async fn ask(&mut self) -> Result<Token, Error> {
        loop {
            let (era, mut client) = self.link().await?;
            match self.ask_once(&mut client).await {
                Ok(yes) => {
                    let token = yes.token.parse().map_err(Error::lost)?;
                    if self.runs_in(era) {
                        return Ok(token);
                    }
                }
                Err(error @ Error::Unreachable(_)) => self.pause(error).await?,
                Err(error) => {
                    self.unsure = false;
                    match error.reason() {
                        "draining" | "invalid" => return Err(error),
                        // The agent has let us wait for a slot; for anything else we wait.
                        "no_slot" | "no_lease" if !self.is_over() => {}
                        _ => self.pause(error).await?,
                    }
                }
            }
        }
    }

    async fn ask_once(&mut self, client: &mut Client) -> Result<wire::BeginJobResponse, Error> {
        let asks = self.inner.asks.clone();
        let _turn = asks.acquire().await.expect("it is never closed");
        let wait = self.left().map_or(ASK_MAX, |left| left.min(ASK_MAX));
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let request = wire::BeginJobRequest { job_id: self.id.clone(), wait_ms };
        self.unsure = true;
        answer(client.begin_job(request), wait).await
    }

    /// A process that took over while this one answered was not told of the job: it is asked too.
    fn runs_in(&mut self, era: u64) -> bool {
        let runs = self.inner.shared.change(|state| {
            let same = state.era == era;
            if same {
                state.running.insert(self.id.clone());
            }
            same
        });
        self.unsure = !runs;
        runs
    }

    /// Waits until the agent may be asked.
    async fn link(&self) -> Result<(u64, Client), Error> {
        let ready = self.inner.shared.until(|state: &mut State| {
            if state.closed {
                return Some(Err(Error::Closed));
            }
            if state.draining {
                return Some(Err(Error::Draining));
            }
            // An end of the same id that is still owed would end this one.
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

impl Drop for Asking {
    fn drop(&mut self) {
        self.inner.shared.change(|state| {
            state.asking.remove(&self.id);
            if self.unsure {
                state.ended.insert(self.id.clone());
            }
        });
    }
}
