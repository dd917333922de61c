//! The adapter `command`: programs of the user's count and size a worker's jobs, and start and
//! stop its streams.
//!
//! Invariant: a size is in effect when the program that was told of it has ended with 0, and not
//! before.

mod program;
mod streams;

use std::time::Duration;

use anyhow::{Context, bail};
use tokio::task::JoinHandle;

use super::bound::Bound;
use super::counted::{CountedWorker, Kind, Need, Sight, Target};
use crate::config::{CommandAdapter, JobPrograms};
use crate::driver::Door;
use crate::init::Reaper;
use program::Program;
use streams::Streams;

/// Starts what runs the programs: for an agent that remembers nothing of its worker, or that an
/// agent before it has told to run at most `obeyed` jobs.
pub(crate) async fn start(
    adapter: CommandAdapter,
    door: &Door,
    reaper: &Reaper,
    forgot: bool,
    obeyed: Option<u32>,
) -> Option<JoinHandle<()>> {
    let CommandAdapter { jobs, streams, timeout, interval } = adapter;
    if let Some(programs) = streams {
        tokio::spawn(Streams::new(programs, timeout, reaper.clone(), door.clone()).run());
    }
    match jobs {
        Some(jobs) => {
            let worker = CommandWorker::new(jobs, timeout, reaper.clone(), obeyed);
            let kind = Kind::Command(worker);
            Some(tokio::spawn(CountedWorker::new(kind, interval, door.clone()).run()))
        }
        None if forgot => {
            // A worker that only consumes streams runs no jobs: somebody has to say so.
            if let Err(why) = door.start_anew().await {
                tracing::warn!(why, "that no jobs run could not be noted");
            }
            None
        }
        None => None,
    }
}

/// A worker whose jobs programs count and size.
#[derive(Debug)]
pub(crate) struct CommandWorker {
    programs: JobPrograms,
    timeout: Duration,
    reaper: Reaper,
    bound: Bound,
    /// It has taken the drain's begin.
    drained: bool,
}

impl CommandWorker {
    /// A worker that an agent before this one has told at most this size.
    pub(crate) fn new(
        programs: JobPrograms,
        timeout: Duration,
        reaper: Reaper,
        most: Option<u32>,
    ) -> Self {
        let bound = Bound::inherited(most);
        Self { programs, timeout, reaper, bound, drained: false }
    }

    /// Counts its jobs.
    pub(super) async fn look(&mut self) -> anyhow::Result<Sight> {
        let counted = self.count().await;
        if counted.is_err() {
            // Its process may be another when it can be counted again.
            self.bound.forget();
            self.drained = false;
        }
        counted.map(|running| self.bound.sight(running))
    }

    /// What to tell it next.
    pub(super) fn need(&self, target: Target) -> Need {
        match target.draining && self.programs.drain.is_some() {
            true if self.drained => Need::Nothing,
            true => Need::Order { size: 0, grows: false },
            false => self.bound.need(target),
        }
    }

    /// Tells it.
    pub(super) async fn order(&mut self, size: u32, target: Target) -> anyhow::Result<()> {
        let drain = self.programs.drain.as_ref().filter(|_| target.draining);
        let (option, line) = match drain {
            Some(drain) => ("--command-drain", drain),
            None => ("--command-resize", &self.programs.resize),
        };
        let environment = vec![("LEASEHOLD_POOL_SIZE", size.to_string())];
        let program = Program { option, line: line.clone(), environment, timeout: self.timeout };
        self.bound.sending(size);
        program.run(&self.reaper).await?;
        self.bound.kept(size);
        self.drained = target.draining;
        tracing::info!(size, draining = target.draining, "the worker was told its pool size");
        Ok(())
    }

    async fn count(&self) -> anyhow::Result<u32> {
        let (option, line) = ("--command-count", self.programs.count.clone());
        let program = Program { option, line, environment: Vec::new(), timeout: self.timeout };
        let text = program.run(&self.reaper).await?;
        let text = text.trim();
        if text.is_empty() {
            bail!("{option} has printed nothing, where a number of jobs should be");
        }
        let start: String = text.chars().take(80).collect();
        text.parse().with_context(|| format!("{option} has printed {start:?}, no number of jobs"))
    }
}
