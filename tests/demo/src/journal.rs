//! Journals: JSON lines that the workers (and the demo itself) write about what they did. A line
//! that is not understood is an error, for a checker must not overlook anything.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::clock;

/// A line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When, by [`clock::now_ns`].
    pub at_ns: u64,
    /// When, by [`clock::wall_us`].
    pub wall_us: u64,
    /// Who did it, or whom it happened to.
    pub worker: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A job began to run.
    JobStart {
        /// The job.
        job: String,
    },
    /// A job is done.
    JobEnd {
        /// The job.
        job: String,
    },
    /// A job that had been begun was put back into the queue, for its worker was killed.
    JobRetried {
        /// The job.
        job: String,
    },
    /// A job that was taken and not begun was put back.
    JobPutBack {
        /// The job.
        job: String,
    },
    /// A worker begins to watch its lease.
    Watching,
    /// A worker sees a token for the first time: of a stream, or of its pool.
    Seen {
        /// The stream set; none for the pool.
        set: Option<String>,
        /// The stream; none for the pool.
        stream: Option<String>,
        /// The token.
        token: String,
    },
    /// A worker's lease as the watch reported it.
    Lease {
        /// Whether the agent is connected to a leader.
        connected: bool,
        /// The pool's size.
        pool: u32,
        /// When the pool lease ends, by the worker's clock.
        until_ns: Option<u64>,
    },
    /// A worker begins to own a stream.
    OwnStart {
        /// The stream set.
        set: String,
        /// The stream.
        stream: String,
        /// The token.
        token: String,
        /// The load that came with it, in thousandths: where it is a share of a pipeline.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        load_milli: Option<u64>,
    },
    /// A worker owns a stream no longer.
    OwnEnd {
        /// The stream set.
        set: String,
        /// The stream.
        stream: String,
        /// The token.
        token: String,
        /// Why.
        why: String,
        /// Until when its lease lasted by the worker's clock, where that was its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ns: Option<u64>,
    },
    /// A worker has ended, as it was asked to.
    Ended,
    /// A worker was asked to end by a signal.
    ToldToEnd {
        /// How many jobs it ran.
        running: usize,
        /// How many streams it owned.
        owned: usize,
    },
    /// The demo put a job into the queue.
    JobCreated {
        /// The job.
        job: String,
    },
    /// The demo killed this worker, and it is dead.
    Killed,
    /// The worker was stopped by SIGSTOP: from now on it does nothing.
    Stopped,
    /// It resumes.
    Continued,
    /// From now on at most this many jobs may run at once.
    Budget {
        /// How many.
        max_jobs: u32,
    },
    /// Something was done to the fleet, in words.
    Fault {
        /// What.
        what: String,
    },
    /// A phase of the demo has ended.
    Phase(Phase),
}

/// A phase of the demo: from one stable point to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// When it began.
    pub from_ns: u64,
    /// Since when its end's state has lasted.
    pub stable_ns: u64,
    /// When it ended.
    pub to_ns: u64,
    /// The highest `maxJobs` that was in force in it.
    pub max_jobs: u32,
    /// Whether this many jobs must have run at once while it was stable: the queue was long.
    pub full: bool,
    /// The workers that live and take streams at its end.
    pub living: Vec<String>,
}

/// Writes the demo's own journal.
#[derive(Debug)]
pub struct Writer(File);

impl Writer {
    /// Appends to `path`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(file.with_context(|| format!("cannot write {}", path.display()))?))
    }

    /// Adds a line, with the time now.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, worker: &str, event: Event) -> Result<()> {
        let (at_ns, wall_us) = (clock::now_ns(), clock::wall_us());
        let line = Line { at_ns, wall_us, worker: worker.to_owned(), event };
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        self.0.write_all(text.as_bytes()).context("cannot write the demo's journal")
    }
}

/// Reads a file that grows, whole lines only.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    offset: u64,
}

impl Tail {
    /// Begins at the start of `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    /// The lines that are new since the last call.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn read(&mut self) -> Result<Vec<String>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context(self.path.display().to_string()),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.offset += whole as u64;
        Ok(String::from_utf8_lossy(&bytes[..whole]).lines().map(str::to_owned).collect())
    }
}

/// All the journals of a folder, read as they grow.
#[derive(Debug)]
pub struct Journals {
    folder: PathBuf,
    tails: BTreeMap<PathBuf, Tail>,
}

impl Journals {
    /// The `.jsonl` files of `folder`.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, tails: BTreeMap::new() }
    }

    /// The lines that are new since the last call, in order of time as far as they are together.
    ///
    /// # Errors
    /// If a file cannot be read, or a line is not a journal line.
    pub fn read(&mut self) -> Result<Vec<Line>> {
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                self.tails.entry(path.clone()).or_insert_with(|| Tail::new(path));
            }
        }
        let mut lines = Vec::new();
        for (path, tail) in &mut self.tails {
            for text in tail.read()? {
                lines.push(parse(&text).with_context(|| format!("in {}", path.display()))?);
            }
        }
        lines.sort_by_key(|line| line.at_ns);
        Ok(lines)
    }
}

/// Reads one journal line.
///
/// # Errors
/// If it is invalid.
pub fn parse(text: &str) -> Result<Line> {
    serde_json::from_str(text).with_context(|| format!("invalid journal line: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_lines_of_a_worker() {
        let line = parse(
            r#"{"event": "own_start", "at_ns": 2345809575993, "wall_us": 1795170670642308,
                "worker": "w1", "asked_ns": 2345804245850, "until_ns": 2348804245850,
                "set": "swarm", "stream": "stream:a", "token": "1.1"}"#,
        )
        .unwrap();
        assert_eq!(line.at_ns, 2_345_809_575_993);
        assert_eq!(line.worker, "w1");
        let (set, stream) = ("swarm".to_owned(), "stream:a".to_owned());
        let token = "1.1".to_owned();
        assert_eq!(line.event, Event::OwnStart { set, stream, token, load_milli: None });
    }

    #[test]
    fn rejects_an_unknown_line() {
        assert!(parse(r#"{"event":"party","at_ns":1,"wall_us":1,"worker":"w"}"#).is_err());
        assert!(parse("half a li").is_err());
    }

    #[test]
    fn reads_a_line_only_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.read().unwrap(), Vec::<String>::new());
        std::fs::write(&path, "one\ntw").unwrap();
        assert_eq!(tail.read().unwrap(), ["one"]);
        std::fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(tail.read().unwrap(), ["two"]);
    }

    #[test]
    fn reads_back_every_line_that_it_writes() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(&folder.path().join("demo.jsonl")).unwrap();
        let phase = Phase {
            name: "start".to_owned(),
            from_ns: 1,
            stable_ns: 2,
            to_ns: 2,
            max_jobs: 3,
            full: true,
            living: vec!["w1".to_owned()],
        };
        writer.write("", Event::Phase(phase.clone())).unwrap();
        writer.write("w1", Event::Killed).unwrap();
        let mut journals = Journals::new(folder.path().to_owned());
        let events: Vec<Event> =
            journals.read().unwrap().into_iter().map(|line| line.event).collect();
        assert_eq!(events, [Event::Phase(phase), Event::Killed]);
        assert!(journals.read().unwrap().is_empty());
    }
}
