//! The shapes of fleets, and what is desired of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, Stream, StreamSet,
};
use leasehold_types::limits::JOBS_PER_WORKER_MAX;
use leasehold_types::{ClusterName, SetName, StreamName, WorkerName};

/// How many there are of what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) clusters: usize,
    pub(crate) workers: usize,
    pub(crate) sets: usize,
    pub(crate) streams: usize,
    /// The pool of each worker, if all have the same.
    pub(crate) jobs_per_worker: u32,
    /// No worker holds anything before.
    pub(crate) fresh: bool,
}

impl Shape {
    /// Workers that only run jobs.
    const JOBS: Self = Self {
        clusters: 1,
        workers: 20_000,
        sets: 0,
        streams: 0,
        jobs_per_worker: 10,
        fresh: false,
    };
    /// Workers that own all the streams there may be.
    const STREAMS: Self = Self { workers: 1_000, sets: 1, streams: 1_000_000, ..Self::JOBS };

    pub(crate) const ALL: [(&'static str, Self); 6] = [
        ("jobs", Self::JOBS),
        // The largest pools, and the largest budget.
        ("slots", Self { workers: 1_000, jobs_per_worker: JOBS_PER_WORKER_MAX, ..Self::JOBS }),
        ("thousand", Self::STREAMS),
        ("fifty", Self { workers: 50, ..Self::STREAMS }),
        ("clusters", Self { clusters: 1_000, workers: 20_000, sets: 10_000, ..Self::STREAMS }),
        ("fresh", Self { fresh: true, ..Self::STREAMS }),
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape)
    }

    pub(crate) fn tenth(self) -> Self {
        let tenth = |count: usize| count.div_ceil(10);
        Self {
            clusters: tenth(self.clusters),
            workers: tenth(self.workers),
            sets: tenth(self.sets),
            streams: tenth(self.streams),
            ..self
        }
    }

    /// The cluster of a worker or set, by its index.
    pub(crate) fn cluster_of(&self, at: usize) -> ClusterName {
        name(ClusterName::new, &format!("cluster-{}", at % self.clusters))
    }

    pub(crate) fn worker(at: usize) -> WorkerName {
        name(WorkerName::new, &format!("worker-{at}"))
    }

    pub(crate) fn set(at: usize) -> SetName {
        name(SetName::new, &format!("set-{at}"))
    }

    /// The most jobs of one worker.
    pub(crate) fn jobs_per_worker_max(&self) -> u32 {
        (10 * self.jobs_per_worker).min(JOBS_PER_WORKER_MAX)
    }

    /// All that is desired.
    pub(crate) fn desired(&self) -> Desired {
        let workers = u32::try_from(self.workers / self.clusters).expect("a number of workers");
        let cluster = Cluster {
            jobs_max: workers * self.jobs_per_worker,
            jobs_per_worker_max: self.jobs_per_worker_max(),
            drain_deadline: Duration::from_secs(60),
            ttl: Duration::from_secs(30),
            ..Cluster::example()
        };
        let clusters: BTreeMap<_, _> =
            (0..self.clusters).map(|at| (self.cluster_of(at), Arc::new(cluster.clone()))).collect();
        let sets = (0..self.sets).map(|at| (Self::set(at), Arc::new(self.stream_set(at))));
        Desired { clusters, sets: sets.collect(), ..Desired::default() }
    }

    fn stream_set(&self, at: usize) -> StreamSet {
        let streams = (0..self.streams / self.sets).map(|stream| Stream {
            name: name(StreamName::new, &format!("stream-{at}-{stream}")),
            weight: 1,
            dedicated: false,
        });
        StreamSet {
            cluster: self.cluster_of(at),
            streams: Arc::new(streams.collect()),
            policy: Policy::Sticky,
            mode: Mode::Expiring,
            handover_deadline: Duration::from_secs(5),
            moves: Moves {
                per_round_max: usize::MAX,
                cooldown: Duration::from_secs(60),
                settle: Duration::from_millis(100),
            },
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} clusters, {} workers, {} sets, {} streams, pools of {}",
            self.clusters, self.workers, self.sets, self.streams, self.jobs_per_worker
        )
    }
}

fn name<T, E: fmt::Debug>(parse: impl Fn(&str) -> Result<T, E>, text: &str) -> T {
    parse(text).expect("a name")
}
