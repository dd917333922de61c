//! What the platform wants: clusters and stream sets, each valid by construction. A platform
//! replaces the whole of it at once, so a half-read folder can never be half in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::{ClusterName, SetName, StreamName};

/// All the clusters and stream sets of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The clusters, by name.
    pub clusters: BTreeMap<ClusterName, Arc<Cluster>>,
    /// The stream sets, by name. The cluster that one names exists in `clusters`.
    pub sets: BTreeMap<SetName, Arc<StreamSet>>,
    /// Sets that exist, and of which nobody can tell at present what they list. Whoever has one of
    /// their streams keeps it, and nobody is granted another.
    pub unread: BTreeSet<SetName>,
}

/// A `WorkerCluster`: workers that share one budget of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The budget: the most jobs that may run at once over all its workers (`maxJobs`).
    pub jobs_max: u32,
    /// The most that one worker takes (`maxJobsPerWorker`), at least 1.
    pub jobs_per_worker_max: u32,
    /// How long a worker's drain may take.
    pub drain_deadline: Duration,
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
    /// The pool size that a worker keeps when its lease has ended; at most
    /// `jobs_per_worker_max`.
    pub floor: u32,
}

/// A `StreamSet`: streams that are each owned by at most one worker of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSet {
    /// The cluster that it runs on.
    pub cluster: ClusterName,
    /// Its streams, in the order of the manifest, each name once.
    pub streams: Vec<Stream>,
    /// How streams are laid over workers.
    pub policy: Policy,
    /// What the end of a lease's time means.
    pub mode: Mode,
    /// How long a worker may take to let a stream go.
    pub handover_deadline: Duration,
    /// How moves between living workers are limited.
    pub moves: Moves,
}

/// One stream of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name, unique within the set.
    pub name: StreamName,
    /// Its share of a worker's load, at least 1.
    pub weight: u32,
    /// It gets a worker of its own.
    pub dedicated: bool,
}

/// How streams are laid over workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Balanced, and the fewest streams move.
    #[default]
    Sticky,
    /// Slices of the list in the order of the workers' names, as k8s-swarm cut them.
    Contiguous,
}

/// What the end of a stream lease's time means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// A silent worker's stream goes to another when its lease is surely over.
    #[default]
    Expiring,
    /// A stream stays with its worker until that gives it back or is gone.
    Pinned,
}

/// How moves between living workers are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The most streams of the set that move at the same time.
    pub per_round_max: usize,
    /// How long a stream that was moved for balance stays where it is.
    pub cooldown: Duration,
    /// How long to gather joins and drains before they are planned together.
    pub settle: Duration,
}
