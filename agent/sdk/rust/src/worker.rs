//! The worker: it runs jobs, owns streams and bindings, drains and closes.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use tokio::task::JoinSet;

use crate::address::Address;
use crate::clock;
use crate::error::Error;
use crate::job::Job;
use crate::lease::{Binding, Bindings, Owning, Stream, Streams};
use crate::link::{PAUSE_MAX, PAUSE_MIN, answer};
use crate::owned::Kind;
use crate::session::{CLOSE, Session};

/// The shortest [`Options::beat_within`].
const BEAT_WITHIN_MIN: Duration = Duration::from_secs(1);

/// How a worker connects to its agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://HOST:PORT` or `unix:PATH`. The default is `LEASEHOLD_ADDR`, then
    /// `LEASEHOLD_SOCKET`, then `http://127.0.0.1:7411`.
    pub address: Option<String>,
    /// Whether this process announces the worker's start: one process of a worker does.
    pub start: bool,
    /// A stream or binding is lost this long before its lease ends, or a tenth of the time that
    /// was left at its last renewal if that is shorter.
    pub stop_before: Duration,
    /// The worker tells its agent that it lives. If the agent hears nothing for this long, the
    /// worker gets no job, and its streams and bindings go to other workers, until it is heard
    /// again: so a process that hangs keeps nothing. Less than one second counts as one. None for
    /// a worker that may block its runtime for longer; then its leases follow its agent.
    pub beat_within: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: None,
            start: true,
            stop_before: Duration::from_secs(1),
            beat_within: Some(Duration::from_secs(30)),
        }
    }
}

/// A worker, from its start to its drain. Clones are the same worker.
#[derive(Clone, Debug)]
pub struct Worker {
    session: Arc<Session>,
}

