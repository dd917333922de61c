//! The worker as a child of its agent: started in its own process group (so that Ctrl-C reaches
//! only the agent), adopted by the successor of a killed agent, and never started twice.
//!
//! Invariant: a child runs only after it is recorded. So the record names every child that may run,
//! whenever its agent was killed.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::oneshot;

use crate::config::{Child, ChildSignal};
use crate::launcher::{Launch, is_launcher};
use crate::process_group::ProcessGroup;
use crate::reaper::{Exit, Process, Reaper};
use crate::state_dir::{self, boot_id};
use crate::watchdog::Watchdog;
use crate::watchdog::WatchedGroup;

/// The exit code of an adopted child: the real one is unknown.
const UNKNOWN_EXIT: Exit = Exit(1);
/// How often the agent checks whether an adopted child has exited.
const ADOPTED_POLL: Duration = Duration::from_millis(200);
/// How often the agent checks whether a launcher has become the program or exited.
const LAUNCH_POLL: Duration = Duration::from_millis(5);
/// The most bytes of the record that are read.
const RECORD_BYTES_MAX: u64 = 4096;

/// The child's process id, shared with those that signal it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChildPid(Arc<Mutex<Option<Pid>>>);

impl ChildPid {
    /// The process, while there is one.
    pub(crate) fn get(&self) -> Option<Pid> {
        *self.0.lock().expect("the lock is not poisoned")
    }

    fn set(&self, pid: Option<Pid>) {
        *self.0.lock().expect("the lock is not poisoned") = pid;
    }

    /// Sends a signal to the child only, if it runs.
    pub(crate) fn send(&self, signal: Signal) {
        self.send_by(kill_process, signal);
    }

    fn send_by(&self, kill: fn(Pid, Signal) -> rustix::io::Result<()>, signal: Signal) {
        let Some(pid) = self.get() else { return };
        let (pid_shown, number) = (pid.as_raw_pid(), signal.as_raw());
        match kill(pid, signal) {
            Ok(()) => tracing::debug!(pid = pid_shown, signal = number, "signal sent"),
            Err(error) => {
                tracing::warn!(pid = pid_shown, signal = number, %error, "cannot send the signal")
            }
        }
    }
}

/// Why the child was not started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// The record could not be written: try again later.
    NotRecorded(anyhow::Error),
    /// The program cannot be run.
    Failed(anyhow::Error),
}

