//! The journal on disk: one JSON line a record, appended with one write each, so that a killed
//! agent's successor finds it. It outlives the process, not the host: nothing is synced, and after
//! another boot of the host only the epoch and the incarnation still count.
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
use leasehold_agent_core::{Journal, JournalError, Memory, RAISE_MAX, Record};
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
        if let Err(error) = write_once(&mut self.file, &line) {
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
    memory.after_boot(fastrand::u64(1..=RAISE_MAX))
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
mod tests {
    use leasehold_agent_core::journal::RememberedStream;
    use leasehold_types::{Epoch, Incarnation, JobId, Moment};

    use super::*;

    const BOOT: Option<&str> = Some("boot-1");

    fn who() -> WorkerKey {
        let cluster = "ci".parse().expect("a name");
        WorkerKey { cluster, worker: "w1".parse().expect("a name") }
    }

    fn job(id: &str) -> Record {
        Record::JobBegan { job: JobId::new(id).expect("an id") }
    }

    fn begun() -> Record {
        Record::Begun { incarnation: Incarnation(7), begun: Moment(5), first: Incarnation(6) }
    }

    /// Opens, appends, and leaves as a killed process does.
    fn write(dir: &Path, records: &[Record]) -> (Memory, PathBuf) {
        let dir = StateDir::open(dir).expect("the folder is free");
        let (memory, mut journal) = FileJournal::open(&dir, &who(), BOOT).expect("it opens");
        for record in records {
            journal.append(record).expect("it is written");
        }
        (memory, journal.path)
    }

    #[test]
    fn the_next_agent_reads_what_was_appended_and_ignores_a_torn_tail() {
        let dir = tempfile::tempdir().expect("a folder");
        let (_, path) = write(dir.path(), &[begun(), job("a"), job("b")]);
        let mut file = OpenOptions::new().append(true).open(&path).expect("it is there");
        file.write_all(br#"{"record":"job_began","job":"c"}"#).expect("it is written");
        let (memory, _) = write(dir.path(), &[]);
        assert_eq!(memory.incarnation, Some(Incarnation(7)));
        let jobs: Vec<_> = memory.jobs.iter().map(JobId::as_str).collect();
        assert_eq!(jobs, ["a", "b"]);
        let (again, _) = write(dir.path(), &[]);
        assert_eq!(again, memory, "compaction at the start changed what it adds up to");
    }

    #[test]
    fn a_share_keeps_its_load_and_lines_from_before_there_were_shares_are_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (_, path) = write(dir.path(), &[begun()]);
        let mut file = OpenOptions::new().append(true).open(&path).expect("it is there");
        let line = |set: &str, stream: &str, more: &str| {
            format!(r#"{{"record":"stream","stream":{{"set":"{set}","stream":"{stream}"}},"#)
                + &format!(r#""token":{{"epoch":1,"seq":2}},"pinned":false{more}}}"#)
                + "\n"
        };
        let lines = line("cars", "a", "") + &line("shares:", "p/n/0", r#","load":2500"#);
        file.write_all(lines.as_bytes()).expect("it is written");
        let loads = |memory: &Memory| {
            let load = |held: &RememberedStream| held.load.map(|load| load.to_string());
            memory.streams.values().map(load).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            let (memory, _) = write(dir.path(), &[]);
            assert_eq!(loads(&memory), [None, Some("2.5".into())]);
        }
    }

    #[test]
    fn a_damaged_line_loses_the_journal_and_sets_it_aside() {
        let dir = tempfile::tempdir().expect("a folder");
        let (_, path) = write(dir.path(), &[begun(), job("a"), job("b")]);
        let text = std::fs::read_to_string(&path).expect("it is text");
        std::fs::write(&path, text.replacen("job_began", "job_bega", 1)).expect("it is written");
        let (memory, _) = write(dir.path(), &[]);
        assert_eq!(memory, Memory::default());
        assert!(dir.path().join("journal.jsonl.lost").exists());
    }

    #[test]
    fn after_another_boot_it_tells_no_lease_and_no_job() {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), &[begun(), Record::Fresh, Record::Epoch { epoch: Epoch(3) }, job("a")]);
        let dir = StateDir::open(dir.path()).expect("the folder is free");
        let (memory, _) = FileJournal::open(&dir, &who(), Some("boot-2")).expect("it opens");
        let Some(Incarnation(above @ 8..)) = memory.incarnation else { panic!("{memory:?}") };
        assert!(above <= 7 + RAISE_MAX, "{memory:?}");
        let wanted = Memory {
            incarnation: Some(Incarnation(above)),
            begun: Some((Incarnation(6), Moment(0))),
            complete: true,
            jobs_known: true,
            epoch: Some(Epoch(3)),
            ..Memory::default()
        };
        assert_eq!(memory, wanted);
    }

    /// What an agent finds that starts under this boot over such a journal.
    fn found(dir: &Path, journal: &[u8], boot: &str) -> Memory {
        std::fs::write(dir.join("journal.jsonl"), journal).expect("it is written");
        let dir = StateDir::open(dir).expect("the folder is free");
        FileJournal::open(&dir, &who(), Some(boot)).expect("it opens").0
    }

    #[test]
    fn whatever_a_power_loss_leaves_of_a_journal_its_leases_are_over_after_the_boot() {
        let dir = tempfile::tempdir().expect("a folder");
        let records = [begun(), Record::Epoch { epoch: Epoch(3) }, job("a"), Record::Fresh];
        let (_, path) = write(dir.path(), &records);
        let whole = std::fs::read(&path).expect("it is there");
        // The beginning is there, and zeros for the rest.
        let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        let kept = lines[..3].concat();
        let zeros = [&kept[..], &vec![0; whole.len() - kept.len()][..], b"\n"].concat();
        let last = [&whole[..], b"\0\0\0\0\n"].concat();
        let rotten = vec![0xff; 100];
        let journals = [&zeros, &last, &rotten, &vec![]];
        for journal in journals {
            let same = BOOT.expect("a boot");
            assert_eq!(found(dir.path(), journal, same), Memory::default(), "{journal:?}");
        }
        // What is left says whether it tells of everything; the jobs are over with the boot.
        let begun = Some((Incarnation(6), Moment(0)));
        let left = [(begun, false), (begun, true), (None, false), (None, false)];
        for ((boot, journal), (begun, complete)) in
            ["2", "3", "4", "5"].iter().zip(journals).zip(left)
        {
            let memory = found(dir.path(), journal, boot);
            assert_eq!((memory.begun, memory.complete), (begun, complete), "{boot}: {memory:?}");
            assert!(memory.jobs_known, "{boot}: {memory:?}");
            assert!(memory.jobs.is_empty() && memory.streams.is_empty(), "{boot}: {memory:?}");
        }
    }

    #[test]
    fn a_journal_of_another_worker_or_in_use_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), &[begun()]);
        let held = StateDir::open(dir.path()).expect("the folder is free");
        let error = StateDir::open(dir.path()).expect_err("it is in use").to_string();
        assert!(error.contains("in use by another agent"), "{error}");
        let other = WorkerKey { worker: "w2".parse().expect("a name"), ..who() };
        let error = FileJournal::open(&held, &other, BOOT).expect_err("not its own").to_string();
        assert!(error.contains("ci/w1"), "{error}");
    }

    #[test]
    fn a_long_journal_is_compacted_and_keeps_its_meaning() {
        let dir = tempfile::tempdir().expect("a folder");
        let id = JobId::new("a").expect("an id");
        let over = [job("a"), Record::JobEnded { job: id }];
        let many: Vec<_> = std::iter::repeat_n(over, 10_000).flatten().chain([job("z")]).collect();
        let (_, path) = write(dir.path(), &many);
        let len = std::fs::metadata(&path).expect("it is there").len();
        assert!(len < 2 * COMPACT_BYTES, "{len} bytes are left");
        let (memory, _) = write(dir.path(), &[]);
        assert_eq!(memory.jobs.iter().map(JobId::as_str).collect::<Vec<_>>(), ["z"]);
    }
}
