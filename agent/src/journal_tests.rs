//! The journal on disk: what the next agent reads from it.

use std::io::Write;

use leasehold_agent_core::journal::RememberedStream;
use leasehold_types::{
    Epoch, Incarnation, JobId, Load, NodeName, SetName, StartId, StreamKey, StreamName, TermId,
    Token,
};

use super::*;
use crate::state_dir::Locks;

const BOOT: Option<&str> = Some("boot-1");

fn who() -> WorkerKey {
    let cluster = "ci".parse().expect("a name");
    WorkerKey { cluster, worker: "w1".parse().expect("a name") }
}

fn job(id: &str) -> Record {
    Record::JobBegan { job: JobId::new(id).expect("an id"), token: None }
}

fn begun() -> Record {
    Record::Begun { incarnation: Incarnation(7), begun: Moment(5), first: Incarnation(6) }
}

/// Opens the journal, appends records, and closes it without a shutdown, as a kill does.
fn write(dir: &Path, records: &[Record]) -> (Memory, PathBuf) {
    let dir = StateDir::open(dir, Locks::Checked).expect("the folder is free");
    let (memory, mut journal) = FileJournal::open(&dir, &who(), None, BOOT).expect("it opens");
    for record in records {
        journal.append(record).expect("it is written");
    }
    (memory, journal.path)
}

/// A folder in memory where there is a file system for it, for thousands of journals: each one is
/// synced several times.
fn folder_for_many() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    dir.expect("a folder")
}

fn append(path: &Path, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().append(true).open(path);
    file.expect("it is there").write_all(bytes).expect("it is written");
}

#[test]
fn the_next_agent_reads_the_records_and_ignores_bytes_behind_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, path) = write(dir.path(), &[begun(), job("a"), job("b")]);
    let written = std::fs::read(&path).expect("it is there");
    let last = written.split_inclusive(|byte| *byte == b'\n').next_back().expect("a line");
    // Parts of a record that a kill has cut off, and foreign bytes.
    for torn in [&last[..last.len() / 2], &last[..last.len() - 1], last, b"\0\0\0\n"] {
        append(&path, torn);
        let (memory, _) = write(dir.path(), &[]);
        assert_eq!(memory.incarnation, Some(Incarnation(7)));
        let jobs: Vec<_> = memory.jobs.keys().map(JobId::as_str).collect();
        assert_eq!(jobs, ["a", "b"], "{torn:?}");
        let (again, _) = write(dir.path(), &[]);
        assert_eq!(again, memory, "compaction at the start changed the content");
    }
}

fn stream(set: &str, name: &str, load: Option<Load>, next: Vec<NodeName>) -> Record {
    let (set, stream) = (SetName::new(set), StreamName::new(name));
    let stream = StreamKey { set: set.expect("a set"), stream: stream.expect("a name") };
    Record::Stream { stream, token: Token { epoch: Epoch(1), seq: 2 }, pinned: true, load, next }
}

#[test]
fn a_share_keeps_its_load_across_restarts() {
    let dir = tempfile::tempdir().expect("a folder");
    let load = Load::from_milli(2500).expect("a load");
    let share = stream("shares:", "p/n/0", Some(load), vec![]);
    write(dir.path(), &[begun(), stream("cars", "a", None, vec![]), share]);
    let loads = |memory: &Memory| {
        let load = |held: &RememberedStream| held.load.map(|load| load.to_string());
        memory.streams.values().map(load).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let (memory, _) = write(dir.path(), &[]);
        assert_eq!(loads(&memory), [None, Some("2.5".into())]);
    }
}

/// A journal with records from before a compaction, and records appended since: what it yields, and
/// its two files.
fn journal_with_all_records(dir: &Path) -> (Memory, Saved) {
    let fresh =
        [begun(), Record::Fresh, Record::Epoch { epoch: Epoch(3), term: TermId(0), cell: None }];
    let start = Record::WorkerStarted { start: StartId::new("s").expect("an id"), running: 1 };
    let token = Token { epoch: Epoch(3), seq: 1 };
    let held = [start, Record::Pool { token, size: 8, floor: 2 }, stream("s", "x", None, vec![])];
    write(dir, &[&fresh[..], &held, &[job("a"), job("b"), job("c")]].concat());
    let ended = Record::JobEnded { job: JobId::new("b").expect("an id") };
    let renewed = Record::Renewed { until: Moment(77) };
    let (_, path) = write(dir, &[renewed, job("d"), ended, Record::Draining, job("e")]);
    let saved = Saved::of(&path);
    let (memory, _) = write(dir, &[]);
    assert_eq!((memory.jobs.len(), memory.complete), (4, true));
    (memory, saved)
}