impl Worker {
    /// Connects to the agent that the environment names. Waits until the agent answers.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub async fn connect() -> Result<Self, Error> {
        Self::connect_with(Options::default()).await
    }

    /// Connects with options.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub async fn connect_with(options: Options) -> Result<Self, Error> {
        let address = match &options.address {
            Some(text) => Address::parse(text)?,
            None => Address::from_environment()?,
        };
        let start_id = options.start.then(|| format!("{:032x}", fastrand::u128(..)));
        let beat_within = options.beat_within.map(|within| within.max(BEAT_WITHIN_MIN));
        let session = Session::start(address, start_id, options.stop_before, beat_within);
        let worker = Self { session: Arc::new(session) };
        worker.session.shared.until(|state| state.client.as_ref().map(drop)).await;
        Ok(worker)
    }

    /// Waits for a slot, and returns the job, which may run now.
    ///
    /// # Errors
    /// [`Error::Draining`], [`Error::Refused`] for an id that is invalid, [`Error::Runs`] and
    /// [`Error::Closed`].
    pub async fn job(&self, id: impl Into<String>) -> Result<Job, Error> {
        Job::begin(self.session.clone(), id.into(), None).await
    }

    /// Waits for a slot for at most `wait`, and returns the job, which may run now.
    ///
    /// # Errors
    /// Those of [`Self::job`]; [`Error::Refused`] if no slot was free in time, and
    /// [`Error::Unreachable`] if the agent did not answer in time.
    pub async fn job_within(&self, id: impl Into<String>, wait: Duration) -> Result<Job, Error> {
        Job::begin(self.session.clone(), id.into(), Some(clock::now() + wait)).await
    }

    /// Waits for a slot, and returns a job with a new id; none once no more jobs will start, as
    /// when the worker drains. The job holds its slot until it is dropped: drop it before you wait
    /// for work, or take the work first, and then [`Self::job`].
    pub async fn next_job(&self) -> Option<Job> {
        let begun = self.job(format!("{:032x}", fastrand::u128(..))).await;
        // A new id is valid and unused.
        if let Err(error @ (Error::Refused { .. } | Error::Runs(_))) = &begun {
            tracing::error!(%error, "this worker gets no more jobs");
        }
        begun.ok()
    }

    /// Runs `handler` in a task for each job, with up to `concurrency` of them at a time as far as
    /// the pool has slots; ends when the worker has drained and the last of them has ended. A
    /// handler ends its job by dropping it, before it waits for work.
    pub async fn run_jobs<H, F>(&self, handler: H, concurrency: NonZeroUsize)
    where
        H: Fn(Job) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        while let Some(job) = self.next_job().await {
            tasks.spawn(handler(job));
            while tasks.len() >= concurrency.get()
                && let Some(ended) = tasks.join_next().await
            {
                note(ended);
            }
        }
        while let Some(ended) = tasks.join_next().await {
            note(ended);
        }
    }

    /// Yields each stream that this worker comes to own, until the worker drains. Drop a stream to
    /// release it.
    #[must_use]
    pub fn streams(&self) -> Streams {
        Streams::new(self.session.clone(), Kind::Stream, Stream::of)
    }

    /// Yields each share of a pipeline's node that this worker comes to own, until the worker
    /// drains. Drop a binding to release it.
    #[must_use]
    pub fn bindings(&self) -> Bindings {
        Bindings::new(self.session.clone(), Kind::Binding, Binding::of)
    }

    /// Runs `handler` in a task for each stream; ends when the worker has drained and all of them
    /// have ended. A handler works until [`stopping`](crate::Lease::stopping), and drops its
    /// stream.
    pub async fn run_streams<H, F>(&self, handler: H)
    where
        H: Fn(Stream) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        run_each(self.streams(), handler).await;
    }

    /// Runs `handler` in a task for each binding, as [`Self::run_streams`] does for streams.
    pub async fn run_bindings<H, F>(&self, handler: H)
    where
        H: Fn(Binding) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        run_each(self.bindings(), handler).await;
    }

    /// Whether the worker drains.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.session.shared.lock().draining
    }

    /// Starts a drain, and returns how many jobs still run. Repeats the request until the agent
    /// answers.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn drain(&self) -> Result<u32, Error> {
        self.ask_to_drain(false, Duration::ZERO).await
    }

    /// Starts a drain, waits for its end, and returns how many jobs outlived its deadline.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn drain_to_end(&self) -> Result<u32, Error> {
        self.ask_to_drain(true, Duration::MAX).await
    }

    /// Closes the worker once the agent has confirmed all ends and releases, or after two seconds.
    /// Streams and bindings that are still owned are lost.
    pub async fn close(self) {
        let shared = &self.session.shared;
        shared.change(|state| {
            state.closed = true;
            for owned in state.owned.values_mut() {
                owned.mark_lost("the worker was closed");
            }
        });
        let confirmed = shared.until(|state| {
            let nothing = !state.has_unconfirmed() && state.owned.is_empty();
            nothing.then_some(())
        });
        if tokio::time::timeout(CLOSE, confirmed).await.is_err() {
            tracing::warn!("closed with ends or releases that the agent has not confirmed");
        }
        self.session.take_promise_back().await;
    }

    async fn ask_to_drain(&self, wait: bool, patience: Duration) -> Result<u32, Error> {
        let mut pause = PAUSE_MIN;
        loop {
            let client = self.session.shared.until(|state| {
                if state.closed { Some(Err(Error::Closed)) } else { state.client.clone().map(Ok) }
            });
            let mut client = client.await?;
            match answer(client.drain(wire::DrainRequest { wait }), patience).await {
                Ok(wire::DrainResponse { jobs_left }) => return Ok(jobs_left),
                Err(error) => tracing::debug!(%error, "no answer to the drain"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

async fn run_each<T, F>(mut owning: Owning<T>, handler: impl Fn(T) -> F)
where
    T: 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    while let Some(own) = owning.next().await {
        tasks.spawn(handler(own));
        while let Some(ended) = tasks.try_join_next() {
            note(ended);
        }
    }
    while let Some(ended) = tasks.join_next().await {
        note(ended);
    }
}

fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a handler has failed");
    }
}
