//! A worker with long jobs, and streams where it is asked to, for tests and benchmarks on
//! Kubernetes. It takes as many jobs as it may; asked to end it begins none any more and ends when
//! the last is done. Each job is recorded when it begins and when it ends, and nowhere else:
//! what a killed worker had in its hands is lost, and its journal shows it.

mod streams;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use leasehold_demo::journal::{Event, Writer};
use streams::Streams;
use tests::http::call;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

/// How long the agent may keep the question for a slot.
const SLOT_WAIT_MS: u32 = 1_000;
/// Between two tries to reach an agent that does not answer.
const RETRY: Duration = Duration::from_millis(100);

/// How often the end of a job is told: for as long as an agent may take to come back.
const END_TRIES_MAX: u32 = 1_200;

/// What it takes on SIGUSR1, to be killed for it.
const HOARD_BYTES: usize = 256 << 20;

/// Runs long jobs: as many as the agent at LEASEHOLD_ADDR allows, or a fixed number.
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  \
    LEASEHOLD_ADDR=http://127.0.0.1:7411 job_worker --journal /tmp --worker w1")]
struct Args {
    /// Folder of the journal.
    #[arg(long)]
    journal: PathBuf,
    /// This worker's name.
    #[arg(long, env = "LEASEHOLD_WORKER")]
    worker: String,
    /// The shortest job, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    job_ms_min: u64,
    /// The longest.
    #[arg(long, default_value_t = 6_000)]
    job_ms_max: u64,
    /// Ask no agent, and run this many jobs at once.
    #[arg(long)]
    pool: Option<usize>,
    /// End after this many jobs; with 0 and --streams take none, and end when asked to.
    #[arg(long, default_value_t = u64::MAX)]
    jobs: u64,
    /// Own streams, too.
    #[arg(long)]
    streams: bool,
}

/// Who allows a job to begin.
enum Gate {
    Agent(SocketAddr),
    Pool(Arc<Semaphore>),
}

/// The worker's name and journal, which all its tasks write.
struct Shared {
    worker: String,
    journal: Mutex<Writer>,
    running: AtomicUsize,
    stopping: AtomicBool,
}

impl Shared {
    async fn write(&self, event: Event) -> anyhow::Result<()> {
        self.journal.lock().await.write(&self.worker, event)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let gate = match args.pool {
        Some(pool) => Gate::Pool(Arc::new(Semaphore::new(pool))),
        None => Gate::Agent(agent()?),
    };
    let file = args.journal.join(format!("{}.jobs.jsonl", args.worker));
    let shared = Arc::new(Shared {
        worker: args.worker.clone(),
        journal: Mutex::new(Writer::open(&file)?),
        running: AtomicUsize::new(0),
        stopping: AtomicBool::new(false),
    });
    let owned = Arc::new(AtomicUsize::new(0));
    let mut terminate = signal(SignalKind::terminate())?;
    let (told, owning) = (Arc::clone(&shared), Arc::clone(&owned));
    tokio::spawn(async move {
        terminate.recv().await;
        told.stopping.store(true, Ordering::Relaxed);
        let running = told.running.load(Ordering::Relaxed);
        let owned = owning.load(Ordering::Relaxed);
        told.write(Event::ToldToEnd { running, owned }).await
    });
    let mut hoard = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        hoard.recv().await;
        // Written to, so that it is there; far more than a test lets it have.
        let hoarded = std::hint::black_box(vec![1_u8; HOARD_BYTES]);
        std::process::exit(i32::from(hoarded.len() != HOARD_BYTES) + 3);
    });
    if let Gate::Agent(address) = gate {
        let body = format!(r#"{{"start_id":"{}-{}"}}"#, args.worker, start_id());
        while call(address, "POST", "/v1/start", &body).await.is_err() {
            if shared.stopping.load(Ordering::Relaxed) {
                return Ok(());
            }
            tokio::time::sleep(RETRY).await;
        }
        if args.streams {
            tokio::spawn(Streams::new(address, Arc::clone(&shared), owned).run());
        }
    }
    let mut jobs = JoinSet::new();
    let mut begun = 0;
    for number in 0_u64.. {
        if begun == args.jobs || shared.stopping.load(Ordering::Relaxed) {
            break;
        }
        let job = format!("{}-{}-{number}", args.worker, start_id());
        let Some(slot) = begin(&gate, &job, &shared.stopping).await else { continue };
        begun += 1;
        let lasts = Duration::from_millis(fastrand::u64(args.job_ms_min..=args.job_ms_max));
        shared.running.fetch_add(1, Ordering::Relaxed);
        shared.write(Event::JobStart { job: job.clone() }).await?;
        let shared = Arc::clone(&shared);
        jobs.spawn(async move {
            tokio::time::sleep(lasts).await;
            shared.write(Event::JobEnd { job: job.clone() }).await?;
            shared.running.fetch_sub(1, Ordering::Relaxed);
            end(slot, &job, &shared.stopping).await;
            anyhow::Ok(())
        });
        while let Some(done) = jobs.try_join_next() {
            done.context("a job")??;
        }
    }
    while let Some(done) = jobs.join_next().await {
        done.context("a job")??;
    }
    while args.jobs == 0 && args.streams && !shared.stopping.load(Ordering::Relaxed) {
        tokio::time::sleep(RETRY).await;
    }
    Ok(())
}

