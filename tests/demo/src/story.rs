//! What happens in the demo, in order. Every change of the set of workers is a phase of its own,
//! so that its minimum of moves is known.

use std::cell::Cell;
use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::clock;
use crate::fleet::{CLUSTER, Part};
use crate::journal::Event;
use crate::stage::{Plan, Stage};

/// `maxJobs` in the manifests of `deploy/standalone`.
pub const MAX_JOBS: u32 = 12;
/// `maxJobs` while it is edited down.
const MAX_JOBS_LOW: u32 = 6;
/// Workers at the start.
const WORKERS: usize = 6;

/// What the story measured beside its phases.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// From the leader's kill to the last worker's renewed lease.
    pub failover_ns: Option<u64>,
    /// Streams that changed their worker because of that.
    pub failover_moves: Option<usize>,
    /// The worker whose agent was stopped and started again with its folder.
    pub again: Option<Again>,
}

/// A worker that was started again.
#[derive(Clone, Debug)]
pub struct Again {
    /// The worker.
    pub worker: String,
    /// When it was started the second time.
    pub from_ns: u64,
}

/// Plays all of it.
///
/// # Errors
/// If a phase does not end as it should.
pub fn play(stage: &mut Stage, streams: usize, measured: &mut Measured) -> Result<()> {
    start(stage, streams)?;
    for number in 1..=WORKERS {
        join(stage, &format!("roll: green-{number} joins"), &green(number), 2)?;
        leave(stage, &format!("roll: blue-{number} drains"), &blue(number))?;
    }
    for number in WORKERS + 1..=9 {
        join(stage, &format!("6 to 9 workers: green-{number} joins"), &green(number), 2)?;
    }
    for number in (6..=9).rev() {
        leave(stage, &format!("9 to 5 workers: green-{number} drains"), &green(number))?;
    }
    edit(stage)?;
    edit_badly(stage)?;
    fail_over(stage, measured)?;
    kill_worker(stage)?;
    freeze_agent(stage)?;
    start_again(stage, measured)
}

fn blue(number: usize) -> String {
    format!("blue-{number}")
}

fn green(number: usize) -> String {
    format!("green-{number}")
}

fn full(name: &str) -> Plan {
    Plan { name: name.to_owned(), max_jobs: MAX_JOBS, full: true }
}