/// A journal and its position, as they were at one time.
#[derive(Clone)]
struct Saved {
    journal: Vec<u8>,
    position: Vec<u8>,
}

impl Saved {
    fn of(path: &Path) -> Self {
        let read = |path: &Path| std::fs::read(path).expect("it is there");
        let position = path.with_file_name(POSITION_FILE);
        Self { journal: read(path), position: read(&position) }
    }

    /// Puts this journal back, or another one under the same position.
    fn put_back(&self, dir: &Path, journal: &[u8]) {
        std::fs::write(dir.join("journal.jsonl"), journal).expect("it is written");
        std::fs::write(dir.join(POSITION_FILE), &self.position).expect("it is written");
    }

    /// The memory of an agent that starts under this boot with such a journal.
    fn memory(&self, dir: &Path, journal: &[u8], boot: &str) -> Memory {
        self.put_back(dir, journal);
        let dir = StateDir::open(dir, Locks::Checked).expect("the folder is free");
        FileJournal::open(&dir, &who(), None, Some(boot)).expect("it opens").0
    }
}

/// The agent restores everything, or reports that it has no memory.
#[test]
fn a_journal_truncated_at_any_byte_is_rejected() {
    let dir = folder_for_many();
    let (memory, saved) = journal_with_all_records(dir.path());
    let (whole, boot) = (saved.journal.clone(), BOOT.expect("a boot"));
    for cut in 0..whole.len() {
        let found = saved.memory(dir.path(), &whole[..cut], boot);
        assert_eq!(found, Memory::default(), "cut at {cut}");
        assert!(dir.path().join("journal.jsonl.lost").exists(), "cut at {cut}");
    }
    assert_eq!(saved.memory(dir.path(), &whole, boot), memory);
}

#[test]
fn a_journal_with_any_bit_flipped_is_rejected() {
    let dir = folder_for_many();
    let (memory, saved) = journal_with_all_records(dir.path());
    let (whole, boot) = (saved.journal.clone(), BOOT.expect("a boot"));
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(saved.memory(dir.path(), &bytes, boot), Memory::default(), "bit {bit}");
    }
    assert_eq!(saved.memory(dir.path(), &whole, boot), memory);
}

#[test]
fn a_journal_with_lines_missing_doubled_or_swapped_is_rejected() {
    let dir = folder_for_many();
    let (_, saved) = journal_with_all_records(dir.path());
    let boot = BOOT.expect("a boot");
    let lines: Vec<&[u8]> = saved.journal.split_inclusive(|byte| *byte == b'\n').collect();
    for at in 1..lines.len() - 1 {
        let mut swapped = lines.clone();
        swapped.swap(at, at + 1);
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        let mut without = lines.clone();
        without.remove(at);
        for lines in [swapped, doubled, without] {
            let found = saved.memory(dir.path(), &lines.concat(), boot);
            assert_eq!(found, Memory::default(), "line {at}");
        }
    }
}

