//! Waits for all child processes, and for orphans if the agent is PID 1. Only this module calls
//! `wait`, so that each exit status reaches its owner and no zombie remains.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How a process ended: its exit code, or 128 and the number of the signal that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

/// A process that was started or adopted.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// Resolves when it has ended.
    pub(crate) exit: oneshot::Receiver<Exit>,
}

/// Waits for all children.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    awaited: Arc<Mutex<BTreeMap<i32, oneshot::Sender<Exit>>>>,
}

impl Reaper {
    /// Starts to wait for children.
    pub(crate) fn start() -> std::io::Result<Self> {
        let mut ended = signal(SignalKind::child())?;
        let reaper = Self { awaited: Arc::default() };
        if rustix::process::getpid().is_init() {
            tracing::info!("running as PID 1: the agent reaps orphans");
        }
        let reaping = reaper.clone();
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                reaping.reap();
            }
        });
        Ok(reaper)
    }

    /// Starts a process.
    pub(crate) fn spawn(&self, command: &mut Command) -> std::io::Result<Process> {
        // Held until the process is registered, so that one that exits at once is not treated as an
        // orphan.
        let mut awaited = self.awaited.lock().expect("the lock is not poisoned");
        let child = command.spawn()?;
        let (sender, exit) = oneshot::channel();
        awaited.insert(child.id().cast_signed(), sender);
        Ok(Process { pid: Pid::from_child(&child), exit })
    }

    fn reap(&self) {
        let mut awaited = self.awaited.lock().expect("the lock is not poisoned");
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            match (awaited.remove(&pid.as_raw_pid()), exit(status)) {
                (Some(sender), Some(exit)) => {
                    let _ = sender.send(exit);
                }
                (None, Some(Exit(code))) => {
                    tracing::debug!(pid = pid.as_raw_pid(), code, "an orphan has ended");
                }
                (_, None) => unreachable!("wait returned a status without an exit: {status:?}"),
            }
        }
    }
}

fn exit(status: WaitStatus) -> Option<Exit> {
    let by_signal = status.terminating_signal().map(|signal| signal + 128);
    let code = status.exit_status().or(by_signal)?;
    Some(Exit(u8::try_from(code).unwrap_or(u8::MAX)))
}
