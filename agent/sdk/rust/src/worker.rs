//! The worker's side of its leases: jobs to run, streams and bindings to own, and the end of all.

use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use crate::address::Address;
use crate::binding::Binding;
use crate::clock;
use crate::error::Error;
use crate::job::Job;
use crate::keeper::keep_time;
use crate::lease::{Bindings, Owning, Streams};
use crate::link::{Link, PAUSE_MAX, PAUSE_MIN, Teller, answer};
use crate::state::{Kind, Shared};
use crate::stream::Stream;

/// Questions for a slot that are on their way at once; more wait here. The agent answers 512
/// questions at once on one connection, and ends must not wait behind those that wait for them.
const ASKS_MAX: usize = 256;
/// How long `close` waits for what the agent has not confirmed.
const CLOSE: Duration = Duration::from_secs(2);

/// How a worker meets its agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://HOST:PORT` or `unix:PATH`. Where it is none, `LEASEHOLD_ADDR`, then
    /// `LEASEHOLD_SOCKET` say where the agent is, and else it is `http://127.0.0.1:7411`.
    pub address: Option<String>,
    /// Whether this process says that the worker starts: one process of a worker does.
    pub start: bool,
    /// How long before its lease's end a stream or binding is lost, but at most a tenth of what
    /// was left at its last renewal.
    pub stop_before: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { address: None, start: true, stop_before: Duration::from_secs(1) }
    }
}

/// A worker, from its start to its drain. Clones are the same worker.
#[derive(Clone, Debug)]
pub struct Worker {
    inner: Arc<Inner>,
}

/// What lives as long as the worker, or a job or lease of it, is in somebody's hands.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) asks: Arc<Semaphore>,
    tasks: [AbortHandle; 3],
}

impl Drop for Inner {
    /// What was ended or let go last is still told, where there is a runtime to do it.
    fn drop(&mut self) {
        let (shared, tasks) = (self.shared.clone(), self.tasks.clone());
        let end = move || tasks.iter().for_each(AbortHandle::abort);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if shared.look().owes() => {
                runtime.spawn(async move {
                    let told = shared.until(|state| (!state.owes()).then_some(()));
                    let _ = tokio::time::timeout(CLOSE, told).await;
                    end();
                });
            }
            _ => end(),
        }
    }
}

impl Worker {
    /// Meets the agent that the environment names. Waits until it is there.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub async fn connect() -> Result<Self, Error> {
        Self::connect_with(Options::default()).await
    }

    /// The same with options.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub async fn connect_with(options: Options) -> Result<Self, Error> {
        let address = match &options.address {
            Some(text) => Address::parse(text)?,
            None => Address::of_environment()?,
        };
        let start_id = options.start.then(|| format!("{:032x}", fastrand::u128(..)));
        let shared = Arc::new(Shared::new(options.stop_before));
        let link = Link { address, start_id: start_id.clone(), shared: shared.clone() };
        let teller = Teller { start_id, shared: shared.clone() };
        let tasks = [
            tokio::spawn(link.follow_always()).abort_handle(),
            tokio::spawn(teller.tell_always()).abort_handle(),
            tokio::spawn(keep_time(shared.clone())).abort_handle(),
        ];
        let asks = Arc::new(Semaphore::new(ASKS_MAX));
        let worker = Self { inner: Arc::new(Inner { shared, asks, tasks }) };
        worker.inner.shared.until(|state| state.client.as_ref().map(drop)).await;
        Ok(worker)
    }

    /// Waits for a slot, and gives the job that may run now.
    ///
    /// # Errors
    /// [`Error::Draining`], [`Error::Refused`] for an id that is invalid, [`Error::Runs`] and
    /// [`Error::Closed`].
    pub async fn job(&self, id: impl Into<String>) -> Result<Job, Error> {
        Job::begin(self.inner.clone(), id.into(), None).await
    }

    /// The same, for as long as `wait`.
    ///
    /// # Errors
    /// Those of [`Self::job`]; [`Error::Refused`] where there was no slot in time, and
    /// [`Error::Unreachable`] where the agent did not answer in time.
    pub async fn job_within(&self, id: impl Into<String>, wait: Duration) -> Result<Job, Error> {
        Job::begin(self.inner.clone(), id.into(), Some(clock::now() + wait)).await
    }

    /// Waits for a slot, and gives a job with an id of its own; none once the worker drains.
    pub async fn next_job(&self) -> Option<Job> {
        // A new id runs nowhere and is a valid one: what is left is the end of all jobs.
        self.job(format!("{:032x}", fastrand::u128(..))).await.ok()
    }

    /// Each stream once this worker owns it, until the worker drains. A stream is owned until it
    /// is dropped.
    #[must_use]
    pub fn streams(&self) -> Streams {
        Streams::new(self.inner.clone(), Kind::Stream, Stream::of)
    }

    /// Each share of a pipeline's node once this worker owns it, until the worker drains. A binding
    /// is owned until it is dropped.
    #[must_use]
    pub fn bindings(&self) -> Bindings {
        Bindings::new(self.inner.clone(), Kind::Binding, Binding::of)
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

    /// The same for each binding.
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
        self.inner.shared.look().draining
    }

    /// Begins a drain; how many jobs run. The agent is asked until it answers.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn drain(&self) -> Result<u32, Error> {
        self.ask_to_drain(false, Duration::ZERO).await
    }

    /// Begins a drain, and ends with it; how many jobs outlived its deadline.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn drain_to_end(&self) -> Result<u32, Error> {
        self.ask_to_drain(true, Duration::MAX).await
    }

    /// Ends all of this, once the agent has confirmed everything, or after two seconds. Streams and
    /// bindings that are still in hand are lost.
    pub async fn close(self) {
        let shared = &self.inner.shared;
        shared.change(|state| {
            state.closed = true;
            for hand in state.in_hand.values_mut() {
                hand.lose("the worker was closed");
            }
        });
        let told = shared.until(|state| {
            let nothing = !state.owes() && state.in_hand.is_empty();
            nothing.then_some(())
        });
        if tokio::time::timeout(CLOSE, told).await.is_err() {
            tracing::warn!("closed with ends or releases that the agent has not confirmed");
        }
    }

    async fn ask_to_drain(&self, wait: bool, patience: Duration) -> Result<u32, Error> {
        let mut pause = PAUSE_MIN;
        loop {
            let client = self.inner.shared.until(|state| match state.closed {
                true => Some(Err(Error::Closed)),
                false => state.client.clone().map(Ok),
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
