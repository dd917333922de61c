//! The process group of a program: its first process and all that it has started. It exists as long
//! as any of them runs. Where the program has a cgroup, what has left the group is part of it, too.
//!
//! Invariant: no signal goes to a group whose id another program has reused. The kernel reuses an
//! id only when no process and no group has it, so a group whose first process has exited is still
//! the same group.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::cgroup::Cgroup;

/// The first and the longest interval between checks whether a process runs: the kernel reports
/// exits only to the parent process.
const POLL_MIN: Duration = Duration::from_millis(5);
/// See [`POLL_MIN`].
const POLL_MAX: Duration = Duration::from_millis(200);

/// Stands for the start of a first process that the kernel does not show to this user.
const UNKNOWN: &str = "-";

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ProcessGroup {
    /// Its id: that of its first process.
    pub(crate) id: i32,
    /// When that process started, in clock ticks since the boot.
    pub(crate) started: String,
    /// What has left the group is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cgroup: Option<Cgroup>,
}

impl ProcessGroup {
    /// The group of a process that was started as its leader; none if it has already exited.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let leader = ProcessStat::read(pid).ok()?.filter(|leader| leader.runs)?;
        Some(Self { id: pid.as_raw_pid(), started: leader.started, cgroup: None })
    }

    /// Whether its first process runs.
    pub(crate) fn has_leader(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        match ProcessStat::read(pid) {
            Ok(leader) => {
                leader.is_some_and(|leader| leader.runs && leader.started == self.started)
            }
            Err(NoFileLeft) => true,
        }
    }

    /// Whether any process of it runs. A zombie does not count.
    pub(crate) fn exists(&self) -> bool {
        self.member().is_some() || self.has_left()
    }

    /// Whether a process runs that has left it.
    fn has_left(&self) -> bool {
        self.cgroup.as_ref().is_some_and(Cgroup::is_populated)
    }

    /// Waits until its first process has exited.
    pub(crate) async fn leader_ended(&self) {
        poll_while(|| self.has_leader()).await;
    }

    /// Waits until none of its processes runs.
    pub(crate) async fn ended(&self) {
        loop {
            // To look at one process is cheap, to look for one is not.
            match self.member() {
                Some(member) => poll_while(|| self.has(member)).await,
                None if self.has_left() => poll_while(|| self.has_left()).await,
                None => return,
            }
        }
    }

    /// Sends a signal to all of its processes, if any runs.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().filter(|_| !self.id_is_reused()) {
            let _ = kill_process_group(pid, signal);
        }
        match &self.cgroup {
            Some(cgroup) if signal == Signal::KILL => cgroup.kill(),
            Some(cgroup) => cgroup.signal(signal, |id| self.has(id)),
            None => {}
        }
    }

    fn pid(&self) -> Option<Pid> {
        // kill(0) and kill(-1) would reach the caller's own group and all processes.
        Some(self.id).filter(|id| *id > 1).and_then(Pid::from_raw)
    }

    /// Whether a process that started at another time has its id.
    fn id_is_reused(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        match ProcessStat::read(pid) {
            Ok(leader) => {
                leader.is_some_and(|leader| leader.runs && leader.started != self.started)
            }
            Err(NoFileLeft) => false,
        }
    }

    /// A process of it that runs, if any does.
    fn member(&self) -> Option<Pid> {
        let pid = self.pid().filter(|_| !self.id_is_reused())?;
        // A process of another user refuses the signal, but it runs.
        let is_empty = || test_kill_process_group(pid) == Err(Errno::SRCH);
        if is_empty() {
            return None;
        }
        if self.has_leader() {
            return Some(pid);
        }
        // A process may be missed that was started during the search by one that has exited since.
        self.find_member().or_else(|| if is_empty() { None } else { self.find_member() })
    }

    fn find_member(&self) -> Option<Pid> {
        // Where the kernel shows no processes, the group may run.
        let Ok(all) = std::fs::read_dir("/proc") else { return self.pid() };
        let names = all.flatten().map(|entry| entry.file_name());
        let mut ids = names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?));
        ids.find(|id| self.has(*id))
    }

    /// Whether a process runs and has not left it.
    fn has(&self, member: Pid) -> bool {
        match ProcessStat::read(member) {
            Ok(stat) => stat.is_some_and(|stat| stat.runs && stat.group == self.id),
            // A process that cannot be looked at may run.
            Err(NoFileLeft) => true,
        }
    }
}

