//! The journal on disk: one line per record, written before the record takes effect, so that the
//! successor of a killed agent finds it. It outlives the process, not the host: only the record of
//! a start is synced, and after a reboot of the host only the epoch and the incarnation still
//! count.
//!
//! Invariant: within one boot the file has the format of [`text`] and yields a [`Memory`]; any
//! other file is damaged, and its agent has no memory. A power loss may leave any content. So the
//! boot id has a file of its own, which is synced before the first line under that boot is written:
//! a journal of another boot is recognized whatever its content. An older copy of the file is
//! recognized by the journal's [`position`].

mod position;
mod text;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_agent_core::{Journal, JournalError, Memory, Record};
use leasehold_types::state_dir::AGENT_FILE;
use leasehold_types::{CellId, Moment, WorkerKey};

use crate::clock;
use crate::state_dir::{self, StateDir};
use position::PositionFile;
use text::{End, Header, JournalHeader, JournalId, Parsed};

/// The file with the id of the boot under which the journal is written.
const BOOT_FILE: &str = "boot.json";
/// The file that names the journal file in use.
const POSITION_FILE: &str = "journal.position";
/// The most bytes of the boot file that are read.
const BOOT_BYTES_MAX: u64 = 4096;
/// The most bytes of a journal; a longer one counts as damaged. Twenty thousand streams and ten
/// thousand jobs with the longest names need 20 MB.
const JOURNAL_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// A journal is compacted once it is this long and twice as long as after the last compaction.
const COMPACT_BYTES: u64 = 256 * 1024;
/// The interval between attempts to write a journal that could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The journal of one agent.
#[derive(Debug)]
pub(crate) enum AgentJournal {
    /// No journal: a restarted agent has no memory.
    None,
    /// A file.
    File(Box<FileJournal>),
}

impl AgentJournal {
    /// Why it cannot be written at this moment; none if it can.
    pub(crate) fn problem(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::File(journal) => journal.problem.as_deref(),
        }
    }

    /// Tries again, at an interval, to write a journal that could not be written.
    pub(crate) fn retry(&mut self, now: Moment) {
        match self {
            Self::None => {}
            Self::File(journal) => journal.retry(now),
        }
    }
}

impl Journal for AgentJournal {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        match self {
            Self::None => Ok(()),
            Self::File(journal) => journal.append(record),
        }
    }
}

/// A journal in a file.
#[derive(Debug)]
pub(crate) struct FileJournal {
    path: PathBuf,
    boot: PathBuf,
    position: PositionFile,
    header: Header,
    /// None until the file could be rewritten: until then the previous agent's file is in its
    /// place.
    tail: Option<Tail>,
    /// The damage of the previous agent's file, which must be renamed first.
    damage: Option<String>,
    /// The content of the file.
    memory: Memory,
    /// Why the last record could not be written.
    problem: Option<String>,
    /// When to try again.
    retry_at: Moment,
}

/// The end of the file.
#[derive(Debug)]
struct Tail {
    file: File,
    end: End,
    compact_at: u64,
    /// A record or the mark was written in part, and could not be repaired yet.
    torn: bool,
}

/// The content of a whole journal as a new file of it would have it.
///
/// # Errors
/// Where the journal is damaged.
pub(crate) fn rewritten(bytes: &[u8]) -> Result<Vec<u8>, String> {
    match text::parse(bytes, End::default()) {
        Parsed::Intact(header, memory, ..) => Ok(text::write(&header, &memory).0),
        Parsed::Damaged { why, .. } => Err(why),
    }
}

impl FileJournal {
    /// Opens the journal in `dir` and returns its content. A damaged file is renamed. A journal
    /// that can be read but not written is used as well: records are refused until it can be
    /// written.
    pub(crate) fn open(
        dir: &StateDir,
        who: &WorkerKey,
        cell: Option<CellId>,
        boot_id: Option<&str>,
    ) -> anyhow::Result<(Memory, Self)> {
        let (path, boot) = (dir.file(AGENT_FILE), dir.file(BOOT_FILE));
        let header = Header {
            boot_id: boot_id.unwrap_or_default().into(),
            cluster: who.cluster.to_string(),
            worker: who.worker.to_string(),
        };
        let mut position = open_position(dir.file(POSITION_FILE))?;
        let found = read(&path, position.end())?;
        let exists = found.is_some();
        let Recovery { memory, damage, end } = match found {
            None => Recovery::default(),
            Some(found) => {
                let files = Files { path: &path, boot: &boot, position: &mut position };
                Recovery::of(found, files, &header, boot_id.is_some())?
            }
        };
        let before = memory.cell;
        let memory = match cell {
            Some(cell) => memory.assign(cell, clock::now())?,
            None => memory,
        };
        let (tail, problem, retry_at) = (None, None, Moment::EARLIEST);
        let memory_kept = memory.clone();
        let mut journal = Self {
            path,
            boot,
            position,
            header,
            tail,
            damage,
            memory: memory_kept,
            problem,
            retry_at,
        };
        if let Err(error) = journal.rewrite() {
            let path = journal.path.display().to_string();
            if !exists || memory.cell != before {
                return Err(error).with_context(|| format!("cannot write the journal {path}"));
            }
            journal.fall_back_to_append(end, &error);
        }
        Ok((memory, journal))
    }