fn manifest(stage: &Stage, name: &str) -> Result<String> {
    let path = stage.fleet.deploy().join("manifests").join(name);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn start(stage: &mut Stage, streams: usize) -> Result<()> {
    stage.phase(
        full("start: 2 coordinators, 6 workers"),
        |stage| {
            stage.work.put_manifest("cluster.yaml", &manifest(stage, "cluster.yaml")?)?;
            for replica in 0..stage.fleet.replicas.len() {
                stage.fleet.start_coordinator(replica, &stage.work)?;
            }
            for number in 1..=WORKERS {
                stage.fleet.start_agent(&blue(number), 1, &stage.work)?;
            }
            Ok(())
        },
        |stage| {
            let living = stage.fleet.living();
            Ok(stage.live.watching(&living))
        },
    )?;
    let name = format!("{streams} streams appear");
    stage.phase(
        full(&name),
        |stage| {
            for name in ["swarm-streams.txt", "streams.yaml"] {
                stage.work.put_manifest(name, &manifest(stage, name)?)?;
            }
            stage.streams = streams;
            Ok(())
        },
        |_| Ok(true),
    )?;
    Ok(())
}

fn join(stage: &mut Stage, name: &str, worker: &str, generation: u64) -> Result<()> {
    let act = |stage: &mut Stage| stage.fleet.start_agent(worker, generation, &stage.work);
    stage.phase(full(name), act, |_| Ok(true)).map(drop)
}

fn leave(stage: &mut Stage, name: &str, worker: &str) -> Result<()> {
    let mut gone = false;
    let done = |stage: &mut Stage| {
        gone = gone || stage.fleet.has_drained(worker)?;
        Ok(gone)
    };
    stage.phase(full(name), |stage| stage.fleet.drain(worker), done).map(drop)
}

fn edit(stage: &mut Stage) -> Result<()> {
    let text = manifest(stage, "cluster.yaml")?;
    let low = text.replace(&format!("maxJobs: {MAX_JOBS}"), &format!("maxJobs: {MAX_JOBS_LOW}"));
    ensure!(low != text, "cluster.yaml does not say maxJobs: {MAX_JOBS}");
    // Nothing that runs is killed: the old cap may be in use until jobs have ended.
    let falls = format!("maxJobs {MAX_JOBS} to {MAX_JOBS_LOW}: jobs end");
    stage.phase(
        Plan { name: falls, max_jobs: MAX_JOBS, full: false },
        |stage| stage.work.put_manifest("cluster.yaml", &low),
        |stage| {
            let cluster = stage.admin.cluster(CLUSTER);
            Ok(cluster.is_ok_and(|cluster| {
                cluster.max_jobs == MAX_JOBS_LOW && cluster.committed <= MAX_JOBS_LOW
            }))
        },
    )?;
    let low_for_ns = 1_000_000_000;
    stage.phase(
        Plan { name: format!("maxJobs {MAX_JOBS_LOW}"), max_jobs: MAX_JOBS_LOW, full: true },
        |_| Ok(()),
        |stage| Ok(clock::now_ns() - stage.phase_from_ns() > low_for_ns),
    )?;
    stage.phase(
        full(&format!("maxJobs {MAX_JOBS_LOW} to {MAX_JOBS}")),
        |stage| stage.work.put_manifest("cluster.yaml", &text),
        |_| Ok(true),
    )?;
    Ok(())
}

fn edit_badly(stage: &mut Stage) -> Result<()> {
    let text = manifest(stage, "cluster.yaml")?;
    let bad = text.replace(&format!("maxJobs: {MAX_JOBS}"), "maxJobs: -1");
    let line = bad.lines().position(|line| line.contains("maxJobs: -1")).map_or(0, |at| at + 1);
    let mut reported = String::new();
    stage.phase(
        full("an invalid edit: the last good stays"),
        |stage| stage.work.put_manifest("cluster.yaml", &bad),
        |stage| {
            let leader = stage.admin.leader();
            let Some(problem) = leader.as_ref().and_then(|(_, status)| status.problems.first())
            else {
                return Ok(false);
            };
            let at = (&*problem.file, usize::try_from(problem.line)?, &*problem.field);
            ensure!(
                at == ("cluster.yaml", line, "spec.maxJobs"),
                "the invalid edit is in cluster.yaml, line {line}, field spec.maxJobs, and was \
                 reported as {problem:?}"
            );
            reported = format!("{}:{}: {}: {}", at.0, at.1, at.2, problem.message);
            let in_force = stage.admin.cluster(CLUSTER)?.max_jobs;
            ensure!(in_force == MAX_JOBS, "maxJobs {in_force} is in force, not {MAX_JOBS}");
            Ok(true)
        },
    )?;
    stage.screen.say(&format!("  reported: {reported}"));
    stage.work.put_manifest("cluster.yaml", &text)?;
    stage.wait("the end of the manifest's problem", |stage| {
        Ok(stage.admin.leader().is_some_and(|(_, status)| status.problems.is_empty()))
    })
}

fn fail_over(stage: &mut Stage, measured: &mut Measured) -> Result<()> {
    let (leader, _) = stage.admin.leader().context("no coordinator leads")?;
    let killed_ns = Cell::new(0);
    let result = stage.phase(
        full("kill -9 of the leader"),
        |stage| {
            let process = stage.fleet.replicas[leader].process.take();
            let mut process = process.context("the leader does not run")?;
            killed_ns.set(clock::now_ns());
            process.kill()
        },
        |stage| {
            let living = stage.fleet.living();
            measured.failover_ns = stage.live.failover_ns(&living, killed_ns.get());
            Ok(measured.failover_ns.is_some())
        },
    )?;
    measured.failover_moves = Some(result.moves);
    stage.fleet.start_coordinator(leader, &stage.work)
}

fn kill_worker(stage: &mut Stage) -> Result<()> {
    let worker = green(5);
    let freed = Cell::new((0, 0));
    stage.phase(
        full(&format!("kill -9 of {worker} with its agent")),
        |stage| {
            let mut agent = stage.fleet.agents.remove(&worker).context("no such worker")?;
            agent.process.kill()?;
            // Its last words first, then its death.
            stage.read_journals()?;
            let jobs = stage.live.jobs_of(&worker);
            stage.journal.write(&worker, Event::Killed)?;
            stage.wait("the coordinator to notice the death", |stage| {
                Ok(stage.is_silent(&worker))
            })?;
            let answer = stage.admin.declare_gone(CLUSTER, &worker)?;
            freed.set((answer.slots_freed, answer.streams_freed));
            stage.work.put_back(&worker, &jobs, &mut stage.journal)
        },
        |_| Ok(true),
    )?;
    let (slots, streams) = freed.get();
    stage.screen.say(&format!("  declared gone: {slots} slots and {streams} streams freed"));
    join(stage, &format!("{} replaces it", green(10)), &green(10), 2)
}

fn freeze_agent(stage: &mut Stage) -> Result<()> {
    let worker = green(1);
    let stopped_ns = Cell::new(0);
    let had: BTreeSet<String> = stage.live.streams_of(&worker);
    ensure!(!had.is_empty(), "{worker} owns no stream before its agent is stopped");
    stage.phase(
        Plan { name: format!("SIGSTOP of {worker}'s agent"), max_jobs: MAX_JOBS, full: false },
        |stage| {
            stopped_ns.set(clock::now_ns());
            let agent = stage.fleet.agent(&worker)?;
            agent.part = Part::Stopped;
            agent.process.signal(Signal::STOP)
        },
        |_| Ok(true),
    )?;
    let expired = stage.live.expired_since(&worker, stopped_ns.get());
    ensure!(
        expired == had,
        "{worker} owned {had:?} when its agent was stopped, and by its own clock it stopped \
         {expired:?}"
    );
    stage.phase(
        full(&format!("SIGCONT of {worker}'s agent")),
        |stage| {
            let agent = stage.fleet.agent(&worker)?;
            agent.process.signal(Signal::CONT)?;
            agent.part = Part::Lives;
            Ok(())
        },
        |_| Ok(true),
    )?;
    Ok(())
}

/// What `systemctl restart` does: the agent drains and ends, and comes back with its state folder.
fn start_again(stage: &mut Stage, measured: &mut Measured) -> Result<()> {
    let worker = green(2);
    leave(stage, &format!("{worker} and its agent are stopped"), &worker)?;
    stage.journal.write(&worker, Event::Ended)?;
    let from_ns = clock::now_ns();
    stage.phase(
        full(&format!("{worker} is started again, same folder")),
        |stage| stage.fleet.start_agent(&worker, 2, &stage.work),
        |stage| Ok(stage.live.evidence.done_since(&worker, from_ns) > 0),
    )?;
    let jobs = stage.live.evidence.done_since(&worker, from_ns);
    let streams = stage.live.streams_of(&worker).len();
    stage.screen.say(&format!("  it works again: {jobs} jobs done, {streams} streams owned"));
    measured.again = Some(Again { worker, from_ns });
    Ok(())
}