/// The file cannot be rewritten, for example because the disk has no space for a second one.
#[test]
fn appends_if_rewriting_fails_and_keeps_the_memory_if_writing_fails() {
    let dir = tempfile::tempdir().expect("a folder");
    let (memory, _) = journal_with_all_records(dir.path());
    let path = dir.path().join("journal.jsonl");
    append(&path, b"torn");
    // A folder in place of the new file makes its creation fail.
    let new = dir.path().join("journal.jsonl.new");
    std::fs::create_dir(&new).expect("a folder");
    let (kept, _) = write(dir.path(), &[job("f")]);
    assert_eq!(kept, memory);
    let (kept, _) = write(dir.path(), &[job("g")]);
    let added: Vec<_> =
        kept.jobs.keys().filter(|job| !memory.jobs.contains_key(*job)).map(JobId::as_str).collect();
    assert_eq!(added, ["f"]);

    // A journal of another boot must be rewritten, so nothing can be appended to it.
    let folder = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    let opened = FileJournal::open(&folder, &who(), None, Some("boot-2"));
    let (kept, mut journal) = opened.expect("it is read");
    assert_eq!(kept.incarnation, memory.incarnation);
    assert!(journal.problem.is_some());
    journal.append(&job("h")).expect_err("it cannot be written");
    journal.retry(Moment(1));
    assert!(journal.problem.is_some());
    std::fs::remove_dir(&new).expect("it was there");
    journal.retry(Moment(1));
    assert!(journal.problem.is_some(), "the retry interval has not passed");
    journal.retry(Moment(1) + RETRY_INTERVAL);
    assert_eq!(journal.problem, None);
    journal.append(&job("i")).expect("it can be written");
    drop(journal);
    let (next, _) = FileJournal::open(&folder, &who(), None, Some("boot-2")).expect("it opens");
    assert_eq!(next.jobs.keys().map(JobId::as_str).collect::<Vec<_>>(), ["i"]);
}

#[test]
fn refuses_a_journal_that_is_not_a_regular_file() {
    for name in ["journal.jsonl", "boot.json", "lock", POSITION_FILE] {
        let dir = tempfile::tempdir().expect("a folder");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join(name),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a pipe");
        let opened = StateDir::open(dir.path(), Locks::Checked)
            .and_then(|dir| FileJournal::open(&dir, &who(), None, BOOT).map(drop));
        match name {
            // Replaced without being read.
            "boot.json" => opened.expect("the agent replaces it"),
            _ => {
                let error = format!("{:#}", opened.expect_err(name));
                assert!(error.contains("not a regular file") && error.contains(name), "{error}");
            }
        }
    }
}

#[test]
fn a_damaged_line_discards_the_memory_and_renames_the_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, path) = write(dir.path(), &[begun(), job("a"), job("b")]);
    let text = std::fs::read_to_string(&path).expect("it is text");
    std::fs::write(&path, text.replacen("job_began", "job_begun", 1)).expect("it is written");
    let (memory, _) = write(dir.path(), &[]);
    assert_eq!(memory, Memory::default());
    assert!(dir.path().join("journal.jsonl.lost").exists());
}

#[test]
fn after_a_reboot_the_memory_has_no_leases_and_no_jobs() {
    let dir = tempfile::tempdir().expect("a folder");
    write(
        dir.path(),
        &[
            begun(),
            Record::Fresh,
            Record::Epoch { epoch: Epoch(3), term: TermId(0), cell: None },
            job("a"),
        ],
    );
    let dir = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    let (memory, _) = FileJournal::open(&dir, &who(), None, Some("boot-2")).expect("it opens");
    let wanted = Memory {
        incarnation: Some(Incarnation(7)),
        begun: Some((Incarnation(6), Moment(0))),
        complete: true,
        jobs_known: true,
        epoch: Some(Epoch(3)),
        ..Memory::default()
    };
    assert_eq!(memory, wanted);
}

#[test]
fn after_a_reboot_leases_have_ended_whatever_a_power_loss_left_of_the_journal() {
    let dir = tempfile::tempdir().expect("a folder");
    let records = [
        begun(),
        Record::Epoch { epoch: Epoch(3), term: TermId(0), cell: None },
        job("a"),
        Record::Fresh,
    ];
    let (_, path) = write(dir.path(), &records);
    let saved = Saved::of(&path);
    let whole = saved.journal.clone();
    // The beginning, then zeros.
    let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let kept = lines[..5].concat();
    let zeros = [&kept[..], &vec![0; whole.len() - kept.len()][..]].concat();
    // All lines, but the mark of a longer journal.
    let mark = [&End { len: 4096, sum: 0 }.mark()[..], &whole[lines[0].len()..]].concat();
    let rotten = vec![0xff; 100];
    let journals = [&zeros, &mark, &rotten, &vec![]];
    for journal in journals {
        let same = BOOT.expect("a boot");
        assert_eq!(saved.memory(dir.path(), journal, same), Memory::default(), "{journal:?}");
    }
    // The intact lines show whether the journal was complete; the jobs ended with the reboot.
    let begun = Some((Incarnation(6), Moment(0)));
    let left = [(begun, false), (begun, true), (None, false), (None, false)];
    for ((boot, journal), (begun, complete)) in ["2", "3", "4", "5"].iter().zip(journals).zip(left)
    {
        let memory = saved.memory(dir.path(), journal, boot);
        assert_eq!((memory.begun, memory.complete), (begun, complete), "{boot}: {memory:?}");
        assert!(memory.jobs_known, "{boot}: {memory:?}");
        assert!(memory.jobs.is_empty() && memory.streams.is_empty(), "{boot}: {memory:?}");
    }
}

