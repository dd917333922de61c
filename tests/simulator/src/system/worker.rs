//! The user's process beside an agent: the jobs that it runs and the streams that it uses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use leasehold_types::{JobId, Load, Moment, StartId, StreamKey, Token};

use crate::system::clock::Real;

/// How a worker keeps to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerKind {
    /// It asks for each job.
    Gate,
    /// It reads the pool size, keeps to it, and reports its jobs later.
    Count,
}

/// A stream that the worker uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamUse {
    /// Under this token.
    pub token: Token,
    /// Until then by its host's clock.
    pub until: Option<Moment>,
    /// It has decided what to do about a revoke.
    pub decided: bool,
    /// The load that it takes, where it is a share of a pipeline.
    pub load: Option<Load>,
}

/// A call that it has yet to make to its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCall {
    /// A process starts, and runs this many jobs whose ids its agent does not know.
    Start(StartId, u32),
    /// A job has ended.
    End(JobId),
    /// A stream was released.
    Release(StreamKey, Token),
    /// This many jobs run, and it keeps to this size.
    Count(u32, u32),
}

/// One worker.
#[derive(Debug)]
pub(crate) struct Worker {
    /// How it keeps to its pool.
    pub kind: WorkerKind,
    /// Its agent can stop it.
    pub stoppable: bool,
    /// Its process lives.
    pub alive: bool,
    /// Counts its processes.
    pub start: u64,
    /// The jobs that really run.
    pub jobs: BTreeSet<JobId>,
    /// Those of them that its agent knows by number only: it came without a journal.
    pub unnamed: BTreeSet<JobId>,
    /// A job that it asked for and got no answer about.
    pub unanswered_job: Option<JobId>,
    /// How many jobs it would run.
    pub jobs_wanted: u32,
    /// The pool size that it keeps to (Count), and until when.
    pub in_effect: (u32, Option<Moment>),
    /// The streams that it uses.
    pub streams: BTreeMap<StreamKey, StreamUse>,
    /// The calls that it has yet to make, oldest first.
    pub calls: VecDeque<WorkerCall>,
    /// It reads its lease no earlier than this.
    pub reads_at: Real,
    /// A tick is scheduled soon.
    pub tick_soon: bool,
    /// The number of the tick that is scheduled; it replaces every earlier one.
    pub tick_number: u64,
    /// The agent's life to which it has introduced itself.
    pub introduced: u64,
    /// The number of the last job to which it gave an id of its own.
    pub next_job: u64,
}

impl Worker {
    /// A worker that has not started.
    pub(crate) fn new(kind: WorkerKind, stoppable: bool) -> Self {
        Self {
            kind,
            stoppable,
            alive: false,
            start: 0,
            jobs: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            unanswered_job: None,
            jobs_wanted: 4,
            in_effect: (0, None),
            streams: BTreeMap::new(),
            calls: VecDeque::new(),
            reads_at: 0,
            tick_soon: false,
            tick_number: 0,
            introduced: 0,
            next_job: 0,
        }
    }

    /// Whether it would use the stream under this token now, by its host's clock.
    pub(crate) fn uses(&self, used: &StreamUse, now: Moment) -> bool {
        self.alive && (!self.stoppable || used.until.is_none_or(|until| now < until))
    }

    /// The jobs that it runs, or may start without asking its agent.
    pub(crate) fn jobs_possible(&self, now: Moment) -> u32 {
        let running = self.jobs.len() as u32;
        let (size, until) = self.in_effect;
        let open = self.alive && (!self.stoppable || until.is_none_or(|until| now < until));
        if self.kind == WorkerKind::Count && open { running.max(size) } else { running }
    }

    /// The id of its present process.
    pub(crate) fn start_id(&self) -> StartId {
        StartId::new(&format!("start-{}", self.start)).expect("printable")
    }
}
