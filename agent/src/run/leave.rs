//! `leasehold-agent leave`: reports for an agent that was killed that its worker has ended.
//!
//! Invariant: the report is sent only if the state folder proves it, or a person has confirmed it.

use std::sync::Arc;

use anyhow::{Context, bail};
use leasehold_agent_core::Memory;
use leasehold_types::{WorkerKey, duration};

use super::{check_tls, drain, open_journal};
use crate::cgroup::Cgroup;
use crate::child::ChildRecord;
use crate::config::{Config, Leave};
use crate::driver::{Driver, Outcome, amount};
use crate::identity;
use crate::metrics::Metrics;
use crate::process_group::recorded_elsewhere;
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
    let (driver, handle) = Driver::new(&config, memory, journal, identity, Arc::clone(&metrics));
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
            let left = format!("{who} still counts as running");
            match metrics.session_problem() {
                Some(why) => bail!(
                    "no coordinator has received the report within {waited}: {why}. {left}: \
                     correct that, and run the command again"
                ),
                None => {
                    bail!("no coordinator answered within {waited}: {left}; run the command again")
                }
            }
        }
        Outcome::Superseded => {
            bail!("another agent runs for {who}, so nothing was reported: stop that agent instead")
        }
    }
}

/// Checks that the state folder, or a person, confirms that the worker has ended.
fn check(memory: &Memory, dir: &StateDir, who: &WorkerKey, leave: Leave) -> anyhow::Result<()> {
    let mut doubts: Vec<String> = process::check_ended(dir)?.into_iter().collect();
    match ChildRecord::read(&dir.file("child"))? {
        ChildRecord::Child(group, _) if group.exists() => {
            let (id, cgroup) = (group.id, group.cgroup.as_ref());
            let listed = cgroup.map_or_else(String::new, |cgroup| {
                format!(" ({}/cgroup.procs lists what runs)", cgroup.path().display())
            });
            bail!(
                "process {id} of {who}, or a process that it started, still runs: stop it \
                 first{listed}"
            )
        }
        // None of its processes runs.
        ChildRecord::Child(group, recorded) => {
            // The agent, which was killed, has not removed it.
            group.cgroup.iter().for_each(Cgroup::remove);
            if !recorded.is_some_and(|recorded| recorded.is_own()) {
                doubts.push(recorded_elsewhere("COMMAND", group.id));
            }
        }
        ChildRecord::OtherBoot => {}
        ChildRecord::Nothing => doubts.extend(doubts_of(memory)),
    }
    if !doubts.is_empty() && !leave.nothing_runs {
        bail!(
            "cannot prove that {who} has ended: {}. Start its agent again, with the same flags, \
             and stop it with SIGTERM, which drains the worker. Or make sure that none of the \
             worker's processes runs, and that none will start with a pool size above 0, then add \
             --nothing-runs",
            doubts.join("; ")
        );
    }
    Ok(())
}

/// Why the journal of an agent that started no worker does not prove that its worker has ended.
fn doubts_of(memory: &Memory) -> Vec<String> {
    let (running, streams) = (memory.running(), memory.streams.len() as u64);
    let mut doubts = Vec::new();
    if memory.incarnation.is_none() {
        doubts.push("the agent's journal is missing or damaged".into());
    } else if !memory.jobs_known {
        doubts.push("it is unknown which jobs run".into());
    }
    if running > 0 || streams > 0 {
        let (jobs, streams) = (amount(running, "job"), amount(streams, "stream"));
        doubts.push(format!("the journal lists {jobs} and {streams}"));
    }
    if let Some((_, size @ 1..)) = memory.count {
        doubts.push(format!(
            "the worker may still use a pool size of {size}, which it reads from a file or has in \
             an interface of its own"
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use leasehold_types::Incarnation;

    use super::*;

    #[test]
    fn a_journal_proves_the_end_of_a_worker_only_if_nothing_is_left_that_it_may_run() {
        let ended =
            Memory { incarnation: Some(Incarnation(1)), jobs_known: true, ..Memory::default() };
        let doubts = |memory: &Memory| doubts_of(memory).join("; ");
        assert_eq!(doubts(&ended), "");
        assert_eq!(doubts(&Memory { count: Some((0, 0)), ..ended.clone() }), "");
        for (memory, word) in [
            (Memory { incarnation: None, ..ended.clone() }, "damaged"),
            (Memory { jobs_known: false, ..ended.clone() }, "unknown which jobs"),
            (Memory { unnamed: 2, ..ended.clone() }, "2 jobs"),
            (Memory { count: Some((0, 3)), ..ended.clone() }, "a pool size of 3"),
        ] {
            assert!(doubts(&memory).contains(word), "{word}: {}", doubts(&memory));
        }
    }
}
