//! The journal on disk: one line a record, written before the record is used, so that a killed
//! agent's successor finds it. It outlives the process, not the host: only the record of a start is
//! synced, and after another boot of the host only the epoch and the incarnation still count.
//!
//! Invariant: within one boot the file is a journal as [`text`] has it, which adds up to a
//! [`Memory`]; any other file is damaged, and its agent has no memory. After a power loss it may be
//! anything. So the boot has a file of its own, which is synced before the journal's first line
//! under it: a journal of another boot is known as such whatever it is now.

mod text;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_agent_core::{Journal, JournalError, Memory, Record};
use leasehold_types::{Moment, WorkerKey};

use crate::state_dir::{self, StateDir};
use text::{End, Header, Parsed};

/// The file that says under which boot the journal is written.
const BOOT_FILE: &str = "boot.json";
/// Bytes of it that are read.
const BOOT_BYTES_MAX: u64 = 4096;
/// Bytes of a journal that is read; a longer one counts as lost. Twenty thousand streams and ten
/// thousand jobs with the longest names need 20 MB.
const JOURNAL_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// A journal is rewritten with the fewest records once it is this long and twice as long as after
/// the last time.
const COMPACT_BYTES: u64 = 256 * 1024;
/// How often it is looked whether a journal that could not be written can be.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Where one agent's records go.
#[derive(Debug)]
pub(crate) enum AgentJournal {
    /// Nowhere: a restarted agent has no memory.
    None,
    /// A file.
    File(Box<FileJournal>),
}

impl AgentJournal {
    /// Why it cannot be written now; none where it can.
    pub(crate) fn problem(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::File(journal) => journal.problem.as_deref(),
        }
    }

    /// Looks, now and then, whether one that could not be written can be.
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
    header: Header,
    /// None until the file could be begun: the one of the previous agent is in its place.
    tail: Option<Tail>,
    /// Why the file of the previous agent is to be set aside first.
    damage: Option<String>,
    /// What the file adds up to.
    memory: Memory,
    /// Why the last record could not be written.
    problem: Option<String>,
    /// When that is to be tried again.
    retry_at: Moment,
}

/// The end of the file.
#[derive(Debug)]
struct Tail {
    file: File,
    end: End,
    compact_at: u64,
    /// A record was written in part, or the mark was, and could not be taken back yet.
    torn: bool,
}

impl FileJournal {
    /// Takes up the journal in `dir`, and says what it adds up to. A damaged one is set aside. One
    /// that was found and cannot be written now is a memory all the same: records are refused until
    /// it can be.
    pub(crate) fn open(
        dir: &StateDir,
        who: &WorkerKey,
        boot_id: Option<&str>,
    ) -> anyhow::Result<(Memory, Self)> {
        let (path, boot) = (dir.file("journal.jsonl"), dir.file(BOOT_FILE));
        let header = Header {
            boot_id: boot_id.unwrap_or_default().into(),
            cluster: who.cluster.to_string(),
            worker: who.worker.to_string(),
        };
        let found = read(&path)?;
        let exists = found.is_some();
        let Recovery { memory, damage, end } = match found {
            None => Recovery::default(),
            Some(found) => Recovery::of(found, &path, &boot, &header, boot_id.is_some())?,
        };
        let (tail, problem, retry_at) = (None, None, Moment(0));
        let memory_kept = memory.clone();
        let mut journal =
            Self { path, boot, header, tail, damage, memory: memory_kept, problem, retry_at };
        if let Err(error) = journal.rewrite() {
            let path = journal.path.display().to_string();
            if !exists {
                return Err(error).with_context(|| format!("cannot write the journal {path}"));
            }
            journal.fall_back_to_append(end, &error);
        }
        Ok((memory, journal))
    }

    /// The file cannot be rewritten: more is written behind its end, if that can be.
    fn fall_back_to_append(&mut self, end: Option<End>, error: &std::io::Error) {
        let path = self.path.display().to_string();
        self.tail = end.and_then(|end| Some(Tail::of(state_dir::open(&self.path).ok()?, end)));
        if self.tail.is_some() {
            tracing::warn!(path, %error, "cannot rewrite the journal; it grows");
            return;
        }
        tracing::error!(path, %error, "cannot write the journal, only read it: this agent \
                                       continues with what \
            the journal says, and accepts nothing new until it can write");
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
        let tail = self.tail.as_mut().expect("it was begun");
        tail.repair().map_err(|error| failed("cannot remove a partly written record", error))?;
        // After a boot the next number follows the last one: that one must not be lost.
        let durable = matches!(record, Record::Begun { .. });
        let written = tail.append(record, durable.then_some(self.path.as_path()));
        written.map_err(|error| failed("cannot append a record", error))?;
        self.memory.apply(record);
        if tail.end.len >= tail.compact_at {
            self.compact();
        }
        Ok(())
    }

    /// Rewrites the file with the fewest records; where that fails the long one stays in use.
    fn compact(&mut self) {
        if let Err(error) = self.rewrite() {
            tracing::warn!(%error, "cannot compact the journal; it grows");
            if let Some(tail) = &mut self.tail {
                tail.compact_at = COMPACT_BYTES.max(2 * tail.end.len);
            }
        }
    }