/// Says that it is unknown whether a process runs, which was recorded elsewhere.
pub(crate) fn recorded_elsewhere(what: &str, id: i32) -> String {
    format!(
        "process {id}, {what}, was recorded in another PID namespace (that of another container) \
         or by an earlier version, so it cannot be looked for here"
    )
}

/// A PID namespace of this boot. An id that was recorded in one names another process, or none, in
/// another one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct PidNamespace(String);

impl PidNamespace {
    /// That of this process: its inode, and when its first process started, since the kernel
    /// reuses inodes.
    pub(crate) fn own() -> Option<Self> {
        let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let inode = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
        let first = ProcessStat::read(Pid::INIT).ok().flatten();
        let started = first.map_or_else(|| UNKNOWN.into(), |first| first.started);
        Some(Self(format!("{inode}:{started}")))
    }

    /// Whether this process runs in it.
    pub(crate) fn is_own(&self) -> bool {
        let Some(own) = Self::own() else { return false };
        let parts = |namespace: &Self| {
            namespace.0.split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned()))
        };
        match (parts(self), parts(&own)) {
            (Some((inode, started)), Some((own_inode, own_started))) => {
                let is_known = started != UNKNOWN && own_started != UNKNOWN;
                inode == own_inode && (!is_known || started == own_started)
            }
            (None, _) | (_, None) => false,
        }
    }
}

impl std::str::FromStr for PidNamespace {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}

impl std::fmt::Display for PidNamespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

async fn poll_while(holds: impl Fn() -> bool) {
    let mut pause = POLL_MIN;
    loop {
        tokio::time::sleep(pause).await;
        if !holds() {
            return;
        }
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// What the kernel shows of a process. (proc_pid_stat(5))
#[derive(Debug)]
struct ProcessStat {
    /// It is no zombie.
    runs: bool,
    /// The id of its process group.
    group: i32,
    /// When it started, in clock ticks since the boot.
    started: String,
}

/// The agent, or the machine, has all the files open that it may.
#[derive(Debug)]
struct NoFileLeft;

impl ProcessStat {
    /// Reads it; none if there is no such process.
    fn read(pid: Pid) -> Result<Option<Self>, NoFileLeft> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
        match stat {
            Ok(stat) => Ok(Self::parse(&stat)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(NoFileLeft),
                _ => Ok(None),
            },
        }
    }

    fn parse(stat: &str) -> Option<Self> {
        // The second field is the program's name in brackets, which may contain any character.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let (state, threads) = (*fields.first()?, fields.get(17)?);
        // A process whose main thread has ended is shown as a zombie until its last thread ends.
        let runs = !matches!(state, "Z" | "X") || threads.parse().is_ok_and(|count: u32| count > 1);
        let (group, started) = (fields.get(2)?.parse().ok()?, (*fields.get(19)?).to_owned());
        Some(Self { runs, group, started })
    }
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
            std::thread::sleep(POLL_MIN);
        }
    }

    #[test]
    fn a_pid_namespace_is_identified_by_its_inode_and_its_first_process() {
        let own = PidNamespace::own().expect("the kernel shows it");
        assert!(own.is_own());
        let (inode, started) = own.0.split_once(':').expect("two parts");
        assert!(PidNamespace(format!("{inode}:{UNKNOWN}")).is_own());
        for other in [format!("{inode}:{started}0"), format!("1{inode}:{started}"), String::new()] {
            assert!(!PidNamespace(other.clone()).is_own(), "{other:?}");
        }
    }

    #[test]
    fn a_process_runs_until_its_last_thread_has_ended() {
        let stat = |state: &str, threads: u32| {
            let rest = "-1 4194560 0 0 0 0 0 0 0 0 20 0";
            let text = format!("7 (a) Z (b)) {state} 1 5 5 0 {rest} {threads} 0 1234 0 0\n");
            ProcessStat::parse(&text).expect("it is complete")
        };
        assert!(stat("S", 1).runs && !stat("Z", 1).runs && !stat("X", 0).runs);
        let worker = stat("Z", 3);
        assert!(worker.runs && worker.group == 5 && worker.started == "1234", "{worker:?}");
    }
}
