//! A worker with long jobs, for tests and benchmarks on Kubernetes. It takes as many as it may, for
//! ever; told to end it begins none any more and ends when the last is done. Each job is written
//! down when it begins and when it ends, and nowhere else: what a killed worker had in its hands is
//! lost, and its journal shows it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use tests::demo::journal::{Event, Writer};
use tests::http::call;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

/// How long the agent may keep the question for a slot.
const SLOT_WAIT_MS: u32 = 1_000;
/// Between two tries to reach an agent that does not answer.
const RETRY: Duration = Duration::from_millis(100);

/// Runs long jobs: as many as the agent at LEASEHOLD_ADDR allows, or a fixed number.
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  \
    LEASEHOLD_ADDR=http://127.0.0.1:7411 job_worker --journal /tmp --worker w1")]
struct Args {
    /// Folder of the journal.
    #[arg(long)]
    journal: PathBuf,
    /// This worker's name.
    #[arg(long)]
    worker: String,
    /// The shortest job, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    job_ms_min: u64,
    /// The longest.
    #[arg(long, default_value_t = 6_000)]
    job_ms_max: u64,
    /// Ask no agent, and run so many jobs at once.
    #[arg(long)]
    pool: Option<usize>,
}

/// Who allows a job to begin.
enum Gate {
    Agent(SocketAddr),
    Pool(Arc<Semaphore>),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let gate = match args.pool {
        Some(pool) => Gate::Pool(Arc::new(Semaphore::new(pool))),
        None => Gate::Agent(agent()?),
    };
    let file = args.journal.join(format!("{}.jobs.jsonl", args.worker));
    let journal = Arc::new(Mutex::new(Writer::open(&file)?));
    let stopping = Arc::new(AtomicBool::new(false));
    let mut terminate = signal(SignalKind::terminate())?;
    let told = Arc::clone(&stopping);
    tokio::spawn(async move {
        terminate.recv().await;
        told.store(true, Ordering::Relaxed);
    });
    if let Gate::Agent(address) = gate {
        let body = format!(r#"{{"start_id":"{}-{}"}}"#, args.worker, std::process::id());
        while call(address, "POST", "/v1/start", &body).await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }
    let mut jobs = JoinSet::new();
    let mut number = 0;
    while !stopping.load(Ordering::Relaxed) {
        let job = format!("{}-{}-{number}", args.worker, std::process::id());
        number += 1;
        let Some(slot) = begin(&gate, &job, &stopping).await else { continue };
        let lasts = Duration::from_millis(fastrand::u64(args.job_ms_min..=args.job_ms_max));
        journal.lock().await.write(&args.worker, Event::JobStart { job: job.clone() })?;
        let (journal, worker) = (Arc::clone(&journal), args.worker.clone());
        jobs.spawn(async move {
            tokio::time::sleep(lasts).await;
            let done = Event::JobEnd { job: job.clone() };
            journal.lock().await.write(&worker, done)?;
            end(slot, &job).await;
            anyhow::Ok(())
        });
        while let Some(done) = jobs.try_join_next() {
            done.context("a job")??;
        }
    }
    while let Some(done) = jobs.join_next().await {
        done.context("a job")??;
    }
    Ok(())
}

fn agent() -> anyhow::Result<SocketAddr> {
    let address = std::env::var("LEASEHOLD_ADDR").context("LEASEHOLD_ADDR")?;
    let address = address.strip_prefix("http://").context("LEASEHOLD_ADDR is no http address")?;
    address.parse().with_context(|| format!("LEASEHOLD_ADDR {address:?}"))
}

/// What a job gives back at its end.
enum Slot {
    Agent(SocketAddr),
    Pool(
        #[expect(dead_code, reason = "freed when it is dropped")] tokio::sync::OwnedSemaphorePermit,
    ),
}

/// Waits until the job may begin; none where it may not, which is asked again as another job.
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
            let _ = call(address, "DELETE", &format!("/v1/jobs/{job}"), "").await;
            tokio::time::sleep(RETRY).await;
            None
        }
    }
}

async fn end(slot: Slot, job: &str) {
    let Slot::Agent(address) = slot else { return };
    for _ in 0..100 {
        if call(address, "DELETE", &format!("/v1/jobs/{job}"), "").await.is_ok() {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}