#[test]
fn refuses_a_journal_of_another_worker_or_in_use() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), &[begun()]);
    let held = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    let error = StateDir::open(dir.path(), Locks::Checked).expect_err("it is in use").to_string();
    assert!(error.contains("in use by another agent"), "{error}");
    let other = WorkerKey { worker: "w2".parse().expect("a name"), ..who() };
    let error = FileJournal::open(&held, &other, None, BOOT)
        .expect_err("another worker's journal")
        .to_string();
    assert!(error.contains("of worker ci/w1, not of ci/w2"), "{error}");
    assert!(error.contains("if ci/w1 was a mistake, and nothing of it runs"), "{error}");
    assert!(error.ends_with(&format!("delete {}", dir.path().display())), "{error}");
}

#[test]
fn a_long_journal_is_compacted_and_keeps_its_content() {
    let dir = tempfile::tempdir().expect("a folder");
    let id = JobId::new("a").expect("an id");
    let over = [job("a"), Record::JobEnded { job: id }];
    let many: Vec<_> = std::iter::repeat_n(over, 10_000).flatten().chain([job("z")]).collect();
    let (_, path) = write(dir.path(), &many);
    let len = std::fs::metadata(&path).expect("it is there").len();
    assert!(len < 2 * COMPACT_BYTES, "{len} bytes are left");
    let (memory, _) = write(dir.path(), &[]);
    assert_eq!(memory.jobs.keys().map(JobId::as_str).collect::<Vec<_>>(), ["z"]);
}

/// The copy is from the same run of the agent or an earlier one, and is renamed over the journal or
/// written into it.
#[test]
fn an_older_copy_of_the_journal_is_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, path) = write(dir.path(), &[begun(), Record::Fresh, job("a")]);
    let earlier_run = std::fs::read(&path).expect("it is there");
    let folder = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    let (memory, mut journal) = FileJournal::open(&folder, &who(), None, BOOT).expect("it opens");
    assert_eq!(memory.jobs.len(), 1);
    journal.append(&job("b")).expect("it is written");
    let same_run = std::fs::read(&path).expect("it is there");
    journal.append(&job("c")).expect("it is written");
    drop((journal, folder));
    let newest = Saved::of(&path);
    for older in [&earlier_run, &same_run] {
        newest.put_back(dir.path(), &newest.journal);
        let copy = dir.path().join("copy");
        std::fs::write(&copy, older).expect("it is written");
        std::fs::rename(&copy, &path).expect("it is renamed");
        let (memory, _) = write(dir.path(), &[]);
        assert_eq!(memory, Memory::default());
        let aside = std::fs::read(dir.path().join("journal.jsonl.lost")).expect("it is kept");
        assert_eq!(&aside, older);
        assert_eq!(newest.memory(dir.path(), older, BOOT.expect("a boot")), Memory::default());
        // Nor does it count after a reboot, under which its jobs would have ended.
        newest.put_back(dir.path(), &newest.journal);
        let memory = newest.memory(dir.path(), &newest.journal, "boot-2");
        assert!(memory.complete && memory.jobs.is_empty(), "{memory:?}");
        std::fs::write(&path, older).expect("it is written");
        let folder = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
        let (memory, _) =
            FileJournal::open(&folder, &who(), None, Some("boot-2")).expect("it opens");
        assert_eq!(memory, Memory::default());
    }
    let memory = newest.memory(dir.path(), &newest.journal, BOOT.expect("a boot"));
    assert_eq!(memory.jobs.len(), 3, "the newest one counts");
}

