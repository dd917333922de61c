//! The short demo: a rollout, more workers, a lost machine and a failover at the times of a plan,
//! with jobs that all take as long. `deploy/simulations/demo.yaml` has the same plan as a load, so
//! that what `leasehold simulate` computes is compared with what the workers wrote.
//!
//! **Invariant**: nothing is measured but by the workers' journals and the ends of processes.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::environment::Environment;
use crate::evidence::{Evidence, Run};
use crate::scenario::{MAX_JOBS, WORKERS, blue, green};
use crate::{checker, clock, scenario};

/// How long each job takes. All of the first jobs run until the rollout's last worker drains.
pub const JOB_TIME: Duration = Duration::from_secs(20);
/// When the demo ends, after its start.
pub const LENGTH: Duration = Duration::from_secs(38);
/// How long after each new worker of the rollout the next one is started, and an old one drains.
pub const REPLACED_EVERY: Duration = Duration::from_secs(2);
/// How long after its loss a machine is declared gone, and its worker replaced.
pub const REPLACED_AFTER: Duration = Duration::from_secs(5);
/// The plan, in the order of time.
pub const STEPS: [Step; 6] = [
    Step { at: Duration::from_secs(1), kind: StepKind::Rollout },
    Step { at: Duration::from_secs(22), kind: StepKind::Scale { workers: 7 } },
    Step { at: Duration::from_secs(24), kind: StepKind::Scale { workers: 8 } },
    Step { at: Duration::from_secs(26), kind: StepKind::Scale { workers: 9 } },
    Step { at: Duration::from_secs(28), kind: StepKind::Lose },
    Step { at: Duration::from_secs(36), kind: StepKind::Failover },
];

/// A step of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it begins, after the start: when the first jobs are put into the queue.
    pub at: Duration,
    /// What happens.
    pub kind: StepKind,
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// All workers are replaced, one after another.
    Rollout,
    /// One more worker comes.
    Scale {
        /// The number of workers then.
        workers: usize,
    },
    /// A machine is lost with its worker, and replaced.
    Lose,
    /// The leader is killed.
    Failover,
}

/// What the short demo has measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShortSummary {
    /// `maxJobs` of the manifest.
    pub max_jobs: u32,
    /// The most jobs at the same time.
    pub peak_jobs: usize,
    /// Jobs that were done by the end of the plan.
    pub jobs_done: usize,
    /// Jobs that were begun again after their worker was killed.
    pub jobs_retried: usize,
    /// Streams that changed their worker, from the first step on.
    pub moves: usize,
    /// The longest time for which a stream had no owner.
    pub unowned_max_ms: u64,
    /// How long streams had two owners, summed, rounded up.
    pub double_owned_ms: u64,
    /// Each step by itself, until the next one.
    pub phases: Vec<ShortPhase>,
}

/// What was measured from the beginning of one step to that of the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShortPhase {
    /// What happened.
    pub event: &'static str,
    /// When that began, after the start.
    pub from_ms: u64,
    /// The most jobs at the same time.
    pub peak_jobs: usize,
    /// Streams that changed their worker.
    pub moves: usize,
    /// From its beginning until its last worker worked or had ended.
    pub last_worker_ms: Option<u64>,
}

/// A step that was played.
#[derive(Clone, Copy, Debug)]
struct Played {
    event: &'static str,
    begun_ns: u64,
    last_worker_ns: Option<u64>,
}

impl StepKind {
    /// Its field in the file of a load.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Scale { .. } => "scale",
            Self::Lose => "lose",
            Self::Failover => "failover",
        }
    }
}

/// Plays the plan.
///
/// # Errors
/// If a step does not end as it should.
pub fn run(environment: &mut Environment, streams: usize) -> Result<ShortSummary> {
    environment.fleet.job_time = Some(JOB_TIME);
    // All jobs begin at the start, when every worker is there and owns its streams.
    environment.feeds_jobs = false;
    scenario::start(environment, streams)?;
    environment.feeds_jobs = true;
    let start_ns = clock::now_ns();
    let mut played = Vec::new();
    for step in STEPS {
        until(environment, after(start_ns, step.at))?;
        let event = step.kind.name();
        environment.name_phase(event);
        let begun_ns = clock::now_ns();
        let last_worker_ns = play(environment, step.kind, begun_ns)?;
        let took_ms = (clock::now_ns() - begun_ns) / 1_000_000;
        environment.screen.say(&format!("  {event}: {took_ms} ms"));
        played.push(Played { event, begun_ns, last_worker_ns });
    }
    // A step that began late lasts as long as the plan gives it.
    let last = STEPS[STEPS.len() - 1];
    let begun_ns = played.last().map_or(start_ns, |step| step.begun_ns);
    let end_ns = after(begun_ns, LENGTH - last.at).max(after(start_ns, LENGTH));
    until(environment, end_ns)?;
    environment.read_journals()?;
    Ok(summary(&environment.live.evidence, start_ns, end_ns, &played))
}

/// Plays one step. Returns when its last worker worked or had ended; none if no worker changes.
fn play(environment: &mut Environment, kind: StepKind, begun_ns: u64) -> Result<Option<u64>> {
    match kind {
        StepKind::Rollout => roll(environment, begun_ns)?,
        StepKind::Scale { workers } => join(environment, &green(workers))?,
        StepKind::Lose => lose(environment, begun_ns)?,
        StepKind::Failover => {
            fail_over(environment)?;
            return Ok(None);
        }
    }
    Ok(Some(clock::now_ns()))
}

