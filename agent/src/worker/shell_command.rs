//! A user's command that must not outlive its agent: a process of the agent's own executable (the
//! runner) runs it in its own process group, and kills that group when the agent drops it or ends.
//!
//! Invariant: when the runner exits, no process of the command is left, unless the command exited
//! by itself.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::oneshot;

use crate::launcher::EXECUTABLE;
use crate::reaper::{Exit, Reaper};

/// The name under which the executable runs as a runner.
pub(crate) const NAME: &str = "leasehold-command";

/// A user's command has exited with another code than 0.
#[derive(Debug, thiserror::Error)]
#[error("{option} {}{detail}", describe(*.exit))]
pub(super) struct CommandFailed {
    /// The option that gives it.
    pub(super) option: &'static str,
    pub(super) exit: Exit,
    /// What it says about it; begins with `: `, unless it is empty.
    pub(super) detail: String,
}

impl CommandFailed {
    /// Whether it did nothing, because the shell could not run it.
    pub(super) fn could_not_run(&self) -> bool {
        matches!(self.exit, NOT_EXECUTABLE | NOT_FOUND)
    }
}

/// The exit codes of a shell that cannot run a command.
const NOT_EXECUTABLE: Exit = Exit(126);
const NOT_FOUND: Exit = Exit(127);

fn describe(exit: Exit) -> String {
    let code = exit.0;
    match exit {
        NOT_EXECUTABLE => format!("cannot run: a command in it is not executable (exit {code})"),
        NOT_FOUND => format!("cannot run: a command in it was not found (exit {code})"),
        Exit(_) => format!("exited with {code}"),
    }
}

/// A running command. Dropping it kills the command.
#[derive(Debug)]
pub(super) struct ShellCommand {
    /// Resolves with its exit code.
    pub(super) exit: oneshot::Receiver<Exit>,
    /// The kernel closes it if the agent is killed.
    _held: UnixStream,
}

impl ShellCommand {
    /// Runs `sh -c LINE` with `environment` in addition to the agent's. `outputs` are standard
    /// output and standard error.
    pub(super) fn start<V: AsRef<OsStr>>(
        line: &str,
        environment: impl IntoIterator<Item = (&'static str, V)>,
        outputs: [Stdio; 2],
        reaper: &Reaper,
    ) -> std::io::Result<Self> {
        let (held, theirs) = UnixStream::pair()?;
        let [stdout, stderr] = outputs;
        let mut command = Command::new(EXECUTABLE);
        command.arg0(NAME).args(["sh", "-c", line]).envs(environment);
        // In its own group, so that Ctrl-C reaches only the agent.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        let process = reaper.spawn(command.stdout(stdout).stderr(stderr))?;
        Ok(Self { exit: process.exit, _held: held })
    }
}

/// The runner: runs the command, and exits with its code.
pub(crate) fn main(mut command: impl Iterator<Item = OsString>) -> ExitCode {
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::from(126);
    };
    let Some(program) = command.next() else { return ExitCode::from(126) };
    let child = Command::new(program).args(command).stdin(Stdio::null()).process_group(0).spawn();
    let Ok(mut child) = child else { return ExitCode::from(127) };
    let group = Pid::from_child(&child);
    std::thread::spawn(move || {
        // The agent sends nothing, so `read` returns when the socket closes.
        let _ = UnixStream::from(socket).read(&mut [0]);
        let _ = kill_process_group(group, Signal::KILL);
    });
    match child.wait() {
        Ok(status) => ExitCode::from(code(status)),
        Err(_) => ExitCode::FAILURE,
    }
}

/// An exit code as a shell gives it.
fn code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or_default();
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(1)
}
