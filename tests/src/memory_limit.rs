//! A limit of the memory of one process, as a container's: a control group, of either version of
//! them. The kernel ends a process that needs more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a group's files are called.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    peak: &'static str,
}

const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", peak: "memory.max_usage_in_bytes" };
const VERSION_2: Files = Files { limit: "memory.max", peak: "memory.peak" };

/// A control group, which is removed with this value; its process has ended then.
#[derive(Debug)]
pub struct MemoryLimit {
    folder: PathBuf,
    files: Files,
}

impl MemoryLimit {
    /// A group of this name with so many bytes.
    ///
    /// # Errors
    /// Why this machine does not allow it.
    pub fn new(name: &str, bytes: u64) -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let (parent, files) = if root.join("memory").is_dir() {
            (root.join("memory"), VERSION_1)
        } else {
            (root.to_owned(), VERSION_2)
        };
        let folder = parent.join(name);
        let failed = |error| format!("no control group {}: {error}", folder.display());
        fs::create_dir(&folder).map_err(failed)?;
        let limit = Self { folder, files };
        fs::write(limit.folder.join(limit.files.limit), bytes.to_string())
            .map_err(|error| format!("no limit in {}: {error}", limit.folder.display()))?;
        Ok(limit)
    }

    /// The command, with its program and arguments so far, as one that begins in the group.
    #[must_use]
    pub fn apply(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        within.arg(self.folder.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args());
        within.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        within
    }

    /// The most that the group has used so far, with what the kernel keeps for it: the cache of
    /// files, and sockets.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        let file = self.folder.join(self.files.peak);
        let text = fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim().parse().expect("a number of bytes")
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A group whose process still runs cannot be removed, and costs nothing.
        let _ = fs::remove_dir(&self.folder);
    }
}
