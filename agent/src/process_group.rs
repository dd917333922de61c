//! The process group of one stream's program: it and all that it has started. It is over when the
//! last of them is.
//!
//! Invariant: no signal goes to a group whose number another program has got meanwhile. The kernel
//! gives a number out again only when no process and no group has it any more, so a group whose
//! first process is gone is still the same one.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ProcessGroup {
    /// Its number: the id of its first process.
    pub(crate) id: i32,
    /// When that one started, in the kernel's ticks since the boot.
    pub(crate) started: String,
}

impl ProcessGroup {
    /// The group of a process that has just been started as its first; none where it has ended
    /// already.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Some(Self { id: pid.as_raw_pid(), started: start_time(pid)? })
    }

    /// Whether its first process runs.
    pub(crate) fn has_leader(&self) -> bool {
        self.pid().and_then(start_time).as_deref() == Some(self.started.as_str())
    }

    /// Whether any process of it runs. A zombie does not count.
    pub(crate) fn exists(&self) -> bool {
        let Some(pid) = self.pid().filter(|_| !self.id_is_reused()) else { return false };
        // A program of another user may refuse the signal: it runs all the same.
        test_kill_process_group(pid) != Err(Errno::SRCH)
            && (self.has_leader() || self.has_members())
    }

    /// Sends a signal to all of it; what has ended needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().filter(|_| !self.id_is_reused()) {
            let _ = kill_process_group(pid, signal);
        }
    }

    fn pid(&self) -> Option<Pid> {
        // 0 and 1 would mean the caller's own group and everybody.
        Some(self.id).filter(|id| *id > 1).and_then(Pid::from_raw)
    }

    /// Whether a process that started at another time has its number.
    fn id_is_reused(&self) -> bool {
        self.pid().and_then(start_time).is_some_and(|started| started != self.started)
    }

    fn has_members(&self) -> bool {
        let Ok(all) = std::fs::read_dir("/proc") else { return true };
        let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(|c: char| c.is_ascii_digit())).any(|name| {
            let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).unwrap_or_default();
            // Behind the program's name, which may hold anything: state, parent, group.
            let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
            let runs = fields.next().is_some_and(|state| state != "Z" && state != "X");
            runs && fields.nth(1) == Some(self.id.to_string().as_str())
        })
    }
}

/// When a process started, in the kernel's ticks since boot (field 22 of its stat); none where it
/// does not run.
fn start_time(pid: Pid) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The second field is the program's name in brackets, which may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.nth(18).map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_group_lives_as_long_as_its_last_process_and_is_known_by_its_start() {
        // The first process ends once its input does, and leaves another behind.
        let script = "sleep 1000 & cat";
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut first = command.spawn().expect("sh");
        let group = ProcessGroup::of(Pid::from_child(&first)).expect("it waits for its input");
        let other = ProcessGroup { started: "1".into(), ..group.clone() };
        assert!(!other.exists(), "another start is another group");
        other.signal(Signal::KILL);
        assert!(group.exists());
        // This closes its input, too.
        first.wait().expect("it ends");
        assert!(!group.has_leader());
        assert!(group.exists(), "what it has started runs on");
        group.signal(Signal::KILL);
        while group.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
