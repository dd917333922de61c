//! What a worker sees of its leases, and why it is refused something.

use leasehold_types::share::Route;
use leasehold_types::{Load, Moment, ShareKey, StreamKey, Token};
use serde::{Deserialize, Serialize};

/// Kinds of leases beside the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    /// Streams.
    pub streams: bool,
    /// Shares of pipelines.
    pub bindings: bool,
}

impl Kinds {
    /// No kind.
    pub const NONE: Self = Self { streams: false, bindings: false };
    /// Streams alone.
    pub const STREAMS: Self = Self { streams: true, ..Self::NONE };
    /// Bindings alone.
    pub const BINDINGS: Self = Self { bindings: true, ..Self::NONE };
    /// Every kind.
    pub const ALL: Self = Self { streams: true, bindings: true };

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (streams, bindings) = (self.streams && other.streams, self.bindings && other.bindings);
        Self { streams, bindings }
    }
}

/// All that a worker may do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Grows with every change, but not with a renewal.
    pub version: u64,
    /// The pool.
    pub pool: PoolView,
    /// The streams that it owns or is asked to release, by name.
    pub streams: Vec<StreamLease>,
    /// The shares of pipelines that it serves or is asked to release, by name.
    pub bindings: Vec<BindingLease>,
    /// No new job starts, and every stream and binding is to be released.
    pub draining: bool,
    /// Whether the agent is connected to a leader.
    pub connected: bool,
}

/// The pool lease as the worker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// How many jobs may run at once now; 0 without a lease or while draining.
    pub size: u32,
    /// The lease's token; none without a lease.
    pub token: Option<Token>,
    /// Jobs that run.
    pub running: u32,
    /// When `size` falls to the floor unless the lease is renewed; none where it does not.
    pub until: Option<Moment>,
}

/// A stream lease as the worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLease {
    /// The stream.
    pub stream: StreamKey,
    /// The fencing token that goes with everything written for it.
    pub token: Token,
    /// When it ends unless it is renewed; none for a pinned one.
    pub until: Option<Moment>,
    /// Revoked: the worker should have let go by then.
    pub revoked: Option<Moment>,
}

/// The lease of a pipeline's share as the worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingLease {
    /// The share.
    pub key: ShareKey,
    /// The fencing token that goes with everything written for it.
    pub token: Token,
    /// When it ends unless it is renewed; none for a pinned one.
    pub until: Option<Moment>,
    /// Revoked: the worker should have let go by then.
    pub revoked: Option<Moment>,
    /// The load that is the worker's.
    pub load: Load,
    /// Where documents go from here, by node.
    pub next: Vec<Route>,
}

/// What keeps a worker from being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Jobs that run; none where it is unknown what an earlier agent left.
    pub jobs: Option<u32>,
    /// The size of the pool lease: as many slots as unknown jobs may take, where
    /// the lease is known.
    pub slots_max: u32,
    /// The pool size that a worker keeps to that counts for itself: this many jobs it may start.
    pub obeyed: u32,
    /// Streams and shares that are held.
    pub streams: usize,
    /// Nothing is held, and a coordinator has yet to hear so.
    pub goodbye: bool,
    /// Whether a drain is under way.
    pub draining: bool,
}

/// Why a worker's request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No pool lease is in force.
    NoLease,
    /// All slots are taken: `running` of `size`.
    NoSlot {
        /// The pool size in effect.
        size: u32,
        /// Jobs that run.
        running: u32,
    },
    /// The worker drains.
    Draining,
    /// The worker does not hold this stream lease.
    NotHeld {
        /// The token that it does hold, if any.
        held: Option<Token>,
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
