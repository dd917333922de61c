//! The cgroup of COMMAND, where the agent may make one: a folder of the kernel (cgroup v2) that
//! lists COMMAND and all that it has started, also what has left its process group (`setsid`).
//!
//! Invariant: only COMMAND's process is moved into it, before the program runs. So whatever is in
//! it was started by COMMAND.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// A cgroup, by the path of its folder. It need not exist, and is empty then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// The place for the cgroup of a process: below the agent's own. `started` is when it started,
    /// in clock ticks since the boot.
    ///
    /// # Errors
    /// If this system has no cgroups of version 2, or does not show the agent's own.
    pub(crate) fn of(process: i32, started: &str) -> anyhow::Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).with_context(|| path.to_owned());
        let own = own_folder(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)?;
        Ok(Self(own.join(name(process, started))))
    }

    /// The cgroup at a path, if it was made for this process.
    pub(crate) fn recorded(path: &str, process: i32, started: &str) -> Option<Self> {
        let path = PathBuf::from(path.trim_end());
        let is_its = path.file_name().is_some_and(|last| *last == *name(process, started));
        (path.is_absolute() && is_its).then_some(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it, and moves a process into it that has started no other.
    ///
    /// # Errors
    /// If the kernel or the agent's rights do not allow it. The process stays where it is then.
    pub(crate) fn enter(&self, process: i32) -> anyhow::Result<()> {
        let problem = || format!("cannot make {}", self.0.display());
        std::fs::create_dir(&self.0).with_context(problem)?;
        let moved = std::fs::write(self.0.join("cgroup.procs"), process.to_string());
        moved.with_context(problem).inspect_err(|_| self.remove())
    }

    /// Whether any process runs in it. A zombie does not count.
    pub(crate) fn is_populated(&self) -> bool {
        match std::fs::read_to_string(self.0.join("cgroup.events")) {
            Ok(events) => !events.lines().any(|line| line == "populated 0"),
            // The kernel removes a folder only when it is empty. Without a file left, or without
            // the right to look, something may run.
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }

    /// Sends a signal to its processes but those that have got it already.
    pub(crate) fn signal(&self, signal: Signal, has_got_it: impl Fn(Pid) -> bool) {
        let ids = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        // The kernel shows processes of other PID namespaces as 0.
        let ids = ids.lines().filter_map(|id| Pid::from_raw(id.parse().ok().filter(|id| *id > 0)?));
        for id in ids.filter(|id| !has_got_it(*id)) {
            let _ = kill_process(id, signal);
        }
    }

    /// Kills all of its processes, also those that are being started.
    pub(crate) fn kill(&self) {
        // Kernels before 5.14 lack this file.
        if std::fs::write(self.0.join("cgroup.kill"), "1").is_err() {
            self.signal(Signal::KILL, |_| false);
        }
    }

    /// Removes it if it is empty.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The name of a process's cgroup: no other process of this boot has this id and start.
fn name(process: i32, started: &str) -> String {
    format!("leasehold-{process}-{started}")
}

/// The folder of this process's own cgroup, from what the kernel shows of its cgroups and mounts.
fn own_folder(cgroups: &str, mounts: &str) -> anyhow::Result<PathBuf> {
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    let own = Path::new(own.context("the kernel has no cgroups of version 2")?);
    if own.components().any(|part| part == Component::ParentDir) {
        bail!("the agent's own cgroup lies outside of what its container shows");
    }
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let of_version_2 = words.windows(2).any(|two| two == ["-", "cgroup2"]);
        let [_, _, _, root, folder, ..] = words[..] else { continue };
        // The kernel writes unusual characters of a folder with a backslash.
        if let Ok(below) = own.strip_prefix(root)
            && of_version_2
            && !folder.contains('\\')
        {
            return Ok(Path::new(folder).join(below));
        }
    }
    bail!("no file system of cgroups of version 2 is mounted that shows the agent's own")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_its_own_folder_in_what_the_kernel_shows() {
        let unified = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let hybrid = "40 32 0:36 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 32 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let part = "41 32 0:37 /user.slice /mnt/cgroups rw - cgroup2 cgroup2 rw\n";
        for (cgroups, mounts, folder) in [
            ("0::/system.slice/a.service\n", unified, "/sys/fs/cgroup/system.slice/a.service"),
            ("9:cpu:/\n0::/\n", hybrid, "/sys/fs/cgroup/unified"),
            ("0::/user.slice/1\n", part, "/mnt/cgroups/1"),
        ] {
            assert_eq!(own_folder(cgroups, mounts).expect(folder), Path::new(folder));
        }
        for (cgroups, mounts, why) in [
            ("9:cpu:/\n", hybrid, "no cgroups of version 2"),
            ("0::/system.slice/a.service\n", part, "mounted"),
            ("0::/../other\n", unified, "outside"),
            ("0::/a\n", "", "mounted"),
        ] {
            let error = own_folder(cgroups, mounts).expect_err(why);
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn takes_only_a_record_of_the_same_process() {
        let path = "/sys/fs/cgroup/a/leasehold-7-1234";
        let cgroup = Cgroup::recorded(&format!("{path}\n"), 7, "1234").expect("it is its own");
        assert_eq!(cgroup.path(), Path::new(path));
        for other in ["/sys/fs/cgroup/a/leasehold-7-123", "leasehold-7-1234", ""] {
            assert_eq!(Cgroup::recorded(other, 7, "1234"), None, "{other}");
        }
        assert!(!Cgroup("/sys/fs/cgroup/there/is/none".into()).is_populated());
    }
}
