//! A stream's program before it runs: a process of the agent's own executable, which becomes the
//! program only when it is told to.
//!
//! Invariant: no program runs that is not in the record and not known to the guard: an agent that
//! is killed between the start of a process and its entry leaves one behind that just ends.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::EXECUTABLE;
use crate::init::{Process, Reaper};

/// What the executable is called in this part.
pub(super) const NAME: &str = "leasehold-gate";
/// How long a program may take until it runs.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest reason why it does not.
const REASON_BYTES_MAX: u64 = 4096;

/// A closed gate.
#[derive(Debug)]
pub(super) struct Gate {
    socket: tokio::net::UnixStream,
}

impl Gate {
    /// Starts a process that will be `command`, in a group of its own.
    pub(super) fn close(
        command: &[OsString],
        environment: &[(&'static str, String)],
        reaper: &Reaper,
    ) -> anyhow::Result<(Self, Process)> {
        let (ours, theirs) = UnixStream::pair().context("no socket pair")?;
        ours.set_nonblocking(true).context("a socket pair")?;
        let socket = tokio::net::UnixStream::from_std(ours).context("a socket pair")?;
        let mut gate = Command::new(EXECUTABLE);
        gate.arg0(NAME).args(command).envs(environment.iter().cloned());
        gate.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        let process = reaper.spawn(&mut gate).context("no process can be started")?;
        Ok((Self { socket }, process))
    }

    /// Lets the program run.
    pub(super) async fn open(mut self) -> anyhow::Result<()> {
        let opening = async {
            self.socket.write_all(b"!").await.context("it ended before it ran")?;
            let mut reason = String::new();
            // The end of the program's loading closes the other end of the socket.
            self.socket.take(REASON_BYTES_MAX).read_to_string(&mut reason).await?;
            match reason.is_empty() {
                true => Ok(()),
                false => bail!(reason),
            }
        };
        let opened = tokio::time::timeout(TIMEOUT, opening).await;
        opened.with_context(|| format!("it is not loaded after {TIMEOUT:?}"))?
    }
}

/// The gate itself: waits for the word, and becomes the program.
pub(super) fn main(mut command: impl Iterator<Item = OsString>) -> ExitCode {
    // A copy that the program will not inherit.
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::from(126);
    };
    let mut socket = UnixStream::from(socket);
    let mut word = [0];
    if !matches!(socket.read(&mut word), Ok(1)) {
        return ExitCode::SUCCESS;
    }
    let Some(program) = command.next() else { return ExitCode::from(126) };
    let error = Command::new(program).args(command).stdin(Stdio::null()).exec();
    let _ = write!(socket, "{error}");
    match error.kind() {
        std::io::ErrorKind::NotFound => ExitCode::from(127),
        _ => ExitCode::from(126),
    }
}
