//! The journal on disk: what the next agent reads of it.

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
    for ((boot, journal), (begun, complete)) in ["2", "3", "4", "5"].iter().zip(journals).zip(left)
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
