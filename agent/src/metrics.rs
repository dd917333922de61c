//! The agent's metrics in the Prometheus text format. The driver and the adapters set them; a
//! scrape only reads them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

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
    refused: Mutex<BTreeMap<&'static str, u64>>,
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
        *refused.entry(reason).or_default() += 1;
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
        let mut out = String::new();
        let file_ok = self.file_problem.lock().expect("the lock is not poisoned").is_none();
        let journal_ok = self.journal_problem.lock().expect("the lock is not poisoned").is_none();
        let worker_ok = self.worker_problem.lock().expect("the lock is not poisoned").is_none()
            && self.failure().is_none();
        let version = env!("CARGO_PKG_VERSION");
        let mut one = |name: &str, kind: &str, help: &str, value: u64| {
            let name = format!("leasehold_agent_{name}");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        let bit = |bit: &AtomicBool| u64::from(bit.load(Relaxed));
        one("connected", "gauge", "1 while a leading coordinator answers.", bit(&self.connected));
        one(
            "epoch",
            "gauge",
            "The highest epoch that welcomed this agent.",
            self.epoch.load(Relaxed),
        );
        let size = u64::from(self.pool_size.load(Relaxed));
        one("pool_size", "gauge", "Jobs that may run at once.", size);
        one("running", "gauge", "Running jobs.", u64::from(self.running.load(Relaxed)));
        one("streams", "gauge", "Stream leases held.", self.streams.load(Relaxed));
        let count = self.bindings.load(Relaxed);
        one("bindings", "gauge", "Shares of pipelines held.", count);
        one("draining", "gauge", "1 while the worker drains.", bit(&self.draining));
        let count = self.reconnects.load(Relaxed);
        one("reconnects_total", "counter", "Dials after the first one.", count);
        let help = "0 while the agent cannot write its journal.";
        one("journal_ok", "gauge", help, u64::from(journal_ok));
        let count = self.file_failures.load(Relaxed);
        one("file_failures_total", "counter", "Failed writes of the worker's file.", count);
        one(
            "file_ok",
            "gauge",
            "0 while the worker's file is out of date, or the worker does not know of its change.",
            u64::from(file_ok),
        );
        let count = self.processes.load(Relaxed);
        one("processes", "gauge", "Streams whose program runs.", count);
        let count = self.processes_missing.load(Relaxed);
        one("processes_missing", "gauge", "Streams that wait for their program to start.", count);
        let count = self.process_exits.load(Relaxed);
        one("process_exits_total", "counter", "Programs that exited by themselves.", count);
        let count = self.process_kills.load(Relaxed);
        one(
            "process_kills_total",
            "counter",
            "Programs that the agent killed with SIGKILL.",
            count,
        );
        let count = self.worker_failures.load(Relaxed);
        one("worker_failures_total", "counter", "Failed calls of the worker.", count);
        let help = "0 while the agent cannot reach the worker, or the worker fails.";
        one("worker_ok", "gauge", help, u64::from(worker_ok));
        let _ = writeln!(
            out,
            "# HELP leasehold_agent_begin_refused_total Jobs that the agent refused.\n\
             # TYPE leasehold_agent_begin_refused_total counter"
        );
        for (reason, count) in self.refused.lock().expect("the lock is not poisoned").iter() {
            let name = "leasehold_agent_begin_refused_total";
            let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {count}");
        }
        let _ = writeln!(
            out,
            "# HELP leasehold_agent_build_info The version of the agent.\n\
             # TYPE leasehold_agent_build_info gauge\n\
             leasehold_agent_build_info{{version=\"{version}\"}} 1"
        );
        out
    }
}