/// Each new worker owns streams before the next old one drains, and the streams of that one are
/// with others before the next new one comes: so the fewest moves of each change are known.
fn roll(environment: &mut Environment, begun_ns: u64) -> Result<()> {
    let mut drains_ns = begun_ns;
    for number in 1..=WORKERS {
        join(environment, &green(number))?;
        drains_ns = after(drains_ns, REPLACED_EVERY);
        until(environment, drains_ns)?;
        environment.fleet.drain(&blue(number))?;
        until_balanced(environment)?;
    }
    for worker in (1..=WORKERS).map(blue) {
        environment.wait(&format!("the end of {worker}"), |environment| {
            environment.fleet.has_drained(&worker)
        })?;
    }
    Ok(())
}

/// A worker comes, and gets its share of the streams.
fn join(environment: &mut Environment, worker: &str) -> Result<()> {
    environment.fleet.start_agent(worker, 2, &environment.work)?;
    until_balanced(environment)
}

/// A machine is lost with its worker. Its streams go to others when their leases have ended; its
/// slots are free when it is declared gone.
fn lose(environment: &mut Environment, begun_ns: u64) -> Result<()> {
    let worker = green(1);
    let jobs = environment.kill_worker(&worker)?;
    until(environment, after(begun_ns, REPLACED_AFTER))?;
    environment.declare_gone(&worker, &jobs)?;
    join(environment, &green(10))
}

/// The leader is killed, and the other coordinator renews the leases of all workers.
fn fail_over(environment: &mut Environment) -> Result<()> {
    let (_, killed_ns) = environment.kill_leader()?;
    environment.wait("leases that the next leader has renewed", |environment| {
        let living = environment.fleet.living();
        Ok(environment.live.failover_ns(&living, killed_ns).is_some())
    })
}

fn until(environment: &mut Environment, at_ns: u64) -> Result<()> {
    environment.wait("the next step's time", |_| Ok(clock::now_ns() >= at_ns))
}

fn until_balanced(environment: &mut Environment) -> Result<()> {
    environment.wait("a balance of the streams", |environment| Ok(environment.is_balanced()))
}

/// This much after a moment of [`clock::now_ns`].
fn after(from_ns: u64, time: Duration) -> u64 {
    from_ns + u64::try_from(time.as_nanos()).expect("a step is within an hour")
}

fn summary(evidence: &Evidence, start_ns: u64, end_ns: u64, played: &[Played]) -> ShortSummary {
    let ends = played.iter().skip(1).map(|next| next.begun_ns).chain([end_ns]);
    let phases = played.iter().zip(ends).map(|(step, to_ns)| ShortPhase {
        event: step.event,
        from_ms: (step.begun_ns - start_ns) / 1_000_000,
        peak_jobs: checker::peak(&evidence.runs, step.begun_ns, to_ns),
        moves: checker::moves(&evidence.owns, step.begun_ns, to_ns),
        last_worker_ms: step.last_worker_ns.map(|at_ns| (at_ns - step.begun_ns) / 1_000_000),
    });
    let phases: Vec<ShortPhase> = phases.collect();
    // Where a step began late, jobs of the second round are done by the end.
    let planned_end_ns = after(start_ns, LENGTH);
    let is_done = |run: &&Run| run.done && run.to_ns < planned_end_ns;
    ShortSummary {
        max_jobs: MAX_JOBS,
        peak_jobs: checker::peak(&evidence.runs, start_ns, end_ns),
        jobs_done: evidence.runs.iter().filter(is_done).count(),
        jobs_retried: evidence.retried.len(),
        moves: phases.iter().map(|phase| phase.moves).sum(),
        unowned_max_ms: checker::unowned_max_ns(&evidence.owns, start_ns, end_ns) / 1_000_000,
        double_owned_ms: checker::double_owned(&evidence.owns).0.div_ceil(1_000_000),
        phases,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Own;

    const SECOND_NS: u64 = 1_000_000_000;

    fn own(worker: &str, from: u64, to: u64) -> Own {
        Own {
            stream: "s/x".to_owned(),
            worker: worker.to_owned(),
            token: format!("1.{from}"),
            from_ns: from * SECOND_NS,
            to_ns: to * SECOND_NS,
            why: String::new(),
            load_milli: 0,
        }
    }

    fn run(job: &str, from: u64, to: u64) -> Run {
        let (from_ns, to_ns) = (from * SECOND_NS, to * SECOND_NS);
        Run { job: job.to_owned(), worker: "w1".to_owned(), from_ns, to_ns, done: true }
    }

    #[test]
    fn each_step_has_what_happened_until_the_next_one() {
        let evidence = Evidence {
            owns: vec![own("w1", 1, 12), own("w2", 15, 31), own("w1", 32, 90)],
            runs: vec![run("a", 11, 21), run("b", 14, 22), run("c", 22, 50)],
            ..Evidence::default()
        };
        let played = [("rollout", 12, Some(22)), ("failover", 30, None)].map(
            |(event, begun, last): (&'static str, u64, Option<u64>)| Played {
                event,
                begun_ns: begun * SECOND_NS,
                last_worker_ns: last.map(|last| last * SECOND_NS),
            },
        );
        let summary = summary(&evidence, 10 * SECOND_NS, 40 * SECOND_NS, &played);
        let phase = |event, from_ms, peak_jobs, last_worker_ms| ShortPhase {
            event,
            from_ms,
            peak_jobs,
            moves: 1,
            last_worker_ms,
        };
        let phases = [phase("rollout", 2_000, 2, Some(10_000)), phase("failover", 20_000, 1, None)];
        assert_eq!(summary.phases, phases);
        assert_eq!((summary.peak_jobs, summary.jobs_done, summary.moves), (2, 2, 2));
        assert_eq!((summary.unowned_max_ms, summary.double_owned_ms), (3_000, 0));
    }
}
