//! Backs folders up: each folder by one worker at a time, and as many at once over the whole fleet
//! as the budget allows.
//!
//!     leasehold-agent run ... -- backups SOURCES TARGET SECONDS
//!
//! A stream of the worker's is a folder in SOURCES. Every SECONDS it becomes an archive,
//! TARGET/FOLDER/TIME-TOKEN.tar.gz. SIGTERM drains the worker: it ends once its archives are whole.
//!
//! Example:
//!
//!     leasehold-agent run --coordinator 127.0.0.1:7400 --cluster backups --worker b-0 \
//!         -- backups /srv /backups 3600

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use leasehold::{Stream, Worker};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str =
    "usage: backups SOURCES TARGET SECONDS, for example: backups /srv /backups 3600";

/// What the worker was started with.
struct Plan {
    sources: PathBuf,
    target: PathBuf,
    pause: Duration,
}

impl Plan {
    fn from_arguments() -> anyhow::Result<Self> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [sources, target, seconds] = &arguments[..] else { bail!(USAGE) };
        let seconds = seconds.parse::<u64>().context(USAGE)?;
        let (sources, target) = (sources.into(), target.into());
        Ok(Self { sources, target, pause: Duration::from_secs(seconds) })
    }

    /// Archives the folder that a stream names. A revoked stream's archive is still made; that of a
    /// lost one is not.
    async fn archive(&self, stream: &Stream) -> anyhow::Result<()> {
        let folder = self.target.join(stream.name());
        tokio::fs::create_dir_all(&folder).await?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        // Two owners never write to one file: each has a token of its own.
        let archive = folder.join(format!("{time}-{}.tar.gz", stream.token()));
        let part = archive.with_extension("part");
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--gzip").arg("--file").arg(&part);
        tar.arg("--directory").arg(&self.sources).arg("--").arg(stream.name());
        let mut tar = tar.spawn().context("tar")?;
        let ended = tokio::select! {
            ended = tar.wait() => Some(ended?),
            () = stream.lost() => None,
        };
        let Some(ended) = ended else {
            // It returns once the process has ended: until then the budget has to count it.
            tar.kill().await?;
            return remove(&part).await;
        };
        if !ended.success() {
            remove(&part).await?;
            bail!("tar of {}: {ended}", stream.name());
        }
        tokio::fs::rename(&part, &archive).await?;
        println!("{}", archive.display());
        Ok(())
    }
}

/// Removes a file, which a program may not have made yet.
async fn remove(file: &Path) -> anyhow::Result<()> {
    match tokio::fs::remove_file(file).await {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Archives a folder again and again, each time in the slot of a job, while this worker owns it.
async fn keep(stream: Stream, worker: Worker, plan: Arc<Plan>) {
    loop {
        let job = tokio::select! {
            job = worker.next_job() => job,
            () = stream.stopping() => None,
        };
        // None once the worker drains, too.
        let Some(job) = job else { return };
        if let Err(error) = plan.archive(&stream).await {
            tracing::error!("{error:#}");
        }
        job.end().await;
        tokio::select! {
            () = stream.stopping() => return,
            () = tokio::time::sleep(plan.pause) => {}
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let plan = Arc::new(Plan::from_arguments()?);
    let worker = Worker::connect().await?;
    // Not before: a worker that waits for its agent ends by SIGTERM at once.
    let mut terminate = signal(SignalKind::terminate())?;
    let streams = worker.run_streams(|stream| keep(stream, worker.clone(), Arc::clone(&plan)));
    let drained = async {
        // The agent sends it after the drain. A worker that ended with the drain would be started
        // again.
        terminate.recv().await;
        if !worker.is_draining() {
            worker.drain().await?;
        }
        Ok::<(), leasehold::Error>(())
    };
    let ((), drained) = tokio::join!(streams, drained);
    drained?;
    worker.close().await;
    Ok(())
}
