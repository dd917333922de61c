//! What happens in the demo, in order. Every change of the set of workers is a phase of its own,
//! so that its minimum of moves is known.

use std::cell::Cell;
use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::clock;
use crate::environment::{Environment, Plan};
use crate::fleet::{CLUSTER, Part};
use crate::journal::Event;

/// `maxJobs` in the manifests of `deploy/standalone`.
pub const MAX_JOBS: u32 = 12;
/// `maxJobs` while it is edited down.
const MAX_JOBS_LOW: u32 = 6;
/// Workers at the start.
pub const WORKERS: usize = 6;

/// What the scenario measured beside its phases.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// From the leader's kill to the last worker's renewed lease.
    pub failover_ns: Option<u64>,
    /// Streams that changed their worker because of that.
    pub failover_moves: Option<usize>,
    /// The worker whose agent was stopped and started again with its folder.
    pub again: Option<RestartedWorker>,
}

/// A worker that was started again.
#[derive(Clone, Debug)]
pub struct RestartedWorker {
    /// The worker.
    pub worker: String,
    /// When it was started the second time.
    pub from_ns: u64,
}

/// Runs all phases.
///
/// # Errors
/// If a phase does not end as it should.
pub fn run(environment: &mut Environment, streams: usize, measured: &mut Measured) -> Result<()> {
    start(environment, streams)?;
    for number in 1..=WORKERS {
        join(environment, &format!("roll: green-{number} joins"), &green(number), 2)?;
        leave(environment, &format!("roll: blue-{number} drains"), &blue(number))?;
    }
    for number in WORKERS + 1..=9 {
        join(environment, &format!("6 to 9 workers: green-{number} joins"), &green(number), 2)?;
    }
    for number in (6..=9).rev() {
        leave(environment, &format!("9 to 5 workers: green-{number} drains"), &green(number))?;
    }
    edit(environment)?;
    edit_badly(environment)?;
    fail_over(environment, measured)?;
    kill_worker(environment)?;
    freeze_agent(environment)?;
    start_again(environment, measured)
}

/// A worker of the start.
#[must_use]
pub fn blue(number: usize) -> String {
    format!("blue-{number}")
}

/// A worker that comes later.
#[must_use]
pub fn green(number: usize) -> String {
    format!("green-{number}")
}

fn full(name: &str) -> Plan {
    Plan { name: name.to_owned(), max_jobs: MAX_JOBS, full: true }
}