    /// Appends to the existing file, if possible, because it cannot be rewritten.
    fn fall_back_to_append(&mut self, end: Option<End>, error: &std::io::Error) {
        let path = self.path.display().to_string();
        self.tail = end.and_then(|end| Some(Tail::of(state_dir::open(&self.path).ok()?, end)));
        if self.tail.is_some() {
            tracing::warn!(path, %error, "cannot rewrite the journal; it grows");
            return;
        }
        tracing::error!(path, %error, "cannot write the journal, only read it: this agent \
            continues with its content, and accepts nothing new until it can write");
        self.problem = Some(error.to_string());
    }

    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let written = self.write(record);
        self.problem = written.as_ref().err().map(|why| why.0.clone());
        written
    }

    fn write(&mut self, record: &Record) -> Result<(), JournalError> {
        let failed = |what: &str, error: std::io::Error| JournalError(format!("{what}: {error}"));
        if self.tail.is_none() {
            self.rewrite().map_err(|error| failed("cannot create the file", error))?;
        }
        let tail = self.tail.as_mut().expect("the file was rewritten");
        let position = &mut self.position;
        tail.repair(position)
            .map_err(|error| failed("cannot remove a partly written record", error))?;
        // The next incarnation follows the last one even after a reboot, so this record must
        // survive.
        let durable = matches!(record, Record::Begun { .. });
        let written = tail.append(record, position, durable.then_some(self.path.as_path()));
        written.map_err(|error| failed("cannot append a record", error))?;
        self.memory.apply(record);
        if tail.end.len >= tail.compact_at {
            self.compact();
        }
        Ok(())
    }

    /// Rewrites the file with the fewest records. If that fails the long file stays in use.
    fn compact(&mut self) {
        if let Err(error) = self.rewrite() {
            tracing::warn!(%error, "cannot compact the journal; it grows");
            if let Some(tail) = &mut self.tail {
                tail.compact_at = COMPACT_BYTES.max(2 * tail.end.len);
            }
        }
    }

    /// Writes a new file with the same content.
    fn rewrite(&mut self) -> std::io::Result<()> {
        if self.damage.is_some() {
            // Kept for inspection.
            std::fs::rename(&self.path, damaged_path(&self.path))?;
            self.damage = None;
        }
        write_boot(&self.boot, &self.header)?;
        let id = JournalId::draw();
        let header = JournalHeader { owner: self.header.clone(), id: Some(id.clone()) };
        let (bytes, end) = text::write(&header, &self.memory);
        self.position.announce(&id)?;
        let file = state_dir::replace(&self.path, &bytes)?;
        self.position.settle(id, &self.header.boot_id, end);
        self.tail = Some(Tail { torn: false, ..Tail::of(file, end) });
        Ok(())
    }

    /// Tries again, at an interval, to write a file that could not be written.
    fn retry(&mut self, now: Moment) {
        if self.problem.is_none() || now < self.retry_at {
            return;
        }
        self.retry_at = now + RETRY_INTERVAL;
        match self.rewrite() {
            Ok(()) => {
                tracing::info!(path = %self.path.display(), "the journal is writable again");
                self.problem = None;
            }
            Err(error) => self.problem = Some(error.to_string()),
        }
    }
}

impl Tail {
    /// The end of this file. There may be invalid bytes behind it.
    fn of(file: File, end: End) -> Self {
        Self { file, end, compact_at: COMPACT_BYTES.max(2 * end.len), torn: true }
    }

    /// Appends a record. With the path in `durable` it survives a power loss as well.
    fn append(
        &mut self,
        record: &Record,
        position: &mut PositionFile,
        durable: Option<&Path>,
    ) -> std::io::Result<()> {
        let (line, end) = self.end.line(record);
        let mut write = || {
            self.file.write_all_at(&line, self.end.len)?;
            // From here on the record is valid.
            self.file.write_all_at(&end.mark(), 0)?;
            position.advance(end)?;
            durable.map_or(Ok(()), |path| state_dir::sync(path, &self.file))
        };
        if let Err(error) = write() {
            self.torn = true;
            let _ = self.repair(position);
            return Err(error);
        }
        self.end = end;
        Ok(())
    }

    /// Removes what was written in part.
    fn repair(&mut self, position: &mut PositionFile) -> std::io::Result<()> {
        if self.torn {
            // The journal may be ahead of its position, never behind it.
            position.advance(self.end)?;
            self.file.write_all_at(&self.end.mark(), 0)?;
            self.file.set_len(self.end.len)?;
            self.torn = false;
        }
        Ok(())
    }
}

/// The files of a journal.
struct Files<'a> {
    path: &'a Path,
    boot: &'a Path,
    position: &'a mut PositionFile,
}

