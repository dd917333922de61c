//! What became of a load: the figures and the course of each cluster, on each side.

use std::fmt;
use std::time::Duration;

use leasehold_types::duration;
use serde::Serialize;

use crate::class_record::ClassFigures;
use crate::phases::PhaseFigures;
use crate::record::{Course, JobFigures, StreamFigures};
use crate::served_shares::PipelineFigures;

/// What gives a fleet its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Side {
    /// Leases of the real cores.
    Leasehold,
    /// A plain Deployment, each of whose pods has a pool of a fixed size.
    Deployment,
    /// The same with a HorizontalPodAutoscaler.
    Autoscaler,
}

/// What became of a load. The same load and seed have the same outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// How long was simulated, in seconds.
    pub simulated_seconds: f64,
    /// The clusters and classes, in the order of the load.
    pub clusters: Vec<ClusterOutcome>,
    /// The pipelines of these classes, by name, with Leasehold.
    pub pipelines: Vec<PipelineFigures>,
}

/// What became of the load of one cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterOutcome {
    /// Its name.
    pub cluster: String,
    /// Leasehold comes first; the others are left out where no job runs.
    pub sides: Vec<SideOutcome>,
}

/// What one side made of the load of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SideOutcome {
    /// The side.
    pub side: Side,
    /// What became of the jobs.
    pub jobs: JobFigures,
    /// What became of the streams; none where the cluster has no stream set, or the side knows
    /// none.
    pub streams: Option<StreamFigures>,
    /// What became of the shares; none where this is no class.
    pub class: Option<ClassFigures>,
    /// The course.
    pub course: Course,
    /// From the start to the first event, and from each event to the next, of any cluster.
    pub phases: Vec<PhaseFigures>,
}

/// The figures of a pipeline that people compare: for each a title, and what it counts. The texts
/// of [`PipelineFigures::figures`] are in this order.
pub const PIPELINE_FIGURES: [(&str, &str); 5] = [
    ("DOCUMENTS", "documents that came"),
    ("BEYOND", "of these, those beyond what the workers of some node had shares for"),
    ("UNSERVED", "the time in which some node had no worker"),
    ("LONGEST", "the longest such time without a break"),
    ("MOVES", "how often a share went from one worker to another"),
];

/// The figures of a side that people compare: for each a title, and what it counts. The texts of
/// [`SideOutcome::figures`] are in this order.
pub const FIGURES: [(&str, &str); 12] = [
    ("ENDED", "jobs that ran to their end"),
    ("P50", "half of the jobs that began had waited no longer than this"),
    ("P99", "99 of 100 jobs that began had waited no longer than this"),
    ("LONGEST", "no job that began waited longer"),
    ("QUEUE", "the most jobs that waited at once"),
    ("PEAK", "the most jobs that ran at once"),
    ("ABOVE", "the most of them above the budget"),
    ("KILLED", "jobs that were killed, and began again"),
    ("USED", "the part of the budget in which jobs ran, killed ones too, over the whole time"),
    ("WASTED", "hours of slots of the budget in which no job ran although one waited"),
    ("WORKERS", "the most workers at once, those that end included"),
    ("MOVES", "how often a stream went from one worker to another"),
];

impl SideOutcome {
    /// The figures that people compare, as text, in the order of [`FIGURES`].
    #[must_use]
    pub fn figures(&self) -> [String; FIGURES.len()] {
        let JobFigures { ended, queue_max, running_max, above_budget_max, killed, .. } = &self.jobs;
        let time = |seconds: f64| duration::format_short(Duration::from_secs(seconds as u64));
        let streams = self.streams.as_ref();
        [
            ended.to_string(),
            time(self.jobs.wait_p50_seconds),
            time(self.jobs.wait_p99_seconds),
            time(self.jobs.wait_max_seconds),
            queue_max.to_string(),
            running_max.to_string(),
            above_budget_max.to_string(),
            killed.to_string(),
            format!("{:.1}%", self.jobs.utilization * 100.0),
            format!("{:.1}", self.jobs.wasted_slot_seconds / 3600.0),
            self.jobs.workers_max.to_string(),
            streams.map_or_else(|| "-".to_owned(), |streams| streams.moves.to_string()),
        ]
    }
}

impl ClusterOutcome {
    /// The figures of the class; none for a cluster with a budget.
    #[must_use]
    pub fn class(&self) -> Option<&ClassFigures> {
        self.sides.iter().find_map(|side| side.class.as_ref())
    }
}

impl PipelineFigures {
    /// The figures that people compare, as text, in the order of [`PIPELINE_FIGURES`].
    #[must_use]
    pub fn figures(&self) -> [String; PIPELINE_FIGURES.len()] {
        let time = |seconds: f64| format!("{seconds:.1}s");
        [
            self.documents.to_string(),
            self.documents_beyond_shares.to_string(),
            time(self.unserved_seconds),
            time(self.unserved_max_seconds),
            self.moves.to_string(),
        ]
    }
}

impl Side {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Leasehold, Self::Deployment, Self::Autoscaler];
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leasehold => "Leasehold",
            Self::Deployment => "Deployment",
            Self::Autoscaler => "Autoscaler",
        })
    }
}
