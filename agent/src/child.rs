//! The worker as a child of its agent: started in its own process group (so that Ctrl-C reaches
//! only the agent), adopted by the successor of a killed agent, and never started twice.
//!
//! Invariant: a child runs only after it is recorded, and as long as any process of its group runs.
//! So the record names every child that may run, whenever its agent was killed.

mod running;
mod watching;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::Cgroup;
use crate::config::{Child, ChildSignal};
use crate::launcher::Launch;
use crate::process_group::{PidNamespace, ProcessGroup};
use crate::reaper::Reaper;
use crate::state_dir::{self, boot_id};
pub(crate) use running::{ChildEvent, RunningChild};
use watching::ChildWatchdog;
pub(crate) use watching::WatchdogEvent;

/// Stands in the record for what could not be found out.
const UNKNOWN: &str = "-";
/// The most bytes of the record that are read.
const RECORD_BYTES_MAX: u64 = 4096;
/// The file beside the record that names the child's cgroup: agents of earlier releases read the
/// record, and know no more words of it.
const CGROUP_FILE: &str = "child-cgroup";

/// The first process of the child, shared with those that signal it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChildPid(Arc<Mutex<FirstProcess>>);

#[derive(Clone, Copy, Debug, Default)]
enum FirstProcess {
    /// No child runs.
    #[default]
    None,
    Runs(Pid),
    /// It has exited, and a process that it started still runs.
    Exited,
}

impl ChildPid {
    fn set(&self, first: FirstProcess) {
        *self.0.lock().expect("the lock is not poisoned") = first;
    }

    /// Sends a signal to the first process only, if a child runs.
    ///
    /// # Errors
    /// If a child runs and the signal does not reach it.
    pub(crate) fn send(&self, signal: Signal) -> anyhow::Result<()> {
        let first = *self.0.lock().expect("the lock is not poisoned");
        let pid = match first {
            FirstProcess::None => return Ok(()),
            FirstProcess::Runs(pid) => pid,
            FirstProcess::Exited => bail!(
                "a signal for COMMAND reaches no process: its first one has exited, and others of \
                 its group still run"
            ),
        };
        let (pid_shown, number) = (pid.as_raw_pid(), signal.as_raw());
        kill_process(pid, signal)
            .with_context(|| format!("cannot send signal {number} to process {pid_shown}"))?;
        tracing::debug!(pid = pid_shown, signal = number, "signal sent");
        Ok(())
    }
}

