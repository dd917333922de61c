//! The state folder: what an agent leaves to the next agent of the same worker.
//!
//! Invariant: one process at a time writes in it, and files are replaced atomically.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use leasehold_types::file_system;
use leasehold_types::state_dir::{AGENT_FILE, COORDINATOR_FILE};
use rustix::fs::{FlockOperation, OFlags, flock, statfs};

/// How long to wait for the lock: a launcher of a killed agent may hold it for a moment.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// The interval between attempts to take the lock.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Whether the locks of a state folder prove that the process that took one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// Only on a file system that is known for it.
    Checked,
    /// On any: a person has confirmed it.
    Trusted,
}

/// A folder that only this process writes in.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Creates the folder if it is missing, and locks it until this process ends. The folder must
    /// be on a file system where a lock proves that its process runs, unless the caller trusts its
    /// locks. It must not be the folder of the coordinators.
    pub(crate) fn open(path: &Path, locks: Locks) -> anyhow::Result<Self> {
        let shown = path.display();
        if path.is_file() {
            bail!("--state-dir {shown} is a file: expected a folder");
        }
        if path.join(COORDINATOR_FILE).exists() && !path.join(AGENT_FILE).exists() {
            bail!(
                "--state-dir {shown} is the state folder of coordinators ({COORDINATOR_FILE} is in \
                 it): give the agent a folder of its own, for example ./agent-0"
            );
        }
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(path);
        made.with_context(|| format!("cannot create --state-dir {shown}"))?;
        if locks == Locks::Checked {
            check_file_system(path)?;
        }
        let lock_path = path.join("lock");
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        let lock = match open_regular(&lock_path, &mut options) {
            // A lock can also be taken on a read-only file system.
            Err(_) if lock_path.is_file() => {
                open_regular(&lock_path, OpenOptions::new().read(true))
            }
            lock => lock,
        };
        let lock = lock.with_context(|| format!("cannot open {}", lock_path.display()))?;
        match lock_with_retries(&lock) {
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                bail!("--state-dir {shown} is in use by another agent: give each agent its own")
            }
            locked => {
                locked.with_context(|| format!("cannot lock {}", lock_path.display()))?;
            }
        }
        Ok(Self { path: path.into(), _lock: lock })
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Refuses a file system where a lock does not prove that its process runs.
fn check_file_system(path: &Path) -> anyhow::Result<()> {
    let shown = path.display().to_string();
    let found = statfs(path)
        .with_context(|| format!("cannot find out the file system of --state-dir {shown}"))?;
    match file_system::with_untested_locks(found.f_type) {
        None => Ok(()),
        Some(name) => bail!(file_system::refusal(&shown, name)),
    }
}

/// Locks the file. A process that a killed agent has just started inherits the lock and holds it
/// until it has executed its program or exited.
fn lock_with_retries(lock: &File) -> rustix::io::Result<()> {
    let until = Instant::now() + LOCK_WAIT_MAX;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(LOCK_POLL);
            }
            locked => return locked,
        }
    }
}

/// The kernel's id of this boot.
pub(crate) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Reads at most `max` bytes of a file; none if there is no file.
pub(crate) fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>> {
    let file = match open_regular(path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Opens a file for writing.
pub(crate) fn open(path: &Path) -> Result<File> {
    open_regular(path, OpenOptions::new().write(true))
}

/// Replaces the file at `path` atomically, and returns it open for writing.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<File> {
    let mut temp = path.as_os_str().to_owned();
    temp.push(".new");
    let temp = PathBuf::from(temp);
    let write = || {
        remove(&temp)?;
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temp)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        std::fs::rename(&temp, path)?;
        Ok(file)
    };
    let written = write();
    if written.is_err() {
        // On a full disk the temporary file takes the last space.
        let _ = remove(&temp);
    }
    written
}

/// Syncs the content of a file, and its name in the folder.
pub(crate) fn sync(path: &Path, file: &File) -> Result<()> {
    file.sync_data()?;
    let folder = path.parent().expect("a file in a state folder");
    File::open(folder)?.sync_all()
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Opens a regular file. A pipe would block the agent, and a device may be endless.
fn open_regular(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.custom_flags(flags).open(path);
    let is_regular = match &file {
        Ok(file) => file.metadata()?.is_file(),
        // A pipe without a reader cannot be opened for writing.
        Err(_) => !std::fs::metadata(path).is_ok_and(|found| !found.is_file()),
    };
    if is_regular {
        file
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "not a regular file: remove it"))
    }
}
