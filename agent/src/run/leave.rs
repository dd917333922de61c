//! `leasehold-agent leave`: what an agent that was killed can no longer say, that nothing of its
//! worker runs any more.
//!
//! Invariant: nothing is said that the state folder, or a person, does not bear out.

use std::sync::Arc;

use anyhow::{Context, bail};
use leasehold_agent_core::Memory;
use leasehold_types::{WorkerKey, duration};

use super::{check_tls, drain, remember};
use crate::child::Recorded;
use crate::config::{Config, Leave};
use crate::driver::{Driver, Outcome};
use crate::identity;
use crate::metrics::Metrics;
use crate::signals::{Asked, Signals, exit_code};
use crate::state_dir::StateDir;
use crate::worker::process;

/// Says it, and returns the exit code once a coordinator has heard it.
pub(super) async fn run(config: Config, leave: Leave) -> anyhow::Result<u8> {
    let mut signals = Signals::take().context("the signals cannot be handled")?;
    let who = WorkerKey { cluster: config.cluster.clone(), worker: config.worker.clone() };
    let path = config.state_dir.as_deref().expect("the command line wants one");
    if !path.join("lock").exists() {
        bail!("--state-dir {}: no agent has kept its journal there", path.display());
    }
    let (memory, journal, dir) = remember(&config, &who)?;
    if let Some(tls) = &config.tls {
        check_tls(tls, false).await?;
    }
    let dir = dir.expect("it was given");
    check(&memory, &dir, &who, leave)?;
    let (jobs, streams) = (memory.running(), memory.streams.len());
    let (identity, metrics) = (identity::of(Some(&dir)), Arc::new(Metrics::default()));
    let (driver, door) = Driver::new(&config, memory, journal, identity, metrics);
    let driver = tokio::spawn(driver.run());
    if let Err(why) = door.start_anew().await {
        bail!("that nothing runs cannot be written to {}: {why}", path.display());
    }
    drain(&door).await;
    let ended = tokio::select! {
        ended = door.ended() => ended.context("the driver has failed")?,
        asked = signals.next() => {
            let (Asked::End(signal) | Asked::EndNow(signal) | Asked::PassOn(signal)) = asked;
            eprintln!("told to end before a coordinator has heard it");
            return Ok(exit_code(signal));
        }
    };
    door.stop().await;
    drop(door);
    driver.await.context("the driver has failed")?;
    match ended {
        Outcome::Drained { told: true, .. } => {
            println!("worker {who} has left: {jobs} jobs and {streams} streams of it are over");
            Ok(0)
        }
        Outcome::Drained { .. } => {
            let waited = duration::format_short(config.goodbye_max);
            bail!("no coordinator has heard within {waited} that {who} has left: say it again")
        }
        Outcome::Superseded => bail!("another agent speaks for {who}: nothing was said"),
    }
}

/// Whether what is known here bears out that nothing of the worker runs.
fn check(memory: &Memory, dir: &StateDir, who: &WorkerKey, leave: Leave) -> anyhow::Result<()> {
    if let Some((stream, id)) = process::first_running(dir)? {
        bail!("process {id}, the program of stream {stream}, still runs: end it first");
    }
    let knows = match Recorded::read(&dir.file("child"))? {
        Recorded::Child(group) if group.exists() => {
            let id = group.id;
            bail!("process {id}, or one that it has started, still runs as {who}: end it first")
        }
        // It was seen to have ended.
        Recorded::Child(_) | Recorded::OtherBoot => true,
        Recorded::Nothing => {
            memory.incarnation.is_some() && memory.running() == 0 && memory.streams.is_empty()
        }
    };
    if !knows && !leave.nothing_runs {
        bail!(
            "nobody here can tell whether {who} still runs, for its agent did not start it. The \
             journal tells of {} jobs and {} streams. See that nothing of it runs, then say so \
             with --nothing-runs",
            memory.running(),
            memory.streams.len()
        );
    }
    Ok(())
}
