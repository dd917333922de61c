//! The demo's folders: a queue of real files, growing sources, the sink, journals, manifests.
//! Files appear whole, by rename, if another process reads them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::evidence::Evidence;
use crate::journal::{Event, Journals, Writer};
use crate::records::{self, Records, Write};

/// Jobs that wait at least, so that no slot stays free for want of one.
const PENDING_MIN: usize = 40;
/// The most jobs that one demo makes: one that stays up for hours must not fill the disk.
const JOBS_MAX: usize = 20_000;
/// Bytes of a job's file, give or take half of it.
const JOB_BYTES: usize = 100_000;

/// The work folder, and the paths in it.
#[derive(Debug)]
pub struct Work {
    root: TempDir,
    jobs: usize,
    text: String,
}

impl Work {
    /// Makes a fresh folder below `parent`.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn new(parent: &Path) -> Result<Self> {
        let failed = || format!("cannot make a work folder in {}", parent.display());
        fs::create_dir_all(parent).with_context(failed)?;
        let root = tempfile::Builder::new().prefix("run-").tempdir_in(parent);
        let work = Self { root: root.with_context(failed)?, jobs: 0, text: prose(4 * JOB_BYTES) };
        let parts = ["queue/new", "queue/pending", "queue/taken", "queue/done"];
        let more = ["sources", "sink", "journal", "manifests", "state", "agents", "logs"];
        for part in parts.iter().chain(&more) {
            fs::create_dir_all(work.path(part))?;
        }
        Ok(work)
    }

    /// A path below the folder.
    #[must_use]
    pub fn path(&self, part: &str) -> PathBuf {
        self.root.path().join(part)
    }

    /// A path below the folder, as an argument of a command.
    #[must_use]
    pub fn argument(&self, part: &str) -> String {
        self.path(part).display().to_string()
    }

    /// Leaves the folder where it is when the demo ends.
    pub fn keep(&mut self) {
        self.root.disable_cleanup(true);
    }

    /// Puts a manifest in force, or replaces it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn put_manifest(&self, name: &str, text: &str) -> Result<()> {
        let part = self.path("manifest.part");
        fs::write(&part, text)?;
        fs::rename(part, self.path("manifests").join(name))?;
        Ok(())
    }

    /// Fills the queue up, and records which jobs were made.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn feed(&mut self, journal: &mut Writer) -> Result<usize> {
        let mut pending = fs::read_dir(self.path("queue/pending"))?.count();
        while pending < PENDING_MIN && self.jobs < JOBS_MAX {
            self.jobs += 1;
            let job = format!("job-{:05}", self.jobs);
            let start = fastrand::usize(..JOB_BYTES);
            let length = JOB_BYTES / 2 + fastrand::usize(..JOB_BYTES);
            let part = self.path("queue/new").join(&job);
            fs::write(&part, &self.text.as_bytes()[start..start + length])?;
            journal.write("demo", Event::JobCreated { job: job.clone() })?;
            fs::rename(part, self.path("queue/pending").join(job))?;
            pending += 1;
        }
        Ok(pending)
    }

    /// Puts back what a worker had taken that is dead for sure.
    ///
    /// # Errors
    /// If a file cannot be renamed.
    pub fn put_back(
        &self,
        worker: &str,
        started: &BTreeSet<String>,
        to: &mut Writer,
    ) -> Result<()> {
        for entry in fs::read_dir(self.path("queue/taken"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some((_, job)) = name.split_once('@').filter(|(owner, _)| *owner == worker) {
                let job = job.to_owned();
                fs::rename(&path, self.path("queue/pending").join(&job))?;
                let event = if started.contains(&job) {
                    Event::JobRetried { job }
                } else {
                    Event::JobPutBack { job }
                };
                to.write(worker, event)?;
            }
        }
        Ok(())
    }

    /// The job ids in a folder of the queue.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn queued(&self, part: &str) -> Result<BTreeSet<String>> {
        let mut jobs = BTreeSet::new();
        for entry in fs::read_dir(self.path("queue").join(part))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let job = name.split_once('@').map_or(&*name, |(_, job)| job);
            jobs.insert(job.strip_suffix(".xz").unwrap_or(job).to_owned());
        }
        Ok(jobs)
    }

    /// What the journals record now, and who wrote what to the sink.
    ///
    /// # Errors
    /// If a file cannot be understood.
    pub fn evidence(&self) -> Result<Evidence> {
        Ok(Evidence::new(Journals::new(self.path("journal")).read()?))
    }

    /// Compares all sources with the sink, and lists the writes. If the demo ended `early`, records
    /// that no worker has started to copy are left out.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn records(
        &self,
        set: &str,
        streams: &[String],
        early: bool,
    ) -> Result<(Records, Vec<Write>)> {
        let (mut all, mut writes) = (Records::default(), Vec::new());
        for stream in streams {
            let source = fs::read_to_string(self.source(stream))?;
            let mut source: Vec<&str> = source.lines().collect();
            let sink = records::read_sink(&self.sink(stream))?;
            if early {
                let last = sink.iter().map(|entry| entry.record).max().unwrap_or(0);
                source.truncate(usize::try_from(last)?);
            }
            all.add(records::compare(stream, &source, &sink));
            writes.extend(sink.into_iter().map(|entry| Write {
                stream: format!("{set}/{stream}"),
                worker: entry.worker,
                token: entry.token,
                at_ns: entry.at_ns,
            }));
        }
        Ok((all, writes))
    }

    fn source(&self, stream: &str) -> PathBuf {
        self.path("sources").join(format!("{}.log", quote(stream)))
    }

    fn sink(&self, stream: &str) -> PathBuf {
        self.path("sink").join(format!("{}.jsonl", quote(stream)))
    }
}