fn manifest(environment: &Environment, name: &str) -> Result<String> {
    let path = environment.fleet.deploy().join("manifests").join(name);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Starts coordinators and workers, and then gives them streams. If the queue is kept full, the
/// budget must be reached.
///
/// # Errors
/// If a phase does not end as it should.
pub fn start(environment: &mut Environment, streams: usize) -> Result<()> {
    let is_fed = environment.feeds_jobs;
    environment.phase(
        Plan { full: is_fed, ..full("start: 2 coordinators, 6 workers") },
        |environment| {
            environment
                .work
                .put_manifest("cluster.yaml", &manifest(environment, "cluster.yaml")?)?;
            for replica in 0..environment.fleet.replicas.len() {
                environment.fleet.start_coordinator(replica, &environment.work)?;
            }
            for number in 1..=WORKERS {
                environment.fleet.start_agent(&blue(number), 1, &environment.work)?;
            }
            Ok(())
        },
        |environment| {
            let living = environment.fleet.living();
            Ok(environment.live.watching(&living))
        },
    )?;
    let name = format!("{streams} streams appear");
    environment.phase(
        Plan { full: is_fed, ..full(&name) },
        |environment| {
            for name in ["swarm-streams.txt", "streams.yaml"] {
                environment.work.put_manifest(name, &manifest(environment, name)?)?;
            }
            environment.streams = streams;
            Ok(())
        },
        |_| Ok(true),
    )?;
    Ok(())
}

fn join(environment: &mut Environment, name: &str, worker: &str, generation: u64) -> Result<()> {
    let act = |environment: &mut Environment| {
        environment.fleet.start_agent(worker, generation, &environment.work)
    };
    environment.phase(full(name), act, |_| Ok(true)).map(drop)
}

fn leave(environment: &mut Environment, name: &str, worker: &str) -> Result<()> {
    let mut gone = false;
    let done = |environment: &mut Environment| {
        gone = gone || environment.fleet.has_drained(worker)?;
        Ok(gone)
    };
    environment.phase(full(name), |environment| environment.fleet.drain(worker), done).map(drop)
}

fn edit(environment: &mut Environment) -> Result<()> {
    let text = manifest(environment, "cluster.yaml")?;
    let low = text.replace(&format!("maxJobs: {MAX_JOBS}"), &format!("maxJobs: {MAX_JOBS_LOW}"));
    ensure!(low != text, "cluster.yaml does not say maxJobs: {MAX_JOBS}");
    // Nothing that runs is killed: the old cap may be in use until jobs have ended.
    let falls = format!("maxJobs {MAX_JOBS} to {MAX_JOBS_LOW}: jobs end");
    environment.phase(
        Plan { name: falls, max_jobs: MAX_JOBS, full: false },
        |environment| environment.work.put_manifest("cluster.yaml", &low),
        |environment| {
            let cluster = environment.admin.cluster(CLUSTER);
            Ok(cluster.is_ok_and(|cluster| {
                cluster.max_jobs == MAX_JOBS_LOW && cluster.committed <= MAX_JOBS_LOW
            }))
        },
    )?;
    let low_for_ns = 1_000_000_000;
    environment.phase(
        Plan { name: format!("maxJobs {MAX_JOBS_LOW}"), max_jobs: MAX_JOBS_LOW, full: true },
        |_| Ok(()),
        |environment| Ok(clock::now_ns() - environment.phase_from_ns() > low_for_ns),
    )?;
    environment.phase(
        full(&format!("maxJobs {MAX_JOBS_LOW} to {MAX_JOBS}")),
        |environment| environment.work.put_manifest("cluster.yaml", &text),
        |_| Ok(true),
    )?;
    Ok(())
}

fn edit_badly(environment: &mut Environment) -> Result<()> {
    let text = manifest(environment, "cluster.yaml")?;
    let bad = text.replace(&format!("maxJobs: {MAX_JOBS}"), "maxJobs: -1");
    let line = bad.lines().position(|line| line.contains("maxJobs: -1")).map_or(0, |at| at + 1);
    let mut reported = String::new();
    environment.phase(
        full("an invalid edit: the last good stays"),
        |environment| environment.work.put_manifest("cluster.yaml", &bad),
        |environment| {
            let leader = environment.admin.leader();
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
            let in_force = environment.admin.cluster(CLUSTER)?.max_jobs;
            ensure!(in_force == MAX_JOBS, "maxJobs {in_force} is in force, not {MAX_JOBS}");
            Ok(true)
        },
    )?;
    environment.screen.say(&format!("  reported: {reported}"));
    environment.work.put_manifest("cluster.yaml", &text)?;
    environment.wait("the end of the manifest's problem", |environment| {
        Ok(environment.admin.leader().is_some_and(|(_, status)| status.problems.is_empty()))
    })
}

fn fail_over(environment: &mut Environment, measured: &mut Measured) -> Result<()> {
    let killed = Cell::new((0, 0));
    let result = environment.phase(
        full("kill -9 of the leader"),
        |environment| {
            killed.set(environment.kill_leader()?);
            Ok(())
        },
        |environment| {
            let living = environment.fleet.living();
            let (_, killed_ns) = killed.get();
            measured.failover_ns = environment.live.failover_ns(&living, killed_ns);
            Ok(measured.failover_ns.is_some())
        },
    )?;
    measured.failover_moves = Some(result.moves);
    let (leader, _) = killed.get();
    environment.fleet.start_coordinator(leader, &environment.work)
}

fn kill_worker(environment: &mut Environment) -> Result<()> {
    let worker = green(5);
    let freed = Cell::new((0, 0));
    environment.phase(
        full(&format!("kill -9 of {worker} with its agent")),
        |environment| {
            let jobs = environment.kill_worker(&worker)?;
            let answer = environment.declare_gone(&worker, &jobs)?;
            freed.set((answer.slots_freed, answer.streams_freed));
            Ok(())
        },
        |_| Ok(true),
    )?;
    let (slots, streams) = freed.get();
    environment.screen.say(&format!("  declared gone: {slots} slots and {streams} streams freed"));
    join(environment, &format!("{} replaces it", green(10)), &green(10), 2)
}

fn freeze_agent(environment: &mut Environment) -> Result<()> {
    let worker = green(1);
    let stopped_ns = Cell::new(0);
    let had: BTreeSet<String> = environment.live.streams_of(&worker);
    ensure!(!had.is_empty(), "{worker} owns no stream before its agent is stopped");
    environment.phase(
        Plan { name: format!("SIGSTOP of {worker}'s agent"), max_jobs: MAX_JOBS, full: false },
        |environment| {
            stopped_ns.set(clock::now_ns());
            let agent = environment.fleet.agent(&worker)?;
            agent.part = Part::Stopped;
            agent.process.signal(Signal::STOP)
        },
        |_| Ok(true),
    )?;
    let expired = environment.live.expired_since(&worker, stopped_ns.get());
    ensure!(
        expired == had,
        "{worker} owned {had:?} when its agent was stopped, and by its own clock it stopped \
         {expired:?}"
    );
    environment.phase(
        full(&format!("SIGCONT of {worker}'s agent")),
        |environment| {
            let agent = environment.fleet.agent(&worker)?;
            agent.process.signal(Signal::CONT)?;
            agent.part = Part::Lives;
            Ok(())
        },
        |_| Ok(true),
    )?;
    Ok(())
}

/// What `systemctl restart` does: the agent drains and ends, and comes back with its state folder.
fn start_again(environment: &mut Environment, measured: &mut Measured) -> Result<()> {
    let worker = green(2);
    leave(environment, &format!("{worker} and its agent are stopped"), &worker)?;
    environment.journal.write(&worker, Event::Ended)?;
    let from_ns = clock::now_ns();
    environment.phase(
        full(&format!("{worker} is started again, same folder")),
        |environment| environment.fleet.start_agent(&worker, 2, &environment.work),
        |environment| Ok(environment.live.evidence.done_since(&worker, from_ns) > 0),
    )?;
    let jobs = environment.live.evidence.done_since(&worker, from_ns);
    let streams = environment.live.streams_of(&worker).len();
    environment.screen.say(&format!("  it works again: {jobs} jobs done, {streams} streams owned"));
    measured.again = Some(RestartedWorker { worker, from_ns });
    Ok(())
}