/// Another for each process: in a container each has the same number.
fn start_id() -> u64 {
    static ID: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *ID.get_or_init(leasehold_demo::clock::now_ns)
}
fn agent() -> anyhow::Result<SocketAddr> {
    let address = std::env::var("LEASEHOLD_ADDR").context("LEASEHOLD_ADDR")?;
    let address = address
        .strip_prefix("http://")
        .context("invalid LEASEHOLD_ADDR: expected http://HOST:PORT")?;
    address.parse().with_context(|| format!("LEASEHOLD_ADDR {address:?}"))
}

/// What a job gives back at its end.
enum Slot {
    Agent(SocketAddr),
    Pool(
        #[expect(dead_code, reason = "freed when it is dropped")] tokio::sync::OwnedSemaphorePermit,
    ),
}

/// Waits until the job may begin, or `None` if it may not, which is asked again as another job.
async fn begin(gate: &Gate, job: &str, stopping: &AtomicBool) -> Option<Slot> {
    let address = match gate {
        Gate::Pool(pool) => {
            let slot = tokio::time::timeout(
                Duration::from_millis(u64::from(SLOT_WAIT_MS)),
                Arc::clone(pool).acquire_owned(),
            );
            return slot.await.ok()?.ok().map(Slot::Pool);
        }
        Gate::Agent(address) => *address,
    };
    let path = format!("/v1/jobs/{job}?wait_ms={SLOT_WAIT_MS}");
    match call(address, "PUT", &path, "").await {
        Ok((200, _)) => Some(Slot::Agent(address)),
        Ok((_, answer)) => {
            // A drained agent says no at once.
            if answer.contains("draining") && !stopping.load(Ordering::Relaxed) {
                tokio::time::sleep(RETRY).await;
            }
            None
        }
        Err(_) => {
            // An answer may have been on its way: without one the job does not begin.
            end(Slot::Agent(address), job, stopping).await;
            None
        }
    }
}

/// Tells that a job has ended, until it is heard: an agent that stops answers that it does, and
/// the next one would count the job as running. A worker that ends itself waits for no next one.
async fn end(slot: Slot, job: &str, stopping: &AtomicBool) {
    let Slot::Agent(address) = slot else { return };
    let path = format!("/v1/jobs/{job}");
    for _ in 0..END_TRIES_MAX {
        match call(address, "DELETE", &path, "").await {
            Ok((200, _)) => return,
            Ok(_) => {}
            Err(_) if stopping.load(Ordering::Relaxed) => return,
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}
