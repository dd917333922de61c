//! The journal on disk: one JSON line a record, appended with one write each, so that a killed
//! agent's successor finds it. It outlives the process, not the host: only the record of a start is
//! synced, and after another boot of the host only the epoch and the incarnation still count.
//!
//! Invariant: within one boot the file is a header and whole lines that add up to a [`Memory`], but
//! for a torn last line, which was never in force. After a power loss it may be anything. So the
//! boot has a file of its own, which is synced before the journal's first line under it: a journal
//! of another boot is known as such whatever it is now.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use leasehold_agent_core::{Journal, JournalError, Memory, Record};
use leasehold_types::WorkerKey;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The file that says under which boot the journal is written.
const BOOT_FILE: &str = "boot.json";
/// The version of the file's format.
const FORMAT: u32 = 1;
/// Bytes of a journal that is read; a longer one counts as lost. Twenty thousand streams and ten
/// thousand jobs with the longest names need 20 MB.
const JOURNAL_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// A journal is rewritten with the fewest records once it is this long and twice as long as after
/// the last time.
const COMPACT_BYTES: u64 = 256 * 1024;

/// A folder that this process alone keeps its journal in.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Makes the folder where there is none, and locks it until this process ends.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(path);
        made.with_context(|| format!("--state-dir {} cannot be made", path.display()))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(&lock_path);
        let lock = lock.with_context(|| format!("{} cannot be opened", lock_path.display()))?;
        if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error == rustix::io::Errno::WOULDBLOCK {
                bail!(
                    "--state-dir {} is in use by another agent: each needs one of its own",
                    path.display()
                );
            }
            return Err(error).with_context(|| format!("{} cannot be locked", lock_path.display()));
        }
        Ok(Self { path: path.into(), _lock: lock })
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Where one agent's records go.
#[derive(Debug)]
pub(crate) enum AgentJournal {
    /// Nowhere: a restarted agent has no memory.
    None,
    /// A file.
    File(Box<FileJournal>),
}

impl Journal for AgentJournal {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        match self {
            Self::None => Ok(()),
            Self::File(journal) => journal.append(record),
        }
    }
}

/// The first line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    journal: u32,
    boot_id: String,
    cluster: String,
    worker: String,
}

/// A journal in a file.
#[derive(Debug)]
pub(crate) struct FileJournal {
    path: PathBuf,
    header: Header,
    file: File,
    len: u64,
    compact_at: u64,
    /// What the file adds up to.
    memory: Memory,
    /// A record was written in part and could not be taken back yet.
    torn: bool,
}

impl FileJournal {
    /// Takes up the journal in `dir`, and says what it adds up to. A damaged one is set aside.
    pub(crate) fn open(
        dir: &StateDir,
        who: &WorkerKey,
        boot_id: Option<&str>,
    ) -> anyhow::Result<(Memory, Self)> {
        let path = dir.file("journal.jsonl");
        let header = Header {
            journal: FORMAT,
            boot_id: boot_id.unwrap_or_default().into(),
            cluster: who.cluster.to_string(),
            worker: who.worker.to_string(),
        };
        let found = read(&path)?;
        let booted = boot_id.is_some() && is_of_another_boot(dir, &header);
        let memory = match found {
            Found::Nothing => Memory::default(),
            Found::Damaged { why, rest, header: old } => {
                let old = old.as_ref().map_or(booted, |old| is_after(&header, old));
                match old {
                    true => {
                        tracing::info!(why, "the journal of an earlier boot is damaged");
                        after_boot(*rest)
                    }
                    false => set_aside(&path, &why)?,
                }
            }
            Found::Whole(old, _)
                if (&old.cluster, &old.worker) != (&header.cluster, &header.worker) =>
            {
                bail!(
                    "{} is the journal of worker {}/{}, not of {who}: each worker needs a \
                     --state-dir of its own",
                    path.display(),
                    old.cluster,
                    old.worker
                );
            }
            Found::Whole(old, memory) if boot_id == Some(old.boot_id.as_str()) => *memory,
            Found::Whole(..) if boot_id.is_none() => {
                let why = "the kernel's boot id cannot be read: nobody knows by which clock the \
                           journal counts";
                set_aside(&path, why)?
            }
            Found::Whole(_, memory) => after_boot(*memory),
        };
        write_boot(dir, &header)
            .with_context(|| format!("{} cannot be written", dir.file(BOOT_FILE).display()))?;
        let (file, len) = write_whole(&path, &header, &memory)
            .with_context(|| format!("journal {} cannot be written", path.display()))?;
        let compact_at = COMPACT_BYTES.max(2 * len);
        let kept = memory.clone();
        Ok((memory, Self { path, header, file, len, compact_at, memory: kept, torn: false }))
    }

    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let failed = |what: &str, error: std::io::Error| JournalError(format!("{what}: {error}"));
        if self.torn {
            self.file.set_len(self.len).map_err(|error| failed("taking back a part", error))?;
            self.torn = false;
        }
        let mut line = serde_json::to_vec(record).expect("a record has only plain fields");
        line.push(b'\n');
        let written = write_once(&mut self.file, &line).and_then(|()| match record {
            // After a boot the next number follows the last one: that one must not be lost.
            Record::Begun { .. } => self.sync(),
            _ => Ok(()),
        });
        if let Err(error) = written {
            self.torn = self.file.set_len(self.len).is_err();
            return Err(failed("appending a record", error));
        }
        self.len += line.len() as u64;
        self.memory.apply(record);
        if self.len >= self.compact_at {
            self.compact();
        }
        Ok(())
    }

    /// Makes durable what was written, and that the file has its name.
    fn sync(&self) -> std::io::Result<()> {
        self.file.sync_data()?;
        let folder = self.path.parent().expect("a file in a state folder");
        File::open(folder)?.sync_all()
    }

    /// Rewrites the file with the fewest records; where that fails the long one stays in use.
    fn compact(&mut self) {
        match write_whole(&self.path, &self.header, &self.memory) {
            Ok((file, len)) => {
                self.file = file;
                self.len = len;
            }
            Err(error) => tracing::warn!(%error, "the journal could not be compacted; it grows"),
        }
        self.compact_at = COMPACT_BYTES.max(2 * self.len);
    }
}