    /// Begins the file again, with what it adds up to.
    fn rewrite(&mut self) -> std::io::Result<()> {
        if self.damage.is_some() {
            // People may want to look at it.
            std::fs::rename(&self.path, damaged_path(&self.path))?;
            self.damage = None;
        }
        write_boot(&self.boot, &self.header)?;
        let (bytes, end) = text::write(&self.header, &self.memory);
        let file = state_dir::replace(&self.path, &bytes)?;
        self.tail = Some(Tail { torn: false, ..Tail::of(file, end) });
        Ok(())
    }

    /// Looks, now and then, whether a file that could not be written can be.
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
    /// The end of this file, behind which there may be what does not count.
    fn of(file: File, end: End) -> Self {
        Self { file, end, compact_at: COMPACT_BYTES.max(2 * end.len), torn: true }
    }

    /// Appends a record; a `durable` one, in the file of this path, outlives the host's power, too.
    fn append(&mut self, record: &Record, durable: Option<&Path>) -> std::io::Result<()> {
        let (line, end) = self.end.line(record);
        let write = || {
            self.file.write_all_at(&line, self.end.len)?;
            // The record counts from here on.
            self.file.write_all_at(&end.mark(), 0)?;
            durable.map_or(Ok(()), |path| state_dir::sync(path, &self.file))
        };
        if let Err(error) = write() {
            self.torn = true;
            let _ = self.repair();
            return Err(error);
        }
        self.end = end;
        Ok(())
    }

    /// Takes back what was written in part.
    fn repair(&mut self) -> std::io::Result<()> {
        if self.torn {
            self.file.write_all_at(&self.end.mark(), 0)?;
            self.file.set_len(self.end.len)?;
            self.torn = false;
        }
        Ok(())
    }
}

/// What a journal that was found is to its next agent.
#[derive(Debug, Default)]
struct Recovery {
    memory: Memory,
    /// Why the file is to be set aside.
    damage: Option<String>,
    /// Where more can be written in it.
    end: Option<End>,
}

impl Recovery {
    /// Judges it for the agent that `header` names.
    fn of(
        found: Parsed,
        path: &Path,
        boot: &Path,
        header: &Header,
        knows_boot: bool,
    ) -> anyhow::Result<Self> {
        let (why, rest) = match found {
            Parsed::Intact(old, ..)
                if (&old.cluster, &old.worker) != (&header.cluster, &header.worker) =>
            {
                bail!(
                    "{} is the journal of worker {}/{}, not of {}/{}: give each worker its own \
                     --state-dir",
                    path.display(),
                    old.cluster,
                    old.worker,
                    header.cluster,
                    header.worker,
                );
            }
            Parsed::Intact(..) if !knows_boot => {
                let why = "cannot read the kernel's boot id, so the times in the journal mean \
                           nothing";
                (why.to_owned(), None)
            }
            Parsed::Intact(old, memory, end) if old.boot_id == header.boot_id => {
                return Ok(Self { memory: *memory, damage: None, end: Some(end) });
            }
            Parsed::Intact(_, memory, _) => {
                return Ok(Self { memory: after_boot(*memory), ..Self::default() });
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
                     worker gets no \
                     new leases until those of the previous agent have expired"
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

/// Whether the boot that `header` names is known, and is another than that of `old`, of the same
/// worker.
fn is_after(header: &Header, old: &Header) -> bool {
    let same_worker = (&old.cluster, &old.worker) == (&header.cluster, &header.worker);
    let known = !header.boot_id.is_empty() && !old.boot_id.is_empty();
    same_worker && known && old.boot_id != header.boot_id
}

/// Whether the last agent here ran under another boot.
fn is_of_another_boot(path: &Path, header: &Header) -> bool {
    let bytes = state_dir::read(path, BOOT_BYTES_MAX).ok().flatten().unwrap_or_default();
    text::parse_header(&bytes).is_some_and(|old| is_after(header, &old))
}

/// Notes under which boot the journal is written from now on, durably.
fn write_boot(path: &Path, header: &Header) -> std::io::Result<()> {
    let bytes = text::write_header(header);
    if state_dir::read(path, BOOT_BYTES_MAX).is_ok_and(|old| old.as_ref() == Some(&bytes)) {
        return Ok(());
    }
    let file = state_dir::replace(path, &bytes)?;
    state_dir::sync(path, &file)
}

fn read(path: &Path) -> anyhow::Result<Option<Parsed>> {
    let bytes = state_dir::read(path, JOURNAL_BYTES_MAX + 1);
    let bytes = bytes.with_context(|| format!("cannot read the journal {}", path.display()))?;
    Ok(bytes.map(|bytes| match bytes.len() as u64 > JOURNAL_BYTES_MAX {
        false => text::parse(&bytes),
        true => {
            let why = format!("it is longer than {JOURNAL_BYTES_MAX} bytes");
            Parsed::Damaged { why, header: None, rest: Box::default() }
        }
    }))
}

/// Where a damaged journal is kept.
fn damaged_path(path: &Path) -> PathBuf {
    path.with_extension("jsonl.lost")
}

#[cfg(test)]
mod tests;