/// A file name for a stream's name: percent-encoded like a part of an address, as the workers do.
#[must_use]
pub fn quote(name: &str) -> String {
    let mut quoted = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                quoted.push(char::from(byte));
            }
            _ => quoted += &format!("%{byte:02X}"),
        }
    }
    quoted
}

/// Lets the sources grow, in a thread of its own.
#[derive(Debug)]
pub struct Sources {
    stop: Arc<AtomicBool>,
    pause_ms: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Sources {
    /// Adds a record to every stream's source again and again.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub fn start(work: &Work, streams: &[String]) -> Result<Self> {
        let files: Vec<File> = streams
            .iter()
            .map(|stream| File::create(work.source(stream)))
            .collect::<Result<_, _>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let pause_ms = Arc::new(AtomicU64::new(40));
        let written = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, pause_ms, written) = (stop.clone(), pause_ms.clone(), written.clone());
            move || grow(&files, &stop, &pause_ms, &written)
        });
        Ok(Self { stop, pause_ms, written, thread: Some(thread) })
    }

    /// Records that were written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Goes on more slowly: for a demo that stays up.
    pub fn slow_down(&self) {
        self.pause_ms.store(1000, Ordering::Relaxed);
    }

    /// Stops after a whole record each.
    ///
    /// # Errors
    /// If a source could not be written.
    pub fn stop(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(anyhow::anyhow!("the sources' thread panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("the sources: {error:#}");
        }
    }
}

fn grow(
    files: &[File],
    stop: &AtomicBool,
    pause_ms: &AtomicU64,
    written: &AtomicU64,
) -> Result<()> {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        for mut file in files {
            file.write_all(format!("{number} {:016x}\n", fastrand::u64(..)).as_bytes())?;
        }
        written.fetch_add(files.len() as u64, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(pause_ms.load(Ordering::Relaxed)));
    }
    Ok(())
}

/// Text that compresses as prose does.
fn prose(bytes: usize) -> String {
    const WORDS: [&str; 16] = [
        "lease", "token", "worker", "stream", "the", "a", "of", "grants", "beats", "while",
        "drain", "epoch", "leader", "slots", "and", "never",
    ];
    let mut text = String::with_capacity(bytes + 32);
    while text.len() < bytes {
        text += WORDS[fastrand::usize(..WORDS.len())];
        text.push(' ');
        if fastrand::usize(..8) == 0 {
            text += &format!("{:x}\n", fastrand::u32(..));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_of_streams() {
        assert_eq!(quote("stream:cars:new"), "stream%3Acars%3Anew");
        assert_eq!(quote("../a b"), "..%2Fa%20b");
    }

    #[test]
    fn a_queue_fills_up_and_taken_jobs_come_back() {
        let parent = tempfile::tempdir().unwrap();
        let mut work = Work::new(parent.path()).unwrap();
        let mut journal = Writer::open(&work.path("journal/demo.jsonl")).unwrap();
        assert_eq!(work.feed(&mut journal).unwrap(), PENDING_MIN);
        let take = |job: &str, worker: &str| {
            let taken = work.path("queue/taken").join(format!("{worker}@{job}"));
            fs::rename(work.path("queue/pending").join(job), taken).unwrap();
        };
        take("job-00001", "w1");
        take("job-00002", "w1");
        take("job-00003", "w2");
        let started = BTreeSet::from(["job-00001".to_owned()]);
        work.put_back("w1", &started, &mut journal).unwrap();
        assert_eq!(work.queued("taken").unwrap(), BTreeSet::from(["job-00003".to_owned()]));
        let evidence = work.evidence().unwrap();
        assert_eq!(evidence.retried, started);
        assert_eq!(evidence.created.len(), PENDING_MIN);
    }

    #[test]
    fn sources_grow_until_they_stop() {
        let parent = tempfile::tempdir().unwrap();
        let work = Work::new(parent.path()).unwrap();
        let streams = ["a".to_owned(), "b:c".to_owned()];
        let mut sources = Sources::start(&work, &streams).unwrap();
        while sources.written() < 4 {
            std::thread::yield_now();
        }
        sources.stop().unwrap();
        let (records, _) = work.records("s", &streams, false).unwrap();
        assert_eq!(records.written as u64, sources.written());
        assert_eq!(records.lost, records.written, "no worker copied them");
        let (records, _) = work.records("s", &streams, true).unwrap();
        assert_eq!((records.written, records.lost), (0, 0), "no worker had started to copy them");
    }
}
