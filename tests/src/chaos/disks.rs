//! The file systems of the fleet: each a small one in memory, so that it can be full, and with a
//! library before each process that makes its writes slow.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::network::run;
use super::plan::{Disk, HOSTS};
use crate::machine;
use crate::slow_disk::SlowDisk;

/// How long a write to a slow disk waits, in milliseconds.
const SLOW_MS: &str = "400 ";
/// The same for one that is not slow, with as many bytes.
const QUICK_MS: &str = "0   ";

/// All file systems of the fleet.
#[derive(Debug)]
pub(super) struct Disks {
    folder: PathBuf,
    /// What makes writes slow, or `None` if it cannot be built here.
    slow_disk: Option<SlowDisk>,
}

impl Disks {
    /// Mounts all of them in folders of `folder`.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub(super) fn mount(folder: &Path) -> Result<Self> {
        let folder = folder.join("disks");
        std::fs::create_dir(&folder)?;
        let disks = Self { slow_disk: SlowDisk::build(&folder), folder };
        for disk in (0..HOSTS).map(Disk::Node).chain([Disk::Coordinators]) {
            let path = disks.path(disk);
            std::fs::create_dir(&path)?;
            let path = path.to_str().context("a folder's name in UTF-8")?;
            run(&["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path])?;
            std::fs::write(disks.setting(disk), QUICK_MS)?;
        }
        Ok(disks)
    }

    /// Whether disks can be made slow here.
    pub(super) fn can_be_slow(&self) -> bool {
        self.slow_disk.is_some()
    }

    /// Where a disk is mounted.
    pub(super) fn path(&self, disk: Disk) -> PathBuf {
        self.folder.join(match disk {
            Disk::Coordinators => "coordinators".to_owned(),
            Disk::Node(node) => format!("node-{node}"),
        })
    }

    /// Lets a process feel how slow its disk is.
    pub(super) fn attach(&self, command: &mut Command, disk: Disk) {
        if let Some(slow_disk) = &self.slow_disk {
            slow_disk.attach(command, &self.setting(disk));
        }
    }

    /// Makes a disk slow, or as quick as it was.
    pub(super) fn slow(&self, disk: Disk, slow: bool) -> Result<()> {
        // In place: a full disk has no room for another file.
        let mut file = OpenOptions::new().write(true).open(self.setting(disk))?;
        Ok(file.write_all(if slow { SLOW_MS } else { QUICK_MS }.as_bytes())?)
    }

    /// Fills a disk up, or makes the room again.
    pub(super) fn fill(&self, disk: Disk, fill: bool) -> Result<()> {
        let path = self.path(disk).join("filler");
        if !fill {
            return Ok(std::fs::remove_file(path)?);
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        while file.write_all(&[0; 4_096]).is_ok() {}
        Ok(())
    }

    /// Forgets what a node's agent wrote: another host takes its place.
    pub(super) fn wipe(&self, node: usize) -> Result<()> {
        let state = self.state(node);
        if state.exists() { Ok(std::fs::remove_dir_all(state)?) } else { Ok(()) }
    }

    /// Gives a host a copy of what a node's agent has written. The agent may go on writing: what is
    /// replaced meanwhile is missing in the copy, as when a person copies the folder.
    pub(super) fn copy(&self, node: usize, to: usize) -> Result<()> {
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(self.state(node)).arg(self.state(to)).output().context("cp")?;
        Ok(())
    }

    /// Has a program run as on a machine of its own: with another id, in another boot.
    pub(super) fn on_another_machine(&self, program: &Command) -> Result<Command> {
        let mut command = machine::another(&self.folder)?;
        command.arg(program.get_program()).args(program.get_args());
        Ok(command)
    }

    /// The folder of a node's journal.
    pub(super) fn state(&self, node: usize) -> PathBuf {
        self.path(Disk::Node(node)).join("state")
    }

    fn setting(&self, disk: Disk) -> PathBuf {
        self.path(disk).join("slow-ms")
    }
}
