//! The agent's metrics in the Prometheus text format. The driver and the adapters set them; a
//! scrape only reads them.

mod table;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use leasehold_types::metric::Metric;

pub use self::table::METRICS;
use crate::refusal;

/// All metrics of one agent.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connected: AtomicBool,
    /// A coordinator has welcomed this agent at least once.
    pub(crate) welcomed: AtomicBool,
    /// A coordinator has answered once, even with a refusal, or a dial has failed.
    pub(crate) answered: AtomicBool,
    /// The refusal, if another agent has the worker's name.
    name_taken: Mutex<Option<String>>,
    pub(crate) epoch: AtomicU64,
    pub(crate) pool_size: AtomicU32,
    pub(crate) running: AtomicU32,
    pub(crate) streams: AtomicU64,
    pub(crate) bindings: AtomicU64,
    pub(crate) draining: AtomicBool,
    pub(crate) reconnects: AtomicU64,
    pub(crate) file_failures: AtomicU64,
    /// The version of the lease in the worker's file.
    pub(crate) file_shows: AtomicU64,
    /// Streams whose program runs, and streams whose program has not started.
    pub(crate) processes: AtomicU64,
    pub(crate) processes_missing: AtomicU64,
    /// Programs that ended by themselves, and those that had to be killed.
    pub(crate) process_exits: AtomicU64,
    pub(crate) process_kills: AtomicU64,
    /// Why no session begins.
    session_problem: Mutex<Option<SessionProblem>>,
    /// Why the journal cannot be written.
    journal_problem: Mutex<Option<String>>,
    /// Why the worker is not started.
    child_problem: Mutex<Option<String>>,
    /// Why a stream's program cannot be started.
    process_problem: Mutex<Option<String>>,
    /// Why the worker's file is out of date.
    file_problem: Mutex<Option<String>>,
    pub(crate) worker_failures: AtomicU64,
    /// Why the agent cannot reach a polled worker.
    worker_problem: Mutex<Option<String>>,
    /// Why the worker fails its check.
    failure: Mutex<Option<String>>,
    refused: Mutex<Refused>,
}

