//! The desired state: clusters, stream sets and pipelines, each valid by construction. A platform
//! replaces all of it at once, so a half-read folder is never half in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::{ClusterName, Load, NodeName, PipelineName, SetName, StreamName, nearest};

/// The most clusters of a namespace whose names are compared with an unknown one: an agent of an
/// unknown cluster asks again and again.
const COMPARED_MAX: usize = 100;

/// All the clusters, stream sets and pipelines of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The clusters, by name.
    pub clusters: BTreeMap<ClusterName, Arc<Cluster>>,
    /// The stream sets, by name. The cluster that one names exists in `clusters`.
    pub sets: BTreeMap<SetName, Arc<StreamSet>>,
    /// Sets that exist, but whose lists cannot be read at present. A worker that has one of their
    /// streams keeps it, and no worker is granted another.
    pub unread: BTreeSet<SetName>,
    /// The pipelines, by name. Each graph is acyclic, and what a node's `next` names is in it; a
    /// class that a node names may be missing, and then the pipeline waits for it. If all its
    /// classes exist, it fits on their most workers if it is alone (`planner::pipelines::fits`).
    pub pipelines: BTreeMap<PipelineName, Arc<Pipeline>>,
}

impl Desired {
    /// The error for the name of a cluster that no manifest defines. It suggests a cluster of the
    /// same namespace only: names of other tenants are not for everybody.
    #[must_use]
    pub fn unknown_cluster(&self, name: &ClusterName) -> String {
        let (namespace, own) = name.parts();
        let all = self.clusters.keys().map(ClusterName::parts);
        let beside = all.filter(|(of, _)| *of == namespace).map(|(_, cluster)| cluster);
        let hint = match (nearest(own, beside.take(COMPARED_MAX)), namespace) {
            (Some(near), Some(namespace)) => format!("did you mean {namespace}/{near}?"),
            (Some(near), None) => format!("did you mean {near}?"),
            (None, _) => "`leasehold clusters` lists those that are defined".to_owned(),
        };
        format!("no manifest defines cluster {name}; {hint}")
    }
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
    /// How long after the end of its leases a silent worker counts as gone; none means never.
    pub lost_after: Option<Duration>,
    /// Which workers get slots first.
    pub rollout_order: RolloutOrder,
    /// A `WorkerClass` is a cluster without a budget, whose workers serve pipelines.
    pub class: Option<Class>,
}

impl Cluster {
    /// A cluster for tests and examples: 8 jobs, 4 a worker, and leases of 10 s.
    #[must_use]
    pub fn example() -> Self {
        Self {
            jobs_max: 8,
            jobs_per_worker_max: 4,
            drain_deadline: Duration::from_secs(600),
            ttl: Duration::from_secs(10),
            floor: 0,
            lost_after: None,
            rollout_order: RolloutOrder::Newest,
            class: None,
        }
    }
}

/// The number of workers that a budget asks for, of which each takes so many jobs at most: rounded
/// up.
#[must_use]
pub fn workers_for(jobs_max: u32, jobs_per_worker_max: u32) -> u32 {
    jobs_max.div_ceil(jobs_per_worker_max.max(1))
}

/// Which workers of a cluster get slots first, where their rollout generations differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RolloutOrder {
    /// Those of the highest generation; the others get what these leave.
    #[default]
    Newest,
    /// All alike.
    Fair,
}

/// The additional fields of a `WorkerClass`: workers of one kind that serve pipelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The load that one worker can take, above 0.
    pub capacity: Load,
    /// The least workers that it is scaled to.
    pub workers_min: u32,
    /// The most workers that it is scaled to, at least 1 and at least `workers_min`.
    pub workers_max: u32,
    /// The part of the capacity that scaling aims at, in percent, from 1 to 100.
    pub utilization: u8,
    /// How a load above one worker's capacity is spread over several.
    pub spread: Spread,
    /// Whether healthy pipelines may be moved to make another fit.
    pub rebalance: Rebalance,
    /// How long a worker may take to let a share go.
    pub handover_deadline: Duration,
}

/// How a load above one worker's capacity is spread over several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Spread {
    /// Over the fewest workers that can take it.
    #[default]
    Fewest,
    /// Over all workers that have room, in equal parts as far as their room goes.
    Even,
}

/// Whether healthy pipelines may be moved to make another fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rebalance {
    /// Never.
    #[default]
    Never,
    /// If a pipeline would have to wait otherwise: the fewest shares that make room for it.
    WhenBlocked,
}

/// A `Pipeline`: a directed acyclic graph of nodes that each process its whole load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The load of each node.
    pub load: Load,
    /// The nodes, at least one.
    pub nodes: BTreeMap<NodeName, Node>,
}

/// A node of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The class of its workers; in the pipeline's namespace.
    pub class: ClusterName,
    /// The nodes that its documents go to, by name, each once.
    pub next: BTreeSet<NodeName>,
}

/// A `StreamSet`: streams that are each owned by at most one worker of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSet {
    /// The cluster that it runs on.
    pub cluster: ClusterName,
    /// Its streams, in the order of the manifest, each name once. There may be a million, so that
    /// copies of the set share them, and so does the list that they were read from.
    pub streams: Arc<Vec<Stream>>,
    /// How streams are distributed over workers.
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

/// How streams are distributed over workers.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Arc<Cluster> {
        Arc::new(Cluster::example())
    }

    #[test]
    fn a_budget_asks_for_workers_that_have_slots_for_all_of_it() {
        for (jobs_max, jobs_per_worker_max, workers) in
            [(8, 4, 2), (9, 4, 3), (3, 4, 1), (0, 4, 0), (5, 0, 5)]
        {
            let found = workers_for(jobs_max, jobs_per_worker_max);
            assert_eq!(found, workers, "{jobs_max} / {jobs_per_worker_max}");
        }
    }

    #[test]
    fn an_unknown_cluster_is_told_from_those_of_its_namespace_only() {
        let names = ["builds", "ci/builds", "media/transcoders"];
        let named = |name: &str| ClusterName::new(name).expect(name);
        let clusters = names.map(|name| (named(name), cluster())).into_iter().collect();
        let desired = Desired { clusters, ..Desired::default() };
        let none = "`leasehold clusters` lists those that are defined";
        for (unknown, hint) in [
            ("buids", "did you mean builds?"),
            ("ci/buids", "did you mean ci/builds?"),
            ("media/buids", none),
            ("ci/transcoders", none),
            ("nothing", none),
        ] {
            let expected = format!("no manifest defines cluster {unknown}; {hint}");
            assert_eq!(desired.unknown_cluster(&named(unknown)), expected);
        }
    }
}
