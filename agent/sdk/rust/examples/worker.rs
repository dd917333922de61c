//! A worker with the SDK: jobs, streams, and a sink that refuses a former owner.
//!
//!     leasehold-agent run ... -- target/debug/examples/worker FOLDER
//!
//! It writes what it did, and when, to FOLDER/journal/WORKER.jsonl, and a record every few
//! milliseconds to FOLDER/sink/STREAM.jsonl while it owns that stream. While FOLDER/hold exists no
//! job ends. SIGTERM drains it, and it ends when nothing is left.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use leasehold::{Job, Options, Stream, Token, Worker};
use rustix::fs::FlockOperation;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

/// The most jobs at once, if the pool allows them.
const TASKS: NonZeroUsize = NonZeroUsize::new(4).expect("it is not 0");
const STEP: Duration = Duration::from_millis(20);
/// No line of a sink is longer.
const LINE_BYTES_MAX: u64 = 4096;

/// The folder of this worker, its name and its journal.
struct Place {
    folder: PathBuf,
    worker: String,
    journal: File,
}

impl Place {
    fn open(folder: &Path) -> anyhow::Result<Self> {
        let worker = std::env::var("LEASEHOLD_WORKER").unwrap_or_else(|_| "worker".into());
        for name in ["journal", "sink"] {
            std::fs::create_dir_all(folder.join(name))?;
        }
        let path = folder.join("journal").join(format!("{worker}.jsonl"));
        let journal = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { folder: folder.into(), worker, journal })
    }

    /// Writes an event of this worker in one write, as one line.
    fn note(&self, event: &str, at_ns: u64, fields: Value) -> anyhow::Result<()> {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let mut line = json!({
            "event": event, "at_ns": at_ns, "wall_us": u64::try_from(wall)?, "worker": self.worker,
        });
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        (&self.journal).write_all(format!("{line}\n").as_bytes()).context("the journal")
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |number: i64| u64::try_from(number).expect("the time since the boot");
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// A stream's file. It keeps the highest token that it has seen, and refuses lower ones.
struct Sink {
    file: File,
    token: Token,
    /// When the last record was written.
    last_ns: u64,
}

impl Sink {
    fn open(place: &Place, stream: &Stream) -> anyhow::Result<Self> {
        let name = stream.name().replace(':', "%3A");
        let path = place.folder.join("sink").join(format!("{name}.jsonl"));
        let file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        Ok(Self { file, token: stream.token(), last_ns: 0 })
    }

    /// Adds the next record.
    fn append(&mut self, place: &Place) -> anyhow::Result<()> {
        rustix::fs::flock(&self.file, FlockOperation::LockExclusive)?;
        let appended = self.append_alone(place);
        rustix::fs::flock(&self.file, FlockOperation::Unlock)?;
        appended
    }

    fn append_alone(&mut self, place: &Place) -> anyhow::Result<()> {
        let size = self.file.metadata()?.len();
        self.file.seek(SeekFrom::Start(size.saturating_sub(LINE_BYTES_MAX)))?;
        let mut tail = String::new();
        self.file.read_to_string(&mut tail)?;
        let last = match tail.lines().last() {
            Some(line) => serde_json::from_str(line)?,
            None => json!({"token": "0.0", "record": 0}),
        };
        let highest: Token = last["token"].as_str().context("a token")?.parse()?;
        if self.token < highest {
            bail!("fenced: token {} is older than {highest}", self.token);
        }
        let record = last["record"].as_u64().context("a record's number")? + 1;
        self.last_ns = now_ns();
        let line = json!({
            "token": self.token.to_string(), "record": record, "worker": place.worker,
            "at_ns": self.last_ns, "text": format!("record {record}"),
        });
        self.file.write_all(format!("{line}\n").as_bytes()).context("the sink")
    }
}

/// Runs one job; dropping it ends it.
async fn run(job: Job, place: Arc<Place>) -> anyhow::Result<()> {
    let token = job.token().to_string();
    place.note("job_start", now_ns(), json!({"job": job.id(), "token": token}))?;
    tokio::time::sleep(5 * STEP).await;
    while place.folder.join("hold").exists() {
        tokio::time::sleep(STEP).await;
    }
    place.note("job_end", now_ns(), json!({"job": job.id()}))
}

/// Waits for the work of a handler, and says why it failed.
async fn report(what: &str, work: impl Future<Output = anyhow::Result<()>>) {
    if let Err(error) = work.await {
        eprintln!("{what}: {error:#}");
    }
}

/// Writes to the sink while this worker owns the stream.
async fn consume(stream: Stream, place: Arc<Place>) -> anyhow::Result<()> {
    let (set, name, token) = (stream.set(), stream.name(), stream.token().to_string());
    let lease = json!({"set": set, "stream": name, "token": token});
    let (mut sink, mut owned) = (Sink::open(&place, &stream)?, false);
    let mut why = loop {
        if stream.is_valid() {
            if let Err(error) = sink.append(&place) {
                break error.to_string();
            }
            if !owned {
                // Ownership counts from the first record: it shuts out a former owner that was
                // suspended between its check of the lease and its write.
                place.note("own_start", sink.last_ns, lease.clone())?;
                owned = true;
            }
        }
        tokio::select! {
            () = stream.stopping() => break "revoked".to_owned(),
            () = tokio::time::sleep(STEP) => {}
        }
    };
    if !owned {
        return Ok(());
    }
    let mut at_ns = now_ns();
    if !stream.is_valid() {
        why = "lost".into();
    }
    // The task may learn late that the stream is lost; it wrote nothing after that moment.
    if why != "revoked" {
        at_ns = sink.last_ns;
    }
    let mut end = lease;
    end["why"] = why.into();
    place.note("own_end", at_ns, end)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).context("usage: worker FOLDER")?;
    let place = Arc::new(Place::open(Path::new(&folder))?);
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    // Much less than by default: another worker goes on with the streams of one that hangs.
    let beat_within = Some(Duration::from_secs(3));
    let options = Options { beat_within, ..Options::default() };
    let worker = Worker::connect_with(options).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let drained = worker.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        drained.drain().await
    });
    let jobs = worker.run_jobs(|job| report("a job", run(job, place.clone())), TASKS);
    let streams = worker.run_streams(|stream| report("a stream", consume(stream, place.clone())));
    tokio::join!(jobs, streams);
    worker.close().await;
    Ok(())
}
