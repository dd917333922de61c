//! What a test made on the machine is ended and removed when the test ends, also where it is
//! killed: a watcher outside the test does it, which learns of the end from a closed pipe.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;

use crate::process::Process;

/// Ends processes and removes what was left to it, at its own end and at the test's.
#[derive(Debug)]
pub(super) struct Guard {
    /// A process that only gives the group its number.
    anchor: Child,
    watcher: Child,
    line: Mutex<Option<ChildStdin>>,
}

/// What a guard can remove.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leftover<'a> {
    /// A folder with all that is in it.
    Folder(&'a Path),
    /// A network bridge, and with it every cable that ends there.
    Bridge(&'a str),
    /// The control groups of this name, in every hierarchy.
    Cgroup(&'a str),
}

impl Guard {
    pub(super) fn start() -> Self {
        let quiet = |command: &mut Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()
        };
        let mut sleep = Command::new("sleep");
        let anchor = quiet(sleep.arg("infinity").stdin(Stdio::null())).expect("sleep starts");
        let mut shell = Command::new("sh");
        shell.args(["-c", include_str!("guard.sh"), "guard", &anchor.id().to_string()]);
        let mut watcher = quiet(shell.stdin(Stdio::piped())).expect("sh starts");
        let line = Mutex::new(watcher.stdin.take());
        Self { anchor, watcher, line }
    }

    /// Starts a process that ends with the guard, with its log beside the others in `folder`.
    pub(super) fn process(&self, command: &mut Command, log: &Path) -> Process {
        let group = i32::try_from(self.anchor.id()).expect("process ids are that small");
        Process::start(command.process_group(group), log)
    }

    /// Leaves something to the guard. It removes first what was left first.
    pub(super) fn leave(&self, left: Leftover<'_>) {
        let order = match left {
            Leftover::Folder(path) => format!("folder {}\n", path.display()),
            Leftover::Bridge(name) => format!("bridge {name}\n"),
            Leftover::Cgroup(name) => format!("cgroup {name}\n"),
        };
        let mut line = self.line.lock().expect("the lock is not poisoned");
        let line = line.as_mut().expect("open until the guard goes");
        line.write_all(order.as_bytes()).expect("the watcher listens");
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.line.lock().map(|mut line| line.take()));
        // Fails only where it has ended already. The dead keep the group's number until they are
        // waited for.
        let _ = self.anchor.kill();
        let _ = self.anchor.wait();
        let _ = self.watcher.wait();
    }
}
