//! The lease as a worker sees it, and the reasons of refusals.

use std::sync::Arc;

use leasehold_types::share::Endpoint;
use leasehold_types::{Load, Moment, NodeName, ShareKey, StreamKey, Token};
use serde::{Deserialize, Serialize};

/// Kinds of leases besides the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseKinds {
    /// Streams.
    pub streams: bool,
    /// Shares of pipelines.
    pub bindings: bool,
}

impl LeaseKinds {
    /// No kind.
    pub const NONE: Self = Self { streams: false, bindings: false };
    /// Streams alone.
    pub const STREAMS: Self = Self { streams: true, ..Self::NONE };
    /// Bindings alone.
    pub const BINDINGS: Self = Self { bindings: true, ..Self::NONE };
    /// Every kind.
    pub const ALL: Self = Self { streams: true, bindings: true };

    /// The kinds that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (streams, bindings) = (self.streams && other.streams, self.bindings && other.bindings);
        Self { streams, bindings }
    }
}

/// Everything that a worker may do at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Grows with every change, but not with a renewal.
    pub version: u64,
    /// The pool.
    pub pool: PoolView,
    /// The streams that it owns or must release, by name.
    pub streams: Vec<StreamLease>,
    /// The shares of pipelines that it serves or must release, by name.
    pub bindings: Vec<ShareLease>,
    /// No new job starts, and all streams and bindings must be released.
    pub draining: bool,
    /// Whether the agent is connected to a leader.
    pub connected: bool,
}

impl Lease {
    /// Leaves out all other kinds of leases.
    pub fn keep(&mut self, kinds: LeaseKinds) {
        if !kinds.streams {
            self.streams.clear();
        }
        if !kinds.bindings {
            self.bindings.clear();
        }
    }
}

/// The pool lease as the worker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// How many jobs may run at once; 0 without a lease, while draining, and while the worker fails
    /// its check.
    pub size: u32,
    /// The lease's token; none without a lease.
    pub token: Option<Token>,
    /// Jobs that run.
    pub running: u32,
    /// When `size` expires to the floor unless the lease is renewed; none if it does not expire.
    pub until: Option<Moment>,
}

/// A stream lease as the worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLease {
    /// The stream.
    pub stream: StreamKey,
    /// The fencing token for every write under the lease.
    pub token: Token,
    /// When it ends unless it is renewed; none for a pinned one.
    pub until: Option<Moment>,
    /// If revoked: the deadline for the release.
    pub revoked: Option<Moment>,
}

/// The lease of a pipeline's share as the worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareLease {
    /// The share.
    pub key: ShareKey,
    /// The fencing token for every write under the lease.
    pub token: Token,
    /// When it ends unless it is renewed; none for a pinned one.
    pub until: Option<Moment>,
    /// If revoked: the deadline for the release.
    pub revoked: Option<Moment>,
    /// The worker's share of the load.
    pub load: Load,
    /// Where documents go from here.
    pub next: Vec<NextNode>,
}

/// A node that documents go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextNode {
    /// The node.
    pub node: NodeName,
    /// The workers that serve it, by name; empty if none does at present, and before a coordinator
    /// has told them.
    pub endpoints: Arc<[Endpoint]>,
}

/// What a drain waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Running jobs; none if the jobs of an earlier agent are unknown.
    pub jobs: Option<u32>,
    /// The size of the pool lease, which unknown jobs may use up; 0 without a lease.
    pub slots_max: u32,
    /// The pool size that a worker with its own count still uses, and may start jobs for.
    pub in_effect: u32,
    /// Streams that are held.
    pub streams: usize,
    /// Shares of pipelines that are held.
    pub shares: usize,
    /// Nothing is held, but no coordinator has received the report yet.
    pub goodbye: bool,
    /// Whether a drain is under way.
    pub draining: bool,
}

/// Why a worker's request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// No pool lease is in force.
    NoLease {
        /// The newest generation whose workers get slots before this one, where it might have more.
        newer: Option<u64>,
    },
    /// All slots are taken: `running` of `size`.
    NoSlot {
        /// The pool size in effect.
        size: u32,
        /// Jobs that run.
        running: u32,
        /// As in [`Self::NoLease`].
        newer: Option<u64>,
    },
    /// The worker drains.
    Draining,
    /// The worker fails its check.
    Failing,
    /// The worker does not hold this stream lease.
    NotHeld {
        /// The token that it does hold, if any.
        held: Option<Token>,
    },
    /// The worker's jobs are counted, so it asks for no single job.
    Counted {
        /// Jobs that run, as reported.
        running: u32,
        /// The pool size that the worker keeps to, as reported.
        in_effect: u32,
    },
    /// The worker asks for each job, so it reports no count.
    AsksForJobs {
        /// Jobs that run.
        running: u32,
    },
    /// A named limit is reached.
    Limit {
        /// What is limited.
        what: &'static str,
        /// The limit.
        max: u64,
    },
    /// The journal could not be written.
    Journal(String),
}
