//! The adapter `process`: one program per stream, started when the lease is granted and stopped
//! before it ends.
//!
//! Invariant: at most one program runs per stream, only under a valid lease, and no stream is
//! released while a process of its program runs.

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
pub(crate) use record::{Leftovers, check_ended};
use supervisor::Supervisor;

/// What the adapter needs to start.
#[derive(Debug)]
pub(crate) struct ProcessContext {
    pub(crate) adapter: ProcessAdapter,
    /// The environment of each program.
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) driver: DriverHandle,
    pub(crate) reaper: Reaper,
    /// What a previous agent left running.
    pub(crate) leftovers: Leftovers,
    /// The journal is empty.
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

    /// Kills all programs, and returns when none of their processes runs.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.task.await.context("the adapter has failed")
    }
}