/// Refused jobs by reason, of each reason from the start: an alert cannot use a series that does
/// not exist yet.
#[derive(Debug)]
struct Refused(BTreeMap<&'static str, u64>);

impl Default for Refused {
    fn default() -> Self {
        Self(refusal::REASONS.into_iter().map(|reason| (reason, 0)).collect())
    }
}

/// Why no session begins.
#[derive(Debug)]
enum SessionProblem {
    /// A coordinator has refused the agent.
    Refused(String),
    /// A connection has ended, or was never opened.
    Closed(String),
}

impl Metrics {
    /// Sets why a coordinator refuses the agent; none once one has welcomed it.
    pub(crate) fn set_session_refused(&self, why: Option<String>) {
        let mut problem = self.session_problem.lock().expect("the lock is not poisoned");
        *problem = why.map(SessionProblem::Refused);
    }

    /// Sets why a connection has ended. A refusal by another coordinator says more.
    pub(crate) fn set_session_closed(&self, why: String) {
        let mut problem = self.session_problem.lock().expect("the lock is not poisoned");
        if !matches!(*problem, Some(SessionProblem::Refused(_))) {
            *problem = Some(SessionProblem::Closed(why));
        }
    }

    /// Why no session begins; none once one has begun, or while nothing is known.
    pub(crate) fn session_problem(&self) -> Option<String> {
        let problem = self.session_problem.lock().expect("the lock is not poisoned");
        problem.as_ref().map(|problem| match problem {
            SessionProblem::Refused(why) | SessionProblem::Closed(why) => why.clone(),
        })
    }

    /// Counts a refused job.
    pub(crate) fn count_refused(&self, reason: &'static str) {
        let mut refused = self.refused.lock().expect("the lock is not poisoned");
        *refused.0.entry(reason).or_default() += 1;
    }

    /// Sets the refusal if another agent has the worker's name; none if not.
    pub(crate) fn set_name_taken(&self, by: Option<String>) {
        *self.name_taken.lock().expect("the lock is not poisoned") = by;
    }

    /// Whether another agent has the worker's name.
    pub(crate) fn is_name_taken(&self) -> bool {
        self.name_taken.lock().expect("the lock is not poisoned").is_some()
    }

    /// Sets why the worker's file is out of date; none if it is current.
    pub(crate) fn set_file_problem(&self, problem: Option<String>) {
        *self.file_problem.lock().expect("the lock is not poisoned") = problem;
    }

    /// Sets why the journal cannot be written; none if it can.
    pub(crate) fn set_journal_problem(&self, problem: Option<&str>) {
        let mut set = self.journal_problem.lock().expect("the lock is not poisoned");
        if set.as_deref() != problem {
            *set = problem.map(str::to_owned);
        }
    }

    /// Sets why the worker is not started; none if it is, or must not run.
    pub(crate) fn set_child_problem(&self, problem: Option<String>) {
        *self.child_problem.lock().expect("the lock is not poisoned") = problem;
    }

    /// Sets why a stream's program cannot be started; none if all can.
    pub(crate) fn set_process_problem(&self, problem: Option<String>) {
        *self.process_problem.lock().expect("the lock is not poisoned") = problem;
    }

    /// Sets why the agent cannot reach the worker; none if it can.
    pub(crate) fn set_worker_problem(&self, problem: Option<String>) {
        *self.worker_problem.lock().expect("the lock is not poisoned") = problem;
    }

    /// Sets why the worker fails its check; none if it passes.
    pub(crate) fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock().expect("the lock is not poisoned") = failure;
    }

    /// Why the worker fails its check; none if it passes.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().expect("the lock is not poisoned").clone()
    }

    /// Why the agent is not ready; none if it is. Ready means that a coordinator has welcomed it
    /// once: a later outage of the coordinator must not take all workers out of service.
    pub(crate) fn unready(&self) -> Option<String> {
        if let Some(by) = self.name_taken.lock().expect("the lock is not poisoned").clone() {
            return Some(format!("refused: {by}"));
        }
        if let Some(problem) =
            self.journal_problem.lock().expect("the lock is not poisoned").clone()
        {
            return Some(format!(
                "cannot write the journal: {problem}: until the agent can, no job begins, no job's \
                 end is confirmed, and no lease is granted or renewed"
            ));
        }
        if let Some(problem) = self.child_problem.lock().expect("the lock is not poisoned").clone()
        {
            return Some(problem);
        }
        if let Some(problem) = self.file_problem.lock().expect("the lock is not poisoned").clone() {
            return Some(format!("the worker's streams are out of date: {problem}"));
        }
        if let Some(problem) =
            self.process_problem.lock().expect("the lock is not poisoned").clone()
        {
            return Some(problem);
        }
        if let Some(problem) = self.worker_problem.lock().expect("the lock is not poisoned").clone()
        {
            return Some(format!("cannot reach the worker: {problem}"));
        }
        if let Some(failure) = self.failure() {
            return Some(format!("the worker fails: {failure}"));
        }
        (!self.welcomed.load(Relaxed)).then(|| "no coordinator has welcomed this agent yet".into())
    }

    /// The metrics in the text format.
    pub(crate) fn render(&self) -> String {
        let is_none = |problem: &Mutex<Option<String>>| {
            problem.lock().expect("the lock is not poisoned").is_none()
        };
        let bit = |bit: &AtomicBool| u64::from(bit.load(Relaxed));
        let count = |count: &AtomicU64| count.load(Relaxed);
        let worker_ok = is_none(&self.worker_problem) && is_none(&self.failure);
        let mut out = String::new();
        for (metric, value) in [
            (table::CONNECTED, bit(&self.connected)),
            (table::EPOCH, count(&self.epoch)),
            (table::POOL_SIZE, self.pool_size.load(Relaxed).into()),
            (table::RUNNING, self.running.load(Relaxed).into()),
            (table::STREAMS, count(&self.streams)),
            (table::BINDINGS, count(&self.bindings)),
            (table::DRAINING, bit(&self.draining)),
            (table::RECONNECTS, count(&self.reconnects)),
            (table::JOURNAL_OK, is_none(&self.journal_problem).into()),
            (table::FILE_OK, is_none(&self.file_problem).into()),
            (table::FILE_FAILURES, count(&self.file_failures)),
            (table::PROCESSES, count(&self.processes)),
            (table::PROCESSES_MISSING, count(&self.processes_missing)),
            (table::PROCESS_EXITS, count(&self.process_exits)),
            (table::PROCESS_KILLS, count(&self.process_kills)),
            (table::WORKER_OK, worker_ok.into()),
            (table::WORKER_FAILURES, count(&self.worker_failures)),
        ] {
            head(&mut out, &metric);
            let _ = writeln!(out, "{} {value}", metric.name);
        }
        head(&mut out, &table::BEGIN_REFUSED);
        for (reason, count) in &self.refused.lock().expect("the lock is not poisoned").0 {
            let _ = writeln!(out, "{}{{reason=\"{reason}\"}} {count}", table::BEGIN_REFUSED.name);
        }
        head(&mut out, &table::BUILD_INFO);
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(out, "{}{{version=\"{version}\"}} 1", table::BUILD_INFO.name);
        out
    }
}

fn head(out: &mut String, Metric { name, kind, meaning, .. }: &Metric) {
    let _ = writeln!(out, "# HELP {name} {meaning}\n# TYPE {name} {}", kind.word());
}