/// Why the child was not started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// It could not be recorded, or no watchdog could be started: try again later.
    NotYet(anyhow::Error),
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
    /// The process group of the child, as long as any process of it runs.
    group: Option<ProcessGroup>,
    /// The child reads the file of the adapter `file`.
    reads_file: bool,
    /// Kills the child if this agent exits first, if so configured.
    watchdog: ChildWatchdog,
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
        let (group, watchdog) = (None, ChildWatchdog::new(reaper.clone()));
        Self { spec, environment, record, reaper, pid, group, reads_file, watchdog }
    }

    /// Whether the child reads the file of the adapter `file`, which must be current at its start.
    pub(crate) fn reads_file(&self) -> bool {
        self.reads_file
    }

    /// The configuration of the child.
    pub(crate) fn spec(&self) -> &Child {
        &self.spec
    }

    /// Sends a signal to the child's process group, or only to its first process if so configured.
    pub(crate) fn end(&self, signal: Signal) {
        match self.spec.signal {
            ChildSignal::Group => self.group.iter().for_each(|group| group.signal(signal)),
            ChildSignal::Process => self.forward(signal),
        }
    }

    /// Sends a signal to the first process of the child.
    pub(crate) fn forward(&self, signal: Signal) {
        if let Err(error) = self.pid.send(signal) {
            tracing::warn!(signal = signal.as_raw(), "{error:#}");
        }
    }

    /// Starts the child. It is recorded before its program runs.
    pub(crate) async fn spawn(&mut self) -> Result<RunningChild, NotStarted> {
        let (launch, process) =
            Launch::prepare(&self.spec.command, &self.environment, &self.reaper)
                .map_err(|error| self.failed(error))?;
        let mut group = ProcessGroup::of(process.pid)
            .ok_or_else(|| self.failed(anyhow!("its process has exited at once")))?;
        group.cgroup = self.place_of_cgroup(&group);
        // On failure the launch is dropped, and its process exits.
        self.write_record(&group).map_err(NotStarted::NotYet)?;
        group.cgroup = group
            .cgroup
            .take()
            .filter(|cgroup| cgroup.enter(group.id).inspect_err(log_no_cgroup).is_ok());
        self.group = Some(group.clone());
        if let Err(error) = self.watch(&group).await {
            self.note_exit();
            return Err(NotStarted::NotYet(error.context("cannot start a watchdog")));
        }
        let stdin = std::io::stdin();
        // The kernel stops a background group that reads from the terminal.
        let input = (!stdin.is_terminal()).then(|| stdin.as_fd());
        if let Err(error) = launch.exec(input, self.spec.dies_with_agent).await {
            group.signal(Signal::KILL);
            let _ = process.exit.await;
            self.note_exit();
            return Err(self.failed(error));
        }
        self.pid.set(FirstProcess::Runs(process.pid));
        let (pid, program) = (process.pid.as_raw_pid(), self.spec.command[0].display());
        let cgroup = group.cgroup.as_ref().map(|cgroup| cgroup.path().display().to_string());
        tracing::info!(pid, %program, cgroup, "child started");
        Ok(RunningChild::started(group, process.exit))
    }

    /// Where the child's cgroup is to be; none if it is not to have one, or cannot.
    fn place_of_cgroup(&self, group: &ProcessGroup) -> Option<Cgroup> {
        let place = self.spec.cgroup.then(|| Cgroup::of(group.id, &group.started));
        place?.inspect_err(log_no_cgroup).ok()
    }

    fn failed(&self, error: anyhow::Error) -> NotStarted {
        let program = self.spec.command[0].display();
        NotStarted::Failed(error.context(format!("cannot start {program}")))
    }

    /// Ends a start that was not waited for.
    pub(crate) fn abandon(&mut self) {
        self.group.iter().for_each(|group| group.signal(Signal::KILL));
    }

    /// Lets a watchdog kill the process group of the child when this agent has ended for any
    /// reason.
    async fn watch(&mut self, group: &ProcessGroup) -> anyhow::Result<()> {
        if self.spec.dies_with_agent { self.watchdog.watch(group.clone()).await } else { Ok(()) }
    }

    /// Waits until something happens to the watchdog of the child.
    pub(crate) async fn watchdog_event(&mut self) -> WatchdogEvent {
        self.watchdog.event().await
    }

    /// Replaces a watchdog that is lost.
    pub(crate) fn handle_watchdog(&mut self, event: WatchdogEvent) {
        self.watchdog.handle(event);
    }

    /// Notes that the first process of the child has exited, and others of its group still run.
    pub(crate) fn note_leader_exit(&self) {
        self.pid.set(FirstProcess::Exited);
    }

    /// Notes that no process of the child runs.
    pub(crate) fn note_exit(&mut self) {
        self.pid.set(FirstProcess::None);
        let group = self.group.take();
        group.and_then(|group| group.cgroup).iter().for_each(Cgroup::remove);
        self.watchdog.forget();
        let Some(record) = &self.record else { return };
        let removed = state_dir::remove(record);
        if let Err(error) = removed.and(state_dir::remove(&record.with_file_name(CGROUP_FILE))) {
            tracing::warn!(%error, "cannot remove the record of the child, which has exited");
        }
    }

    /// The process group of a previous agent's child, if any process of it runs.
    ///
    /// # Errors
    /// If the record cannot be read: it is unknown whether a child runs.
    pub(crate) fn find(&self) -> anyhow::Result<Option<ProcessGroup>> {
        let Some(path) = &self.record else { return Ok(None) };
        Ok(match ChildRecord::read(path)? {
            ChildRecord::Child(group, _) if group.exists() => Some(group),
            ChildRecord::Child(group, _) => {
                group.cgroup.iter().for_each(Cgroup::remove);
                None
            }
            ChildRecord::Nothing | ChildRecord::OtherBoot => None,
        })
    }

    /// Adopts the child of a previous agent, or the remaining processes of its group, if any runs.
    pub(crate) fn adopt(&mut self, group: ProcessGroup) -> Option<RunningChild> {
        let id = group.id;
        let leader = Pid::from_raw(id).filter(|_| group.has_leader());
        match leader {
            Some(pid) => {
                tracing::warn!(
                    pid = id,
                    "the previous agent's child still runs: this agent adopts it"
                );
                self.pid.set(FirstProcess::Runs(pid));
            }
            None if group.exists() => {
                tracing::warn!(
                    group = id,
                    "the previous agent's child has exited, and a process that it started still \
                     runs: COMMAND starts when this process group is empty"
                );
                self.pid.set(FirstProcess::Exited);
            }
            None => return None,
        }
        self.group = Some(group.clone());
        if self.spec.dies_with_agent {
            self.watchdog.adopt(group.clone());
        }
        Some(match leader {
            Some(_) => RunningChild::adopted(group),
            None => RunningChild::adopted_without_leader(group),
        })
    }

    fn write_record(&self, group: &ProcessGroup) -> anyhow::Result<()> {
        let Some(path) = &self.record else { return Ok(()) };
        let ProcessGroup { id, started, cgroup } = group;
        let problem = || format!("cannot record the start of COMMAND in {}", path.display());
        if let Some(cgroup) = cgroup {
            let line = format!("{}\n", cgroup.path().display());
            let written = state_dir::replace(&path.with_file_name(CGROUP_FILE), line.as_bytes());
            written.map(drop).with_context(problem)?;
        }
        let boot = boot_id().unwrap_or_else(|| UNKNOWN.into());
        let namespace =
            PidNamespace::own().map_or_else(|| UNKNOWN.into(), |namespace| namespace.to_string());
        let line = format!("{id} {started} {boot} {namespace}\n");
        let written = state_dir::replace(path, line.as_bytes());
        written.map(drop).with_context(problem)
    }
}

