//! Starts and stops the configured adapter.
//!
//! Invariant: programs that a previous agent left running have ended or are adopted before this
//! agent starts anything else.

use std::time::Duration;

use leasehold_agent_core::Memory;
use leasehold_types::{StreamKey, Token, WorkerName};
use tokio::task::JoinHandle;

use super::check::WorkerHealth;
use super::command::{CommandWorker, Streams};
use super::file::{FileWorker, Remembered};
use super::http::HttpWorker;
use super::polled::{Polled, PolledWorker};
use super::process::{self, Leftovers, ProcessWorker};
use super::travis::Travis;
use crate::child::ChildPid;
use crate::clock;
use crate::config::{Adapter, CommandAdapter};
use crate::driver::DriverHandle;
use crate::reaper::Reaper;
use crate::state_dir::StateDir;

/// How long the last order to a drained worker may take.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// What a previous agent left.
#[derive(Debug)]
pub(crate) struct Predecessor {
    /// The journal is empty.
    no_memory: bool,
    /// The pool size that a worker with its own count may still use.
    in_effect: Option<u32>,
    /// Running programs of streams.
    leftovers: Leftovers,
}

/// What an adapter needs to start.
#[derive(Debug)]
pub(crate) struct AdapterContext<'a> {
    pub(crate) worker: &'a WorkerName,
    pub(crate) driver: &'a DriverHandle,
    pub(crate) health: &'a WorkerHealth,
    pub(crate) reaper: &'a Reaper,
    /// The worker's process, if it is the agent's child.
    pub(crate) child: &'a ChildPid,
    /// The environment of each program.
    pub(crate) environment: &'a [(&'static str, String)],
    pub(crate) state_dir: Option<&'a StateDir>,
    pub(crate) predecessor: Predecessor,
}

/// A running adapter.
#[derive(Debug, Default)]
pub(crate) struct RunningAdapter {
    programs: Option<ProcessWorker>,
    polled: Option<JoinHandle<()>>,
}

impl Predecessor {
    /// Finds what the previous agent left. Programs of streams keep running only if the journal has
    /// their streams and this adapter runs programs; the others are killed.
    pub(crate) async fn find(
        adapter: &Adapter,
        memory: &Memory,
        dir: Option<&StateDir>,
    ) -> anyhow::Result<Self> {
        let runs_programs = matches!(adapter, Adapter::Process(_));
        let now = clock::now();
        let claimed = |stream: &StreamKey, token: Token| {
            let held =
                memory.streams.get(stream).filter(|held| runs_programs && held.token == token);
            held.is_some_and(|lease| lease.lives(memory.renewed_until, now))
        };
        Ok(Self {
            no_memory: memory.incarnation.is_none(),
            in_effect: memory.count.map(|(_, in_effect)| in_effect),
            leftovers: Leftovers::find(dir, claimed).await?,
        })
    }
}

impl AdapterContext<'_> {
    /// Starts the adapter.
    pub(crate) async fn start(self, adapter: &Adapter) -> RunningAdapter {
        let Predecessor { no_memory, in_effect, leftovers } = self.predecessor;
        let driver = self.driver.clone();
        let health = self.health.clone();
        let reaper = self.reaper.clone();
        match adapter.clone() {
            Adapter::Api => RunningAdapter::default(),
            Adapter::File(adapter) => {
                let remembered = Remembered { pool_size: in_effect.unwrap_or(0) };
                let remembered = (!no_memory).then_some(remembered);
                let (name, child) = (self.worker.to_string(), self.child.clone());
                let worker = FileWorker::new(name, adapter, driver, reaper, child, remembered);
                tokio::spawn(worker.run());
                RunningAdapter::default()
            }
            Adapter::Process(adapter) => {
                let environment = self.environment.to_vec();
                let context = process::ProcessContext {
                    adapter,
                    environment,
                    driver,
                    reaper,
                    leftovers,
                    no_memory,
                };
                RunningAdapter { programs: Some(ProcessWorker::start(context)), polled: None }
            }
            Adapter::Travis(adapter) => {
                let record = self.state_dir.map(|dir| dir.file("travis.json"));
                let interval = adapter.interval;
                RunningAdapter::polled(
                    Travis::new(adapter, record, in_effect),
                    interval,
                    driver,
                    health,
                )
            }
            Adapter::Http(adapter) => {
                let interval = adapter.interval;
                RunningAdapter::polled(
                    HttpWorker::new(adapter, in_effect),
                    interval,
                    driver,
                    health,
                )
            }
            Adapter::Command(adapter) => {
                let CommandAdapter { jobs, streams, timeout, interval } = adapter;
                if let Some(programs) = streams {
                    tokio::spawn(
                        Streams::new(programs, timeout, reaper.clone(), driver.clone()).run(),
                    );
                }
                match jobs {
                    Some(jobs) => {
                        let worker = CommandWorker::new(jobs, timeout, reaper, in_effect);
                        RunningAdapter::polled(worker, interval, driver, health)
                    }
                    None => {
                        // A worker that only consumes streams runs no jobs: the agent must report
                        // it.
                        if no_memory && let Err(why) = self.driver.report_no_jobs().await {
                            tracing::warn!(why, "cannot record that the worker runs no jobs");
                        }
                        RunningAdapter::default()
                    }
                }
            }
        }
    }
}

impl RunningAdapter {
    /// Starts to poll a worker at this interval.
    fn polled(
        worker: impl Polled,
        interval: Duration,
        driver: DriverHandle,
        health: WorkerHealth,
    ) -> Self {
        let worker = PolledWorker::new(worker, interval, driver, health);
        Self { polled: Some(tokio::spawn(worker.run())), programs: None }
    }

    /// Kills the remaining programs. Call it while the driver runs.
    pub(crate) async fn stop_programs(&mut self) -> anyhow::Result<()> {
        match self.programs.take() {
            Some(programs) => programs.stop().await,
            None => Ok(()),
        }
    }

    /// Waits until the last order to a drained worker is sent. Call it after the driver has
    /// stopped.
    pub(crate) async fn finish(self) {
        if let Some(polled) = self.polled {
            let _ = tokio::time::timeout(FINISH_TIMEOUT, polled).await;
        }
    }
}
