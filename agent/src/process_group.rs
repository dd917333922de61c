//! The process group of a program: its first process and all that it has started. It exists as long
//! as any of them runs.
//!
//! Invariant: no signal goes to a group whose id another program has reused. The kernel reuses an
//! id only when no process and no group has it, so a group whose first process has exited is still
//! the same group.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ProcessGroup {
    /// Its id: that of its first process.
    pub(crate) id: i32,
    /// When that process started, in clock ticks since the boot.
    pub(crate) started: String,
}

impl ProcessGroup {
    /// The group of a process that was started as its leader; none if it has already exited.
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
        // A process of another user refuses the signal, but it runs.
        test_kill_process_group(pid) != Err(Errno::SRCH)
            && (self.has_leader() || self.has_members())
    }

    /// Sends a signal to all of its processes, if any runs.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().filter(|_| !self.id_is_reused()) {
            let _ = kill_process_group(pid, signal);
        }
    }

    fn pid(&self) -> Option<Pid> {
        // kill(0) and kill(-1) would reach the caller's own group and all processes.
        Some(self.id).filter(|id| *id > 1).and_then(Pid::from_raw)
    }

    /// Whether a process that started at another time has its id.
    fn id_is_reused(&self) -> bool {
        self.pid().and_then(start_time).is_some_and(|started| started != self.started)
    }

    fn has_members(&self) -> bool {
        let Ok(all) = std::fs::read_dir("/proc") else { return true };
        let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(|c: char| c.is_ascii_digit())).any(|name| {
            let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).unwrap_or_default();
            // After the program's name, which may contain any character: state, parent, group.
            let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
            let runs = fields.next().is_some_and(|state| state != "Z" && state != "X");
            runs && fields.nth(1) == Some(self.id.to_string().as_str())
        })
    }
}

/// When a process started, in clock ticks since the boot (field 22 of its stat); none if it does
/// not run.
fn start_time(pid: Pid) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The second field is the program's name in brackets, which may contain any character.
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
    fn a_group_exists_as_long_as_any_process_and_is_identified_by_its_start_time() {
        // The first process exits at the end of its input and leaves a background process.
        let script = "sleep 1000 & cat";
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut first = command.spawn().expect("sh");
        let group = ProcessGroup::of(Pid::from_child(&first)).expect("it waits for its input");
        let other = ProcessGroup { started: "1".into(), ..group.clone() };
        assert!(!other.exists(), "a group with another start time is another group");
        other.signal(Signal::KILL);
        assert!(group.exists());
        // This also closes its input.
        first.wait().expect("it ends");
        assert!(!group.has_leader());
        assert!(group.exists(), "the background process still runs");
        group.signal(Signal::KILL);
        while group.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