/// What the next agent takes over from a journal.
#[derive(Debug, Default)]
struct Recovery {
    memory: Memory,
    /// The damage of the file, which must be renamed.
    damage: Option<String>,
    /// Where records can be appended.
    end: Option<End>,
}

impl Recovery {
    /// Takes over a journal for the agent that `header` names.
    fn of(
        found: Parsed,
        files: Files<'_>,
        header: &Header,
        knows_boot: bool,
    ) -> anyhow::Result<Self> {
        let Files { path, boot, position } = files;
        let (why, rest) = match found {
            Parsed::Intact(JournalHeader { owner: old, .. }, ..)
                if (&old.cluster, &old.worker) != (&header.cluster, &header.worker) =>
            {
                let owner = format!("{}/{}", old.cluster, old.worker);
                let folder = path.parent().expect("a file in a state folder");
                bail!(
                    "{} is the journal of worker {owner}, not of {}/{}: give each worker its own \
                     --state-dir; if {owner} was a mistake, and nothing of it runs, delete {}",
                    path.display(),
                    header.cluster,
                    header.worker,
                    folder.display(),
                );
            }
            Parsed::Intact(..) if !knows_boot => {
                let why = "cannot read the kernel's boot id, so the times in the journal are \
                           invalid";
                (why.to_owned(), None)
            }
            Parsed::Intact(old, memory, end, reaches_position) => {
                match position.refusal(&old, reaches_position, &header.boot_id) {
                    Some(why) => (why, None),
                    None => {
                        position.adopt(&old, end);
                        return Ok(if old.owner.boot_id == header.boot_id {
                            Self { memory: *memory, damage: None, end: Some(end) }
                        } else {
                            Self { memory: after_boot(*memory), ..Self::default() }
                        });
                    }
                }
            }
            Parsed::Damaged { why, header: old, rest } => {
                let booted = || knows_boot && is_of_another_boot(boot, header);
                let booted = old.as_ref().map_or_else(booted, |old| is_after(header, old));
                (why, booted.then_some(rest))
            }
        };
        let (path, aside) = (path.display().to_string(), damaged_path(path).display().to_string());
        let memory = match rest {
            Some(rest) => {
                tracing::warn!(
                    path,
                    why,
                    aside,
                    "the journal of an earlier boot is damaged: renamed"
                );
                after_boot(*rest)
            }
            None => {
                tracing::warn!(
                    path,
                    why,
                    aside,
                    "the journal is damaged: renamed. This agent starts without it, and its \
                     worker gets no new leases until those of the previous agent have expired"
                );
                Memory::default()
            }
        };
        Ok(Self { memory, damage: Some(why), end: None })
    }
}

fn after_boot(memory: Memory) -> Memory {
    tracing::info!("the host has rebooted since the journal was written: its leases have ended");
    memory.after_boot()
}

/// Whether both boot ids are known and differ, for the same worker.
fn is_after(header: &Header, old: &Header) -> bool {
    let same_worker = (&old.cluster, &old.worker) == (&header.cluster, &header.worker);
    let known = !header.boot_id.is_empty() && !old.boot_id.is_empty();
    same_worker && known && old.boot_id != header.boot_id
}

/// Whether the previous agent ran under another boot.
fn is_of_another_boot(path: &Path, header: &Header) -> bool {
    let bytes = state_dir::read(path, BOOT_BYTES_MAX).ok().flatten().unwrap_or_default();
    text::parse_line(&bytes).is_some_and(|old| is_after(header, &old))
}

/// Writes the boot id for the journal durably.
fn write_boot(path: &Path, header: &Header) -> std::io::Result<()> {
    let bytes = text::write_line(header);
    if state_dir::read(path, BOOT_BYTES_MAX).is_ok_and(|old| old.as_ref() == Some(&bytes)) {
        return Ok(());
    }
    let file = state_dir::replace(path, &bytes)?;
    state_dir::sync(path, &file)
}

fn open_position(path: PathBuf) -> anyhow::Result<PositionFile> {
    let shown = path.display().to_string();
    PositionFile::open(path).with_context(|| format!("cannot read {shown}"))
}

/// Reads the journal, and whether it has every line up to `wanted`.
fn read(path: &Path, wanted: End) -> anyhow::Result<Option<Parsed>> {
    let bytes = state_dir::read(path, JOURNAL_BYTES_MAX + 1);
    let bytes = bytes.with_context(|| format!("cannot read the journal {}", path.display()))?;
    Ok(bytes.map(|bytes| {
        if bytes.len() as u64 <= JOURNAL_BYTES_MAX {
            text::parse(&bytes, wanted)
        } else {
            let why = format!("it is longer than {JOURNAL_BYTES_MAX} bytes");
            Parsed::Damaged { why, header: None, rest: Box::default() }
        }
    }))
}

/// The path that a damaged journal is renamed to.
fn damaged_path(path: &Path) -> PathBuf {
    path.with_extension("jsonl.lost")
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
