//! The launcher: a process of the agent's own executable that becomes a program (exec) when the
//! agent sends it a message.
//!
//! Invariant: a program runs only after it is recorded on disk. If the agent is killed before it
//! has written the record, or cannot write it, the launcher exits without running the program.

use std::ffi::OsString;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::io::AsyncReadExt;

use crate::process_group::ProcessGroup;
use crate::reaper::{Process, Reaper};

/// The name under which the executable runs as a launcher.
pub(crate) const NAME: &str = "leasehold-launcher";
/// This program's own executable, even if it was replaced on disk.
pub(crate) const EXECUTABLE: &str = "/proc/self/exe";
/// How long the program may take to start.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of an error of the launcher.
const REASON_BYTES_MAX: u64 = 4096;
/// The message that starts the program.
const START: u8 = b'!';
/// The same for a program that the kernel kills when the agent has ended.
const START_BOUND: u8 = b'&';
/// How often an agent checks whether a launcher has become the program or exited.
const LAUNCH_POLL: Duration = Duration::from_millis(5);

/// A launcher that waits for its message.
#[derive(Debug)]
pub(crate) struct Launch {
    socket: tokio::net::UnixStream,
}

impl Launch {
    /// Starts a launcher for `command`, in its own process group.
    pub(crate) fn prepare(
        command: &[OsString],
        environment: &[(&'static str, String)],
        reaper: &Reaper,
    ) -> anyhow::Result<(Self, Process)> {
        let (ours, theirs) = UnixStream::pair().context("cannot create a socket pair")?;
        ours.set_nonblocking(true).context("a socket pair")?;
        let socket = tokio::net::UnixStream::from_std(ours).context("a socket pair")?;
        let mut launch = Command::new(EXECUTABLE);
        launch.arg0(NAME).args(command).envs(environment.iter().cloned());
        launch.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        let process = reaper.spawn(&mut launch).context("cannot start a process")?;
        Ok((Self { socket }, process))
    }

    /// Runs the program, with this standard input or none. If it is `bound` to the agent, the
    /// kernel kills its first process when the agent has ended.
    pub(crate) async fn exec(
        self,
        stdin: Option<BorrowedFd<'_>>,
        bound: bool,
    ) -> anyhow::Result<()> {
        let start = if bound { START_BOUND } else { START };
        let opening = async {
            send_start(&self.socket, start, stdin).context("its process ended before it ran")?;
            let mut reason = String::new();
            // A successful exec closes the other end of the socket.
            self.socket.take(REASON_BYTES_MAX).read_to_string(&mut reason).await?;
            if reason.is_empty() { Ok(()) } else { bail!(reason) }
        };
        let opened = tokio::time::timeout(TIMEOUT, opening).await;
        opened.with_context(|| format!("the program did not start within {TIMEOUT:?}"))?
    }
}

/// Waits while the first process of a group is a launcher that has not become its program. Without
/// an agent it exits, unless the agent had already sent it the message.
pub(crate) async fn launched(group: &ProcessGroup) {
    while is_launching(group) {
        tokio::time::sleep(LAUNCH_POLL).await;
    }
}

/// Whether the first process of a group is a launcher that has not become its program.
pub(crate) fn is_launching(group: &ProcessGroup) -> bool {
    group.has_leader() && Pid::from_raw(group.id).is_some_and(is_launcher)
}

fn is_launcher(pid: Pid) -> bool {
    let pid = pid.as_raw_pid();
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if !line.is_empty() {
        return line.split(|byte| *byte == 0).next() == Some(NAME.as_bytes());
    }
    // A process shows no arguments while it executes its program, while it exits, and if it has
    // erased them itself.
    match std::fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(program) => std::fs::read_link(EXECUTABLE).is_ok_and(|own| own == program),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// The launcher's process: waits for the message, then becomes the program.
pub(crate) fn main(mut command: impl Iterator<Item = OsString>) -> ExitCode {
    // A close-on-exec copy, which the program does not inherit.
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::from(126);
    };
    let mut socket = UnixStream::from(socket);
    let Some((start, stdin)) = receive_start(&socket) else { return ExitCode::SUCCESS };
    if start == START_BOUND && !bind_to_agent(&socket) {
        return ExitCode::SUCCESS;
    }
    let Some(program) = command.next() else { return ExitCode::from(126) };
    let error = Command::new(program).args(command).stdin(stdin).exec();
    let _ = write!(socket, "{error}");
    match error.kind() {
        std::io::ErrorKind::NotFound => ExitCode::from(127),
        _ => ExitCode::from(126),
    }
}

/// Lets the kernel kill this process when its parent, the agent, has ended. Returns false if that
/// has happened already. Where the kernel forbids it, the watchdog remains.
fn bind_to_agent(socket: &UnixStream) -> bool {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let agent = socket_peercred(socket).map(|agent| agent.pid);
    agent.is_ok_and(|agent| getppid() == Some(agent))
}

fn send_start(
    socket: impl AsFd,
    start: u8,
    stdin: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let inputs: Vec<BorrowedFd<'_>> = stdin.into_iter().collect();
    if !inputs.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&inputs)) {
        return Err(Errno::NOBUFS);
    }
    // The socket is new, so it has space for one byte.
    sendmsg(socket, &[IoSlice::new(&[start])], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Waits for the message, and returns it and the program's input; none if the agent has exited.
fn receive_start(socket: &UnixStream) -> Option<(u8, Stdio)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received,
        }
    };
    received.ok().filter(|received| received.bytes == byte.len())?;
    let inputs = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut inputs) => inputs.next(),
        _ => None,
    });
    Some((byte[0], inputs.map_or_else(Stdio::null, Stdio::from)))
}
