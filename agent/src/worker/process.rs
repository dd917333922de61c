//! The adapter `process`: one program for each stream, started when its lease comes and ended
//! before it goes.
//!
//! Invariant: of one stream at most one program runs, none without a live lease, and no stream is
//! released while anything of its program runs.

mod action;
mod program;
mod record;
mod supervisor;

use anyhow::Context;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::ProcessAdapter;
use crate::driver::DriverHandle;
use crate::reaper::Reaper;
pub(crate) use record::{Leftovers, first_running};
use supervisor::Supervisor;

/// What the adapter is started with.
#[derive(Debug)]
pub(crate) struct ProcessContext {
    pub(crate) adapter: ProcessAdapter,
    /// The environment of every program.
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) driver: DriverHandle,
    pub(crate) reaper: Reaper,
    /// What a previous agent has left running.
    pub(crate) leftovers: Leftovers,
    /// This agent remembers nothing.
    pub(crate) no_memory: bool,
}

/// The task of the adapter.
#[derive(Debug)]
pub(crate) struct ProcessWorker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl ProcessWorker {
    /// Starts it.
    pub(crate) fn start(context: ProcessContext) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(Supervisor::new(context).run(stopped)) }
    }

    /// Kills every program that is left, and ends once nothing of them runs.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.task.await.context("the adapter has failed")
    }
}
