//! The user's process beside an agent: the jobs that it runs and the streams that it uses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use leasehold_types::{JobId, Load, Moment, StartId, StreamKey, Token};

use crate::system::clock::Real;

/// How a worker keeps to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It asks for each job.
    Gate,
    /// It reads the size, keeps to it, and tells later.
    Count,
}

/// A stream that the worker uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// Under this token.
    pub token: Token,
    /// Until then by its host's clock.
    pub until: Option<Moment>,
    /// It has decided what to do about a revoke.
    pub decided: bool,
    /// The load that it takes, where it is a share of a pipeline.
    pub load: Option<Load>,
}

/// What it has yet to tell its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A process starts; so many jobs run in it that its agent has no id of.
    Start(StartId, u32),
    /// A job has ended.
    End(JobId),
    /// A stream was let go.
    Release(StreamKey, Token),
    /// So many run, and it keeps to this size.
    Count(u32, u32),
}

/// One worker.
#[derive(Debug)]
pub(crate) struct Worker {
    /// How it keeps to its pool.
    pub kind: Kind,
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
    pub limbo: Option<JobId>,
    /// How many jobs it would run.
    pub appetite: u32,
    /// The pool size that it keeps to (Count), and until when.
    pub obeyed: (u32, Option<Moment>),
    /// The streams that it uses.
    pub streams: BTreeMap<StreamKey, Use>,
    /// What it has yet to tell, oldest first.
    pub calls: VecDeque<Call>,
    /// It reads its lease no earlier than this.
    pub reads_at: Real,
    /// A tick is scheduled soon.
    pub tick_soon: bool,
    /// The number of the tick that is scheduled; it replaces every earlier one.
    pub tick_number: u64,
    /// The agent's life that it has told of its start.
    pub introduced: u64,
    /// The number of the last job to which it gave an id of its own.
    pub next_job: u64,
}

impl Worker {
    /// A worker that has not started.
    pub(crate) fn new(kind: Kind, stoppable: bool) -> Self {
        Self {
            kind,
            stoppable,
            alive: false,
            start: 0,
            jobs: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            limbo: None,
            appetite: 4,
            obeyed: (0, None),
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
    pub(crate) fn uses(&self, used: &Use, now: Moment) -> bool {
        self.alive && (!self.stoppable || used.until.is_none_or(|until| now < until))
    }

    /// The jobs that it runs, or may start without asking anybody.
    pub(crate) fn jobs_possible(&self, now: Moment) -> u32 {
        let running = self.jobs.len() as u32;
        let (size, until) = self.obeyed;
        let open = self.alive && (!self.stoppable || until.is_none_or(|until| now < until));
        if self.kind == Kind::Count && open { running.max(size) } else { running }
    }

    /// The id of its present process.
    pub(crate) fn start_id(&self) -> StartId {
        StartId::new(&format!("start-{}", self.start)).expect("printable")
    }
}
