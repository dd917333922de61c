//! The demo's verdict: every check with its evidence, and the one JSON object at the end.

use anyhow::Result;
use serde::Serialize;

use crate::checker::{self, Jobs, PhaseResult};
use crate::evidence::Evidence;
use crate::fleet::{SET, coordinator_log};
use crate::journal::Journals;
use crate::push::{Grant, Pushes, parse_grant};
use crate::records::Records;
use crate::scenario::{MAX_JOBS, Measured};
use crate::work::Work;

/// Pieces of evidence that one failed check shows at most.
const EVIDENCE_MAX: usize = 5;

/// What the demo prints last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// `maxJobs` of the manifest.
    pub max_jobs: u32,
    /// The most jobs at the same time, over all phases.
    pub peak_jobs: usize,
    /// Jobs with a result.
    pub jobs_done: usize,
    /// Jobs that are nowhere.
    pub jobs_lost: usize,
    /// Jobs with more than one result.
    pub jobs_doubled: usize,
    /// Jobs that were begun again after their worker was killed with -9.
    pub jobs_retried: usize,
    /// Streams.
    pub streams: usize,
    /// Streams that changed their worker, over all phases.
    pub moves: usize,
    /// The fewest that the changes of workers forced.
    pub moves_min: usize,
    /// How long streams had two owners, summed, rounded up.
    pub double_owned_ms: u64,
    /// Records in the sources.
    pub records: usize,
    /// Records that are not in the sink.
    pub records_lost: usize,
    /// Records that are in the sink more than once.
    pub records_doubled: usize,
    /// From a grant in the coordinator's log to its token's first sight in the worker's journal.
    pub push_ms_p50: Option<f64>,
    /// See `push_ms_p50`.
    pub push_ms_p99: Option<f64>,
    /// Grants that this was measured for.
    pub pushes: usize,
    /// Grants that were replaced, withdrawn or lost with their worker before it saw them.
    pub pushes_unseen: usize,
    /// From the leader's kill -9 to the last worker's sight of a lease that a new leader renewed.
    pub failover_ms: Option<u64>,
    /// Streams that changed their worker because of that.
    pub failover_moves: Option<usize>,
    /// Jobs that a worker has done after its agent was stopped and started again with its folder.
    pub restart_jobs: Option<usize>,
    /// Stream leases that it was granted since.
    pub restart_streams: Option<usize>,
    /// Each phase by itself.
    pub phases: Vec<PhaseResult>,
    /// The names of the checks that failed.
    pub failed: Vec<String>,
    /// Whether every check held.
    pub ok: bool,
}

/// How the demo's processes came to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was copied, and every worker drained.
    Orderly,
    /// The same, after a pause in which the user may have killed workers.
    AfterStaying,
    /// They were killed in the middle of their work.
    Early,
}

/// A check that failed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The check.
    pub check: String,
    /// The findings.
    pub evidence: Vec<String>,
}

/// Everything that is judged.
#[derive(Debug, Default)]
pub struct Findings {
    /// The journals.
    pub evidence: Evidence,
    /// The jobs.
    pub jobs: Jobs,
    /// The records.
    pub records: Records,
    /// Writes that no time of owning covers.
    pub strays: Vec<String>,
    /// How long decisions took to reach workers.
    pub pushes: Pushes,
    /// What the scenario measured.
    pub measured: Measured,
    /// Why the scenario ended early.
    pub broken: Vec<String>,
    /// Errors that workers reported.
    pub errors: Vec<String>,
}

impl Findings {
    /// Reads everything that the processes have left in the work folder.
    ///
    /// # Errors
    /// If something cannot be read.
    pub fn read(work: &Work, streams: &[String], measured: Measured, end: End) -> Result<Self> {
        let lines = Journals::new(work.path("journal")).read()?;
        let mut grants: Vec<Grant> = Vec::new();
        for replica in 0..2 {
            let log = std::fs::read_to_string(coordinator_log(work, replica)).unwrap_or_default();
            grants.extend(log.lines().filter_map(parse_grant));
        }
        let pushes = Pushes::new(&grants, &lines);
        let mut evidence = Evidence::new(lines);
        let mut waiting = work.queued("pending")?;
        if end != End::Orderly {
            // The jobs of a worker that was killed are where it left them: none was put back.
            waiting.extend(work.queued("taken")?);
        }
        let jobs = checker::jobs(&evidence, &waiting, &work.queued("done")?);
        let (records, writes) = work.records(SET, streams, end == End::Early)?;
        let strays = evidence.stretch(&writes);
        let errors = python_errors(work)?;
        let broken = Vec::new();
        Ok(Self { evidence, jobs, records, strays, pushes, measured, broken, errors })
    }

