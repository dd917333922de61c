//! The worker as a child of its agent: started in a process group of its own (so that Ctrl-C
//! reaches the agent alone), found again by a successor of a killed agent, and never started twice.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::oneshot;

use crate::config::{Child, ChildSignal};
use crate::init::{Exit, Process, Reaper};

/// The exit code of a child that this agent did not start: nobody can know the true one.
const UNKNOWN: Exit = Exit(1);
/// How often such a child is looked at.
const ADOPTED_LOOK: Duration = Duration::from_millis(200);

/// The child's process id, for those that signal it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChildPid(Arc<Mutex<Option<Pid>>>);

impl ChildPid {
    /// The process, while there is one.
    pub(crate) fn get(&self) -> Option<Pid> {
        *self.0.lock().expect("nobody panics while holding it")
    }

    fn set(&self, pid: Option<Pid>) {
        *self.0.lock().expect("nobody panics while holding it") = pid;
    }

    /// Sends a signal to the child alone, if there is one.
    pub(crate) fn send(&self, signal: Signal) {
        self.send_by(kill_process, signal);
    }

    fn send_by(&self, kill: fn(Pid, Signal) -> rustix::io::Result<()>, signal: Signal) {
        let Some(pid) = self.get() else { return };
        let (pid_shown, number) = (pid.as_raw_pid(), signal.as_raw());
        match kill(pid, signal) {
            Ok(()) => tracing::debug!(pid = pid_shown, signal = number, "signal sent"),
            Err(error) => tracing::warn!(pid = pid_shown, signal = number, %error, "not sent"),
        }
    }
}

/// Starts the child, again and again.
#[derive(Debug)]
pub(crate) struct Nursery {
    spec: Child,
    environment: Vec<(&'static str, String)>,
    /// Where the child is written down, so that a successor finds it.
    record: Option<PathBuf>,
    reaper: Reaper,
    pid: ChildPid,
    /// The child reads the file of the adapter `file`.
    reads_file: bool,
}

impl Nursery {
    pub(crate) fn new(
        spec: Child,
        environment: Vec<(&'static str, String)>,
        record: Option<PathBuf>,
        reaper: Reaper,
        pid: ChildPid,
        reads_file: bool,
    ) -> Self {
        Self { spec, environment, record, reaper, pid, reads_file }
    }

    /// Whether the child reads the file of the adapter `file`, which must be true by its start.
    pub(crate) fn reads_file(&self) -> bool {
        self.reads_file
    }

    /// What the child is.
    pub(crate) fn spec(&self) -> &Child {
        &self.spec
    }

    /// Tells the child to end, and all of its group where that is wanted.
    pub(crate) fn end(&self, signal: Signal) {
        self.pid.send_by(
            match self.spec.signal {
                ChildSignal::Group => kill_process_group,
                ChildSignal::Process => kill_process,
            },
            signal,
        );
    }

    /// The process id of the child that runs.
    pub(crate) fn pid(&self) -> &ChildPid {
        &self.pid
    }

    /// Starts the child.
    pub(crate) fn spawn(&self) -> anyhow::Result<Process> {
        let (program, args) = self.spec.command.split_first().expect("the command line wants one");
        let mut command = Command::new(program);
        command.args(args).envs(self.environment.iter().cloned()).process_group(0);
        if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            // A background group that reads from the terminal would be stopped.
            command.stdin(Stdio::null());
        }
        let process = self.reaper.spawn(&mut command);
        let process =
            process.with_context(|| format!("{} cannot be started", program.display()))?;
        self.pid.set(Some(process.pid));
        let pid = process.pid.as_raw_pid();
        tracing::info!(pid, program = %program.display(), "child started");
        self.write_down(process.pid);
        Ok(process)
    }

    /// The child has ended.
    pub(crate) fn bury(&self) {
        self.pid.set(None);
        if let Some(path) = &self.record {
            let _ = std::fs::remove_file(path);
        }
    }

    /// The child of an agent before this one, if it still runs.
    pub(crate) fn adopt(&self) -> Option<Process> {
        let text = std::fs::read_to_string(self.record.as_ref()?).ok()?;
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)?;
        let started = words.next()?.to_owned();
        if start_time(pid).as_deref() != Some(started.as_str()) {
            return None;
        }
        let (sender, exit) = oneshot::channel();
        tokio::spawn(async move {
            // Nobody tells the end of a process that is not one's own child.
            while start_time(pid).as_deref() == Some(started.as_str()) {
                tokio::time::sleep(ADOPTED_LOOK).await;
            }
            let _ = sender.send(UNKNOWN);
        });
        self.pid.set(Some(pid));
        tracing::warn!(pid = pid.as_raw_pid(), "the child of the agent before still runs: adopted");
        Some(Process { pid, exit })
    }

    fn write_down(&self, pid: Pid) {
        let Some(path) = &self.record else { return };
        let started = start_time(pid).unwrap_or_default();
        if let Err(error) = std::fs::write(path, format!("{} {started}\n", pid.as_raw_pid())) {
            tracing::warn!(%error, path = %path.display(), "the child's id could not be kept");
        }
    }
}

/// When a process started, in the kernel's ticks since boot (field 22 of its stat); none where it
/// does not run.
pub(crate) fn start_time(pid: Pid) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The second field is the program's name in brackets, which may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.nth(18).map(str::to_owned))?
}
