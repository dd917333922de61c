//! The adapter `command`: the user's commands count and size a worker's jobs, and start and stop
//! its streams.
//!
//! Invariant: a size is in effect when the command that sets it has exited with 0, and not
//! before.

mod streams;

use std::time::Duration;

use anyhow::{Context, bail};

use super::polled::Polled;
use super::sizing::{Adjustment, Observation, SizeBound, Target};
use super::user_command::UserCommand;
use crate::backoff;
use crate::config::JobPrograms;
use crate::reaper::Reaper;
pub(super) use streams::Streams;

/// A worker whose jobs are counted and sized by commands.
#[derive(Debug)]
pub(crate) struct CommandWorker {
    programs: JobPrograms,
    timeout: Duration,
    reaper: Reaper,
    bound: SizeBound,
    /// The command for the drain has succeeded.
    drained: bool,
}

impl CommandWorker {
    /// A worker whose pool size a previous agent has set to at most `most`.
    pub(crate) fn new(
        programs: JobPrograms,
        timeout: Duration,
        reaper: Reaper,
        most: Option<u32>,
    ) -> Self {
        let bound = SizeBound::inherited(most);
        Self { programs, timeout, reaper, bound, drained: false }
    }

    async fn count(&self) -> anyhow::Result<u32> {
        let (option, line) = ("--command-count", self.programs.count.clone());
        let program = UserCommand { option, line, environment: Vec::new(), timeout: self.timeout };
        count_in(option, &program.run(&self.reaper).await?)
    }
}

/// The number of jobs that a command has printed.
pub(crate) fn count_in(option: &str, text: &str) -> anyhow::Result<u32> {
    let text = text.trim();
    if text.is_empty() {
        bail!("{option} printed nothing: it must print the number of running jobs");
    }
    let start: String = text.chars().take(80).collect();
    text.parse().with_context(|| {
        format!("{option} printed {start:?}: it must print the number of running jobs")
    })
}

impl Polled for CommandWorker {
    async fn poll(&mut self) -> anyhow::Result<Observation> {
        let counted = self.count().await;
        if counted.is_err() {
            // The worker may have restarted when it can be counted again.
            self.bound.forget();
            self.drained = false;
        }
        counted.map(|running| self.bound.observation(running))
    }

    fn adjustment(&self, target: Target) -> Adjustment {
        match target.draining && self.programs.drain.is_some() {
            true if self.drained => Adjustment::Nothing,
            true => Adjustment::Order { size: 0, grows: false },
            false => self.bound.adjustment(target),
        }
    }

    async fn order(&mut self, size: u32, target: Target) -> anyhow::Result<()> {
        let drain = self.programs.drain.as_ref().filter(|_| target.draining);
        let (option, line) = match drain {
            Some(drain) => ("--command-drain", drain),
            None => ("--command-resize", &self.programs.resize),
        };
        let environment = vec![("LEASEHOLD_POOL_SIZE", size.to_string())];
        let program =
            UserCommand { option, line: line.clone(), environment, timeout: self.timeout };
        self.bound.sending(size);
        program.run(&self.reaper).await?;
        self.bound.confirmed(size);
        self.drained = target.draining;
        tracing::info!(size, draining = target.draining, "set the worker's pool size");
        Ok(())
    }

    // Running a command costs more than sending a request.
    fn retry_pause(&self, failures: u32) -> Duration {
        backoff::RETRY.wait(failures)
    }
}