/// The kernel's id of this boot.
pub(crate) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

fn after_boot(memory: Memory) -> Memory {
    tracing::info!("the host has booted since the journal was written: its leases are over");
    memory.after_boot()
}

/// Whether the boot that `header` names is known, and is another than that of `old`, of the same
/// worker.
fn is_after(header: &Header, old: &Header) -> bool {
    let same_worker = (&old.cluster, &old.worker) == (&header.cluster, &header.worker);
    let known = !header.boot_id.is_empty() && !old.boot_id.is_empty();
    same_worker && known && old.boot_id != header.boot_id
}

/// Whether the last agent here ran under another boot.
fn is_of_another_boot(dir: &StateDir, header: &Header) -> bool {
    let bytes = std::fs::read(dir.file(BOOT_FILE)).unwrap_or_default();
    serde_json::from_slice(&bytes).is_ok_and(|old: Header| is_after(header, &old))
}

/// Notes under which boot the journal is written from now on, durably.
fn write_boot(dir: &StateDir, header: &Header) -> std::io::Result<()> {
    let path = dir.file(BOOT_FILE);
    let bytes = serde_json::to_vec(header).expect("a header has only plain fields");
    if std::fs::read(&path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let temp = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&temp, &path)?;
    File::open(&dir.path)?.sync_all()
}

enum Found {
    Nothing,
    /// Not all of it can be read; what its readable lines add up to, and its header if that is one
    /// of them.
    Damaged {
        why: String,
        header: Option<Header>,
        rest: Box<Memory>,
    },
    Whole(Header, Box<Memory>),
}

impl Found {
    fn unreadable(why: String) -> Self {
        Self::Damaged { why, header: None, rest: Box::default() }
    }
}

fn read(path: &Path) -> anyhow::Result<Found> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => {
            return Err(error).with_context(|| format!("{} cannot be opened", path.display()));
        }
    };
    let mut bytes = Vec::new();
    let read = file.take(JOURNAL_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("{} cannot be read", path.display()))?;
    if bytes.len() as u64 > JOURNAL_BYTES_MAX {
        return Ok(Found::unreadable(format!("it is longer than {JOURNAL_BYTES_MAX} bytes")));
    }
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8]) -> Found {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if whole < bytes.len() {
        tracing::info!(bytes = bytes.len() - whole, "the journal's torn last line is ignored");
    }
    let mut lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n').zip(1..);
    let Some((first, _)) = lines.next() else {
        return Found::unreadable("it has no first line".into());
    };
    let header: Header = match serde_json::from_slice(first) {
        Ok(header) => header,
        Err(error) => return Found::unreadable(format!("line 1: {error}")),
    };
    if header.journal != FORMAT {
        return Found::unreadable(format!("it has format {}, not {FORMAT}", header.journal));
    }
    let mut memory = Memory::default();
    let mut damage = None;
    for (line, number) in lines {
        match serde_json::from_slice(line) {
            Ok(record) => memory.apply(&record),
            Err(error) => damage = damage.or(Some(format!("line {number}: {error}"))),
        }
    }
    let rest = Box::new(memory);
    match damage {
        None => Found::Whole(header, rest),
        Some(why) => Found::Damaged { why, header: Some(header), rest },
    }
}

fn set_aside(path: &Path, why: &str) -> anyhow::Result<Memory> {
    let aside = path.with_extension("jsonl.lost");
    std::fs::rename(path, &aside)
        .with_context(|| format!("{} cannot be set aside", path.display()))?;
    tracing::warn!(
        why,
        aside = %aside.display(),
        "the journal is lost: this agent has no memory, and its worker waits until the leases of \
         the agent before are surely over"
    );
    Ok(Memory::default())
}

/// Writes a whole journal beside the old one and puts it in its place.
fn write_whole(path: &Path, header: &Header, memory: &Memory) -> std::io::Result<(File, u64)> {
    let mut bytes = serde_json::to_vec(header).expect("a header has only plain fields");
    bytes.push(b'\n');
    for record in memory.records() {
        serde_json::to_writer(&mut bytes, &record).expect("a record has only plain fields");
        bytes.push(b'\n');
    }
    let temp = path.with_extension("jsonl.new");
    if let Err(error) = std::fs::remove_file(&temp)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&temp)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(&bytes)?;
    std::fs::rename(&temp, path)?;
    Ok((file, bytes.len() as u64))
}

fn write_once(file: &mut File, line: &[u8]) -> std::io::Result<()> {
    loop {
        return match file.write(line) {
            Ok(written) if written == line.len() => Ok(()),
            Ok(written) => {
                let part = format!("only {written} of {} bytes fitted", line.len());
                Err(std::io::Error::new(ErrorKind::WriteZero, part))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
    }
}

#[cfg(test)]
mod tests;