/// Starts and restarts the child.
#[derive(Debug)]
pub(crate) struct ChildRunner {
    spec: Child,
    environment: Vec<(&'static str, String)>,
    /// Where the child is recorded, so that a successor finds it.
    record: Option<PathBuf>,
    reaper: Reaper,
    pid: ChildPid,
    /// The child reads the file of the adapter `file`.
    reads_file: bool,
    /// Kills the child if this agent exits first, if so configured.
    watchdog: Option<Watchdog>,
}

impl ChildRunner {
    pub(crate) fn new(
        spec: Child,
        environment: Vec<(&'static str, String)>,
        record: Option<PathBuf>,
        reaper: Reaper,
        pid: ChildPid,
        reads_file: bool,
    ) -> Self {
        Self { spec, environment, record, reaper, pid, reads_file, watchdog: None }
    }

    /// Whether the child reads the file of the adapter `file`, which must be current at its start.
    pub(crate) fn reads_file(&self) -> bool {
        self.reads_file
    }

    /// The configuration of the child.
    pub(crate) fn spec(&self) -> &Child {
        &self.spec
    }

    /// Sends a signal to the child, or to its whole process group if so configured.
    pub(crate) fn end(&self, signal: Signal) {
        self.pid.send_by(
            match self.spec.signal {
                ChildSignal::Group => kill_process_group,
                ChildSignal::Process => kill_process,
            },
            signal,
        );
    }

    /// The process id of the running child.
    pub(crate) fn pid(&self) -> &ChildPid {
        &self.pid
    }

    /// Starts the child. It is recorded before its program runs.
    pub(crate) async fn spawn(&mut self) -> Result<Process, NotStarted> {
        let (launch, process) =
            Launch::prepare(&self.spec.command, &self.environment, &self.reaper)
                .map_err(|error| self.failed(error))?;
        let group = ProcessGroup::of(process.pid)
            .ok_or_else(|| self.failed(anyhow!("its process has exited at once")))?;
        // On failure the launch is dropped, and its process exits.
        self.write_record(&group).map_err(NotStarted::NotRecorded)?;
        self.watchdog(&group).await.map_err(|error| self.failed(error))?;
        let stdin = std::io::stdin();
        // The kernel stops a background group that reads from the terminal.
        let input = (!stdin.is_terminal()).then(|| stdin.as_fd());
        if let Err(error) = launch.exec(input).await {
            group.signal(Signal::KILL);
            let _ = process.exit.await;
            self.note_exit();
            return Err(self.failed(error));
        }
        self.pid.set(Some(process.pid));
        let (pid, program) = (process.pid.as_raw_pid(), self.spec.command[0].display());
        tracing::info!(pid, %program, "child started");
        Ok(process)
    }

    fn failed(&self, error: anyhow::Error) -> NotStarted {
        let program = self.spec.command[0].display();
        NotStarted::Failed(error.context(format!("cannot start {program}")))
    }

    /// Lets a watchdog kill the process group of the child when this agent has ended for any
    /// reason.
    async fn watchdog(&mut self, group: &ProcessGroup) -> anyhow::Result<()> {
        if !self.spec.dies_with_agent {
            return Ok(());
        }
        let watchdog = match self.watchdog.take().filter(|watchdog| !watchdog.has_ended()) {
            Some(watchdog) => watchdog,
            None => Watchdog::start(&self.reaper, false)?,
        };
        let watchdog = self.watchdog.insert(watchdog);
        watchdog.watch(vec![WatchedGroup { group: group.clone(), end: None }]);
        watchdog.acknowledged().await
    }

    /// Waits until the watchdog of the child has exited unexpectedly.
    pub(crate) async fn watchdog_lost(&mut self) {
        match &mut self.watchdog {
            Some(watchdog) => watchdog.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Starts another watchdog.
    pub(crate) async fn restart_watchdog(&mut self) {
        self.watchdog = None;
        let Some(group) = self.pid.get().and_then(ProcessGroup::of) else { return };
        match self.watchdog(&group).await {
            Ok(()) => tracing::warn!(
                "the watchdog of the child had exited: the agent started another one"
            ),
            Err(error) => {
                tracing::error!(
                    "cannot start a watchdog, so the child may outlive this agent: {error:#}"
                );
            }
        }
    }

    /// Notes that the child has exited.
    pub(crate) fn note_exit(&self) {
        self.pid.set(None);
        if let Some(watchdog) = &self.watchdog {
            watchdog.watch(Vec::new());
        }
        if let Some(Err(error)) = self.record.as_deref().map(state_dir::remove) {
            tracing::warn!(%error, "cannot remove the record of the child, which has exited");
        }
    }

    /// Adopts the child of a previous agent, or the remaining processes of its group, if any runs.
    ///
    /// # Errors
    /// If the record cannot be read: it is unknown whether a child runs.
    pub(crate) async fn adopt(&mut self) -> anyhow::Result<Option<Process>> {
        let Some(group) = self.read()? else { return Ok(None) };
        let Some(pid) = Pid::from_raw(group.id) else { return Ok(None) };
        // A launcher without an agent exits, unless the agent had already told it to run the
        // program.
        while group.has_leader() && is_launcher(pid) {
            tokio::time::sleep(LAUNCH_POLL).await;
        }
        let led = group.has_leader();
        match led {
            true => {
                tracing::warn!(
                    pid = group.id,
                    "the previous agent's child still runs: this agent adopts it"
                );
            }
            false if group.exists() => tracing::warn!(
                group = group.id,
                "the previous agent's child has exited, and a process that it started still runs: \
                 COMMAND starts when this process group is empty"
            ),
            false => return Ok(None),
        }
        if let Err(error) = self.watchdog(&group).await {
            tracing::error!(
                "cannot start a watchdog, so the child may outlive this agent: {error:#}"
            );
        }
        let (sender, exit) = oneshot::channel();
        tokio::spawn(async move {
            // The kernel reports exits only to the parent process.
            while if led { group.has_leader() } else { group.exists() } {
                tokio::time::sleep(ADOPTED_POLL).await;
            }
            let _ = sender.send(UNKNOWN_EXIT);
        });
        self.pid.set(Some(pid));
        Ok(Some(Process { pid, exit }))
    }

    fn write_record(&self, group: &ProcessGroup) -> anyhow::Result<()> {
        let Some(path) = &self.record else { return Ok(()) };
        let ProcessGroup { id, started } = group;
        let line = format!("{id} {started} {}\n", boot_id().unwrap_or_default());
        let written = state_dir::replace(path, line.as_bytes());
        written.map(drop).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The recorded child, if it was started under this boot.
    fn read(&self) -> anyhow::Result<Option<ProcessGroup>> {
        let Some(path) = &self.record else { return Ok(None) };
        Ok(match ChildRecord::read(path)? {
            ChildRecord::Child(group) => Some(group),
            ChildRecord::Nothing | ChildRecord::OtherBoot => None,
        })
    }
}

/// The record of the child.
#[derive(Debug)]
pub(crate) enum ChildRecord {
    /// No child, or its exit was noted.
    Nothing,
    /// A child of an earlier boot: it has ended.
    OtherBoot,
    /// The process group of a child that may run.
    Child(ProcessGroup),
}

impl ChildRecord {
    /// Reads the record at `path`.
    ///
    /// # Errors
    /// If it cannot be read or is invalid.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = state_dir::read(path, RECORD_BYTES_MAX)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let Some(text) = text else { return Ok(Self::Nothing) };
        let text = String::from_utf8_lossy(&text);
        let words: Vec<&str> = text.split_whitespace().collect();
        let (id, started, boot) = match words[..] {
            [id, started, boot] => (id, started, Some(boot)),
            // Written by an older version, without a boot id.
            [id, started] => (id, started, None),
            _ => ("", "", None),
        };
        let Some(id) = id.parse().ok().filter(|id| *id > 1) else {
            bail!(
                "cannot parse {}, the record of a process of COMMAND that may still run: stop that \
                 process if it runs, then remove the file",
                path.display()
            );
        };
        Ok(match boot.is_none_or(|boot| boot_id().as_deref() == Some(boot)) {
            true => Self::Child(ProcessGroup { id, started: started.to_owned() }),
            false => Self::OtherBoot,
        })
    }
}