#[test]
fn an_older_copy_of_the_position_changes_nothing_or_is_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, path) = write(dir.path(), &[begun(), Record::Fresh, job("a")]);
    let earlier_run = Saved::of(&path);
    let folder = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    let (_, mut journal) = FileJournal::open(&folder, &who(), None, BOOT).expect("it opens");
    journal.append(&job("b")).expect("it is written");
    let same_run = Saved::of(&path);
    journal.append(&job("c")).expect("it is written");
    drop((journal, folder));
    let newest = Saved::of(&path).journal;
    let boot = BOOT.expect("a boot");
    assert_eq!(same_run.memory(dir.path(), &newest, boot).jobs.len(), 3);
    assert_eq!(earlier_run.memory(dir.path(), &newest, boot), Memory::default());
    for position in [None, Some(&b"torn"[..])] {
        std::fs::write(&path, &newest).expect("it is written");
        let position_path = dir.path().join(POSITION_FILE);
        match position {
            None => std::fs::remove_file(position_path).expect("it was there"),
            Some(bytes) => std::fs::write(position_path, bytes).expect("it is written"),
        }
        assert_eq!(write(dir.path(), &[]).0, Memory::default(), "{position:?}");
    }
}

/// A kill, or a disk error, between any two of the steps in which a journal is rewritten.
#[test]
fn a_rewrite_that_is_cut_off_loses_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, path) = write(dir.path(), &[begun(), Record::Fresh, job("a")]);
    let before = Saved::of(&path);
    let boot = BOOT.expect("a boot");
    let jobs = |memory: &Memory| memory.jobs.len();
    // The next file is announced, and is not in its place.
    let folder = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    let new = dir.path().join("journal.jsonl.new");
    std::fs::create_dir(&new).expect("a folder makes the rewrite fail");
    let (memory, mut journal) = FileJournal::open(&folder, &who(), None, BOOT).expect("it opens");
    assert_eq!(jobs(&memory), 1);
    journal.append(&job("b")).expect("it is appended to the file before");
    drop((journal, folder));
    std::fs::remove_dir(&new).expect("it was there");
    let announced = Saved::of(&path);
    assert_eq!(jobs(&announced.memory(dir.path(), &announced.journal, boot)), 2);
    assert_eq!(announced.memory(dir.path(), &before.journal, boot), Memory::default());
    // It is in its place, and the position does not say so yet.
    let folder = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    announced.put_back(dir.path(), &announced.journal);
    let mut position = PositionFile::open(dir.path().join(POSITION_FILE)).expect("it is read");
    let id = JournalId::draw();
    position.announce(&id).expect("it is written");
    let (_, journal) = FileJournal::open(&folder, &who(), None, BOOT).expect("it opens");
    let header = JournalHeader { owner: journal.header.clone(), id: Some(id.clone()) };
    let next = text::write(&header, &journal.memory).0;
    drop((journal, folder));
    announced.put_back(dir.path(), &next);
    let mut position = PositionFile::open(dir.path().join(POSITION_FILE)).expect("it is read");
    position.announce(&id).expect("it is written");
    let in_place = Saved::of(&path);
    for _ in 0..2 {
        assert_eq!(jobs(&in_place.memory(dir.path(), &next, boot)), 2);
        // Cut off again, in the rewrite of the agent that finds it so.
        assert_eq!(jobs(&write(dir.path(), &[]).0), 2);
    }
}

#[test]
fn a_journal_of_an_earlier_version_is_taken_up_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let (memory, path) = write(dir.path(), &[begun(), Record::Fresh, job("a")]);
    drop(memory);
    let folder = StateDir::open(dir.path(), Locks::Checked).expect("the folder is free");
    let (memory, journal) = FileJournal::open(&folder, &who(), None, BOOT).expect("it opens");
    let header = JournalHeader { owner: journal.header.clone(), id: None };
    let earlier = text::write(&header, &memory).0;
    drop((journal, folder));
    std::fs::write(&path, &earlier).expect("it is written");
    std::fs::remove_file(dir.path().join(POSITION_FILE)).expect("it was there");
    assert_eq!(write(dir.path(), &[job("b")]).0.jobs.len(), 1);
    assert_eq!(write(dir.path(), &[]).0.jobs.len(), 2);
    std::fs::write(&path, &earlier).expect("an older copy");
    assert_eq!(write(dir.path(), &[]).0, Memory::default());
}
