//! The streams of a worker that commands start and stop.
//!
//! Invariant: a stream is released only after the command that stops it has exited with 0, and at
//! most one command runs per stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use leasehold_agent_core::{Lease, RequestError};
use leasehold_types::{StreamKey, Token};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backoff;
use crate::clock;
use crate::config::StreamPrograms;
use crate::driver::{DriverHandle, DriverRequest, DriverStopped};
use crate::log_limiter::{Admitted, LogLimiter};
use crate::reaper::Reaper;
use crate::worker::user_command::UserCommand;

/// Concurrent commands.
const PROGRAMS_MAX: usize = 8;

/// Starts and stops streams with commands.
#[derive(Debug)]
pub(crate) struct Streams {
    programs: StreamPrograms,
    timeout: Duration,
    reaper: Reaper,
    driver: DriverHandle,
    streams: BTreeMap<StreamKey, Stream>,
    running: JoinSet<Ended>,
    log_limiter: LogLimiter,
}

#[derive(Debug)]
struct Stream {
    token: Token,
    /// The worker must consume it.
    wanted: bool,
    state: State,
    failures: u32,
    retry_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not started, as far as this agent knows.
    Stopped,
    Started,
    /// A command runs for it.
    Changing,
}

/// The result of a command.
#[derive(Debug)]
struct Ended {
    stream: StreamKey,
    starts: bool,
    result: anyhow::Result<String>,
}

impl Streams {
    /// Starts and stops the streams of this driver.
    pub(crate) fn new(
        programs: StreamPrograms,
        timeout: Duration,
        reaper: Reaper,
        driver: DriverHandle,
    ) -> Self {
        let (streams, running) = (BTreeMap::new(), JoinSet::new());
        Self {
            programs,
            timeout,
            reaper,
            driver,
            streams,
            running,
            log_limiter: LogLimiter::default(),
        }
    }

    /// Runs until the driver ends.
    pub(crate) async fn run(mut self) {
        let mut changes = self.driver.changes();
        changes.mark_changed();
        while self.turn(&mut changes).await.is_ok() {}
    }

    async fn turn(
        &mut self,
        changes: &mut tokio::sync::watch::Receiver<u64>,
    ) -> Result<(), DriverStopped> {
        let retry = self.streams.values().filter_map(|stream| stream.retry_at).min();
        // At the limit, wait for the end of a command.
        let retry = retry.filter(|_| self.running.len() < PROGRAMS_MAX);
        tokio::select! {
            changed = changes.changed() => changed.map_err(|_| DriverStopped)?,
            Some(ended) = self.running.join_next() => {
                self.ended(ended.expect("the task does not panic")).await?;
            }
            () = backoff::until(retry) => {}
        }
        let lease = self.lease().await?;
        self.apply(&lease);
        self.start_programs();
        Ok(())
    }

    /// The lease. It counts as shown to the worker only if it contains a stream that is new here.
    async fn lease(&self) -> Result<Arc<Lease>, DriverStopped> {
        let lease = self.driver.peek().await?;
        let known = |held: &leasehold_agent_core::StreamLease| {
            self.streams.get(&held.stream).is_some_and(|stream| stream.token == held.token)
        };
        if lease.streams.iter().all(known) {
            return Ok(lease);
        }
        Ok(self.driver.lease().await?.lease)
    }

    fn apply(&mut self, lease: &Lease) {
        let mut wanted = BTreeSet::new();
        for held in &lease.streams {
            if !lease.draining && held.revoked.is_none() {
                wanted.insert((&held.stream, held.token));
            }
            // A stream under an older token is stopped first.
            self.streams.entry(held.stream.clone()).or_insert(Stream {
                token: held.token,
                wanted: true,
                state: State::Stopped,
                failures: 0,
                retry_at: None,
            });
        }
        for (key, stream) in &mut self.streams {
            let now = wanted.contains(&(key, stream.token));
            if now != stream.wanted {
                (stream.wanted, stream.failures, stream.retry_at) = (now, 0, None);
            }
        }
    }

    fn start_programs(&mut self) {
        let now = Instant::now();
        let due = self.streams.iter_mut().filter(|(_, stream)| stream.is_due(now));
        let free = PROGRAMS_MAX.saturating_sub(self.running.len());
        for (key, stream) in due.take(free) {
            let starts = stream.wanted;
            let (option, line) = if starts {
                ("--command-stream-start", &self.programs.start)
            } else {
                ("--command-stream-stop", &self.programs.stop)
            };
            let environment = vec![
                ("LEASEHOLD_SET", key.set.to_string()),
                ("LEASEHOLD_STREAM", key.stream.to_string()),
                ("LEASEHOLD_TOKEN", stream.token.to_string()),
            ];
            let program =
                UserCommand { option, line: line.clone(), environment, timeout: self.timeout };
            stream.state = State::Changing;
            stream.retry_at = None;
            let (reaper, stream) = (self.reaper.clone(), key.clone());
            self.running.spawn(async move {
                let result = program.run(&reaper).await;
                Ended { stream, starts, result }
            });
        }
    }

    async fn ended(&mut self, ended: Ended) -> Result<(), DriverStopped> {
        let Ended { stream: key, starts, result } = ended;
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(()) };
        let token = stream.token;
        let result = match result {
            Ok(_) if !starts => release(&self.driver, &key, token).await?,
            other => other.map(drop),
        };
        match result {
            Ok(()) if starts => {
                tracing::info!(stream = %key, %token, "started the stream");
                (stream.state, stream.failures) = (State::Started, 0);
            }
            Ok(()) => {
                tracing::info!(stream = %key, %token, "stopped the stream");
                self.streams.remove(&key);
            }
            Err(error) => {
                // A command that was killed may have started the stream: stop it.
                stream.state = if starts { State::Stopped } else { State::Started };
                stream.back_off();
                let why = format!("{error:#}");
                self.driver.metrics().worker_failures.fetch_add(1, Relaxed);
                let about = key.to_string();
                let admitted = self.log_limiter.admit(&about, &why, clock::now());
                if let Some(Admitted { suppressed }) = admitted {
                    tracing::error!(
                        stream = about,
                        why,
                        suppressed,
                        "the command of a stream has failed"
                    );
                }
            }
        }
        Ok(())
    }
}

impl Stream {
    fn is_due(&self, now: Instant) -> bool {
        let due = match self.state {
            State::Changing => false,
            State::Started => !self.wanted,
            // A previous agent may have started it, so an unwanted stream is stopped as well.
            State::Stopped => true,
        };
        due && self.retry_at.is_none_or(|at| at <= now)
    }

    fn back_off(&mut self) {
        let wait = backoff::RETRY.wait(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(Instant::now() + wait);
    }
}

async fn release(
    driver: &DriverHandle,
    stream: &StreamKey,
    token: Token,
) -> Result<anyhow::Result<()>, DriverStopped> {
    let stream = stream.clone();
    match driver.ask(|reply| DriverRequest::Release { stream, token, reply }).await? {
        Ok(()) | Err(RequestError::NotHeld { .. }) => Ok(Ok(())),
        Err(refused) => Ok(Err(anyhow::anyhow!(crate::refusal::message(&refused)))),
    }
}
