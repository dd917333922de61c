//! A worker that is a shell script, in a folder of its own.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use super::coordinator::Coordinator;
use super::process::{Agent, pids, read, runs, until};

/// What a script begins with, so that its processes hold a lock while any of them runs, and two
/// workers that run at once are recorded.
pub const ALONE: &str = "exec 9>> lock; flock -n 9 || echo two >> twice";

/// A folder for an agent's state and its worker. The processes of the worker, whose ids are in the
/// file `starts`, end with it.
pub struct WorkerFolder(tempfile::TempDir);

impl WorkerFolder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// This script, run in the folder.
    pub fn script(&self, script: &str) -> String {
        format!("cd {}; {script}", self.0.path().display())
    }

    /// An agent that runs this script, which adds the ids of the worker's processes to `starts`.
    pub async fn agent(&self, coordinator: &Coordinator, more: &[&str], script: &str) -> Agent {
        let (state, script) = (self.path("state").display().to_string(), self.script(script));
        let args = [&["--state-dir", &state], more, &["--", "sh", "-c", &script]].concat();
        Agent::start(coordinator, &args).await
    }

    /// All processes that were started.
    pub fn started(&self) -> Vec<Pid> {
        pids(&self.path("starts"))
    }

    /// Waits until as many processes were started, and returns all.
    pub async fn until_started(&self, count: usize) -> Vec<Pid> {
        let is_whole = || read(&self.path("starts")).ends_with('\n');
        until("it is started", || self.started().len() >= count && is_whole()).await;
        self.started()
    }

    pub fn running(&self) -> usize {
        self.started().iter().filter(|pid| runs(**pid)).count()
    }

    /// Whether two workers never ran at once, if the script begins with [`ALONE`].
    pub fn ran_alone(&self) -> bool {
        read(&self.path("twice")).is_empty()
    }

    pub fn kill_all(&self) {
        for pid in self.started() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for WorkerFolder {
    fn drop(&mut self) {
        self.kill_all();
    }
}