fn log_no_cgroup(why: &anyhow::Error) {
    tracing::debug!("COMMAND gets no cgroup of its own: {why:#}");
}

/// The record of the child.
#[derive(Debug)]
pub(crate) enum ChildRecord {
    /// No child, or its exit was noted.
    Nothing,
    /// A child of an earlier boot: it has ended.
    OtherBoot,
    /// The process group of a child that may run, and where it was recorded, if that is known.
    Child(ProcessGroup, Option<PidNamespace>),
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
        let (id, started, boot, namespace) = match words[..] {
            [id, started, boot, namespace] => (id, started, Some(boot), Some(namespace)),
            // Written by older versions, without a PID namespace, and without a boot id.
            [id, started, boot] => (id, started, Some(boot), None),
            [id, started] => (id, started, None, None),
            _ => ("", "", None, None),
        };
        let boot = boot.filter(|boot| *boot != UNKNOWN);
        let namespace = namespace.filter(|namespace| *namespace != UNKNOWN);
        let namespace = namespace.and_then(|namespace| namespace.parse().ok());
        let Some(id) = id.parse().ok().filter(|id| *id > 1) else {
            bail!(
                "cannot parse {}, the record of a process of COMMAND that may still run: stop that \
                 process if it runs, then remove the file",
                path.display()
            );
        };
        if boot.is_some_and(|boot| boot_id().as_deref() != Some(boot)) {
            return Ok(Self::OtherBoot);
        }
        let file = path.with_file_name(CGROUP_FILE);
        let cgroup = state_dir::read(&file, RECORD_BYTES_MAX)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let cgroup =
            cgroup.and_then(|path| Cgroup::recorded(&String::from_utf8_lossy(&path), id, started));
        Ok(Self::Child(ProcessGroup { id, started: started.to_owned(), cgroup }, namespace))
    }
}
