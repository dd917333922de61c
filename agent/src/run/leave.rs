//! `leasehold-agent leave`: reports for an agent that was killed that its worker has ended.
//!
//! Invariant: the report is sent only if the state folder proves it, or a person has confirmed it.

use std::sync::Arc;

use anyhow::{Context, bail};
use leasehold_agent_core::Memory;
use leasehold_types::{WorkerKey, duration};

use super::{check_tls, drain, open_journal};
use crate::child::ChildRecord;
use crate::config::{Config, Leave};
use crate::driver::{Driver, Outcome, amount};
use crate::identity;
use crate::metrics::Metrics;
use crate::signals::{SignalAction, Signals, exit_code};
use crate::state_dir::StateDir;
use crate::worker::process;

/// Sends the report, and returns the exit code once a coordinator has received it.
pub(super) async fn run(config: Config, leave: Leave) -> anyhow::Result<u8> {
    let mut signals = Signals::take().context("cannot install signal handlers")?;
    let who = WorkerKey { cluster: config.cluster.clone(), worker: config.worker.clone() };
    let path = config.state_dir.as_deref().expect("the command line requires it");
    if !path.join("lock").exists() {
        bail!(
            "--state-dir {} contains no journal of an agent: give the --state-dir of the agent \
             that has ended",
            path.display()
        );
    }
    let (memory, journal, dir) = open_journal(&config, &who)?;
    if let Some(tls) = &config.tls {
        check_tls(tls, false).await?;
    }
    let dir = dir.expect("it was given");
    check(&memory, &dir, &who, leave)?;
    let (jobs, streams) = (memory.running(), memory.streams.len());
    let (identity, metrics) = (identity::of(Some(&dir)), Arc::new(Metrics::default()));
    let (driver, handle) = Driver::new(&config, memory, journal, identity, metrics);
    let driver = tokio::spawn(driver.run());
    if let Err(why) = handle.report_no_jobs().await {
        bail!("cannot record in {} that the worker has ended: {why}", path.display());
    }
    drain(&handle).await;
    let ended = tokio::select! {
        ended = handle.ended() => ended.context("the driver has failed")?,
        asked = signals.next() => {
            let (SignalAction::Shutdown(signal)
            | SignalAction::Quit(signal)
            | SignalAction::Forward(signal)) = asked;
            eprintln!("stopped by a signal before a coordinator answered: run the command again");
            return Ok(exit_code(signal));
        }
    };
    handle.stop().await;
    drop(handle);
    driver.await.context("the driver has failed")?;
    match ended {
        Outcome::Drained { reported: true, .. } => {
            let (jobs, streams) = (amount(jobs, "job"), amount(streams as u64, "stream"));
            println!("worker {who} has left; ended: {jobs}, {streams}");
            Ok(0)
        }
        Outcome::Drained { .. } => {
            let waited = duration::format_short(config.goodbye_max);
            bail!(
                "no coordinator answered within {waited}: {who} still counts as running; run the \
                 command again"
            )
        }
        Outcome::Superseded => {
            bail!("another agent runs for {who}, so nothing was reported: stop that agent instead")
        }
    }
}

/// Checks that the state folder, or a person, confirms that the worker has ended.
fn check(memory: &Memory, dir: &StateDir, who: &WorkerKey, leave: Leave) -> anyhow::Result<()> {
    if let Some((stream, id)) = process::first_running(dir)? {
        bail!("process {id}, the program of stream {stream}, still runs: stop it first");
    }
    let known = match ChildRecord::read(&dir.file("child"))? {
        ChildRecord::Child(group) if group.exists() => {
            let id = group.id;
            bail!("process {id} of {who}, or a process that it started, still runs: stop it first")
        }
        // None of its processes runs.
        ChildRecord::Child(_) | ChildRecord::OtherBoot => true,
        ChildRecord::Nothing => {
            memory.incarnation.is_some() && memory.running() == 0 && memory.streams.is_empty()
        }
    };
    if !known && !leave.nothing_runs {
        bail!(
            "cannot check whether {who} still runs: its agent did not start it. The journal lists \
             {} and {}. Make sure that none of its processes runs, then add --nothing-runs",
            amount(memory.running(), "job"),
            amount(memory.streams.len() as u64, "stream")
        );
    }
    Ok(())
}