    /// The verdict, and what speaks against it.
    #[must_use]
    pub fn judge(self, streams: usize) -> (Summary, Vec<Failure>) {
        let phases = checker::phases(&self.evidence);
        let (double_ns, doubles) = checker::double_owned(&self.evidence.owns);
        let mut failures = Vec::new();
        let mut check = |check: &str, evidence: Vec<String>| {
            if !evidence.is_empty() {
                failures.push(Failure { check: check.to_owned(), evidence });
            }
        };
        check("the demo runs to its end", self.broken);
        check("jobs stay within maxJobs", over_the_cap(&phases));
        check("maxJobs is reached while jobs wait", below_the_cap(&phases));
        check("no job is lost", self.jobs.lost.iter().cloned().collect());
        check("no job is done twice", self.jobs.doubled.iter().cloned().collect());
        check("no stream has two owners", doubles);
        check("who writes owns", self.strays);
        check("the fewest streams move", needless_moves(&phases));
        check("no record is lost", some(self.records.lost, "records are not in the sink"));
        check(
            "no record is copied twice",
            some(self.records.doubled, "records are in the sink twice"),
        );
        check("the sink is in order", self.records.faults);
        check("journals agree with themselves", self.evidence.contradictions.clone());
        check("workers report no error", self.errors);
        check("a failover happens", none(self.measured.failover_ns));
        let moved = self.measured.failover_moves.unwrap_or(0);
        check("a failover moves no stream", some(moved, "streams moved"));
        check("pushes are measured", none(self.pushes.percentile_ms(50)));
        let again = self.measured.again.as_ref();
        let evidence = &self.evidence;
        let restart_jobs = again.map(|again| evidence.done_since(&again.worker, again.from_ns));
        let restart_streams = again.map(|again| evidence.owned_since(&again.worker, again.from_ns));
        let some_of = |count: Option<usize>| none(count.filter(|count| *count > 0));
        check("a worker that is started again does jobs", some_of(restart_jobs));
        check("a worker that is started again owns streams", some_of(restart_streams));
        let summary = Summary {
            max_jobs: MAX_JOBS,
            peak_jobs: phases.iter().map(|phase| phase.peak_jobs).max().unwrap_or(0),
            jobs_done: self.jobs.done,
            jobs_lost: self.jobs.lost.len(),
            jobs_doubled: self.jobs.doubled.len(),
            jobs_retried: self.evidence.retried.len(),
            streams,
            moves: phases.iter().map(|phase| phase.moves).sum(),
            moves_min: phases.iter().map(|phase| phase.moves_min).sum(),
            double_owned_ms: double_ns.div_ceil(1_000_000),
            records: self.records.written,
            records_lost: self.records.lost,
            records_doubled: self.records.doubled,
            push_ms_p50: self.pushes.percentile_ms(50),
            push_ms_p99: self.pushes.percentile_ms(99),
            pushes: self.pushes.sorted_us.len(),
            pushes_unseen: self.pushes.unseen,
            failover_ms: self.measured.failover_ns.map(|ns| ns.div_ceil(1_000_000)),
            failover_moves: self.measured.failover_moves,
            restart_jobs,
            restart_streams,
            phases,
            failed: failures.iter().map(|failure| failure.check.clone()).collect(),
            ok: failures.is_empty(),
        };
        (summary, failures)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FAILED: {}", self.check)?;
        for piece in self.evidence.iter().take(EVIDENCE_MAX) {
            write!(f, "\n  {piece}")?;
        }
        match self.evidence.len().saturating_sub(EVIDENCE_MAX) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

fn over_the_cap(phases: &[PhaseResult]) -> Vec<String> {
    let over = phases.iter().filter(|phase| phase.peak_jobs > cap(phase));
    over.map(|phase| format!("{}: {} of {}", phase.name, phase.peak_jobs, phase.max_jobs)).collect()
}

fn below_the_cap(phases: &[PhaseResult]) -> Vec<String> {
    let below = phases.iter().filter_map(|phase| {
        let peak = phase.peak_jobs_stable.filter(|peak| *peak < cap(phase))?;
        Some(format!("{}: {peak} of {}", phase.name, phase.max_jobs))
    });
    below.collect()
}

fn cap(phase: &PhaseResult) -> usize {
    usize::try_from(phase.max_jobs).unwrap_or(usize::MAX)
}

fn needless_moves(phases: &[PhaseResult]) -> Vec<String> {
    let needless = phases.iter().filter(|phase| phase.moves != phase.moves_min);
    needless
        .map(|phase| {
            let PhaseResult { name, moves, moves_min, .. } = phase;
            format!("{name}: {moves} moves where {moves_min} would do")
        })
        .collect()
}

fn some(count: usize, what: &str) -> Vec<String> {
    if count == 0 { Vec::new() } else { vec![format!("{count} {what}")] }
}

fn none<T>(value: Option<T>) -> Vec<String> {
    if value.is_some() { Vec::new() } else { vec!["there is nothing of it".to_owned()] }
}

/// The ends of Python's stack traces in the logs.
fn python_errors(work: &Work) -> Result<Vec<String>> {
    let mut errors = Vec::new();
    for entry in std::fs::read_dir(work.path("logs"))? {
        let path = entry?.path();
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        let traces = text.split("Traceback (most recent call last)").skip(1);
        for trace in traces {
            let last = trace.lines().skip(1).find(|line| !line.starts_with(' '));
            errors.push(format!("{}: {}", path.display(), last.unwrap_or("an exception")));
        }
    }
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, peak_jobs: usize, moves: usize) -> PhaseResult {
        PhaseResult {
            name: name.to_owned(),
            max_jobs: 12,
            peak_jobs,
            moves,
            moves_min: 3,
            ms: 1,
            peak_jobs_stable: Some(peak_jobs),
        }
    }

    #[test]
    fn names_the_phases_that_break_a_rule() {
        let phases = [phase("good", 12, 3), phase("over", 13, 3), phase("idle", 9, 4)];
        assert_eq!(over_the_cap(&phases), ["over: 13 of 12"]);
        assert_eq!(below_the_cap(&phases), ["idle: 9 of 12"]);
        assert_eq!(needless_moves(&phases), ["idle: 4 moves where 3 would do"]);
    }

    #[test]
    fn an_empty_demo_is_not_ok() {
        let (summary, failures) = Findings::default().judge(27);
        assert!(!summary.ok);
        let want = [
            "a failover happens",
            "pushes are measured",
            "a worker that is started again does jobs",
            "a worker that is started again owns streams",
        ];
        assert_eq!(summary.failed, want);
        assert!(failures[0].to_string().starts_with("FAILED: a failover happens\n  "));
    }

    #[test]
    fn reports_the_error_that_ended_the_demo() {
        let broken = vec!["green-1 ended by itself".to_owned()];
        let (summary, failures) = Findings { broken, ..Findings::default() }.judge(27);
        assert_eq!(summary.failed[0], "the demo runs to its end");
        assert!(failures[0].to_string().contains("green-1"));
    }

    #[test]
    fn the_json_has_the_promised_fields() {
        let (summary, _) = Findings::default().judge(27);
        let json = serde_json::to_value(&summary).unwrap();
        for field in [
            "max_jobs",
            "peak_jobs",
            "jobs_done",
            "jobs_lost",
            "streams",
            "moves",
            "moves_min",
            "double_owned_ms",
            "records",
            "records_lost",
            "records_doubled",
            "push_ms_p50",
            "push_ms_p99",
            "failover_ms",
            "failover_moves",
            "restart_jobs",
            "restart_streams",
            "ok",
        ] {
            assert!(json.get(field).is_some(), "{field}");
        }
    }
}
