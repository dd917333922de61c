//! The statuses that the coordinator writes. Their size is bounded, however large the cluster is;
//! the admin API has every worker and stream.

mod pipeline;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::pipeline::{
    BindingCounts, ClassLoad, PipelineBindingStatus, PipelineStatus, SHARES_LISTED_MAX,
    ShareStatus, WaitsFor, WorkerClassStatus,
};

/// Workers that a status lists.
pub const WORKERS_LISTED_MAX: usize = 50;
/// Characters of a condition's message.
pub const MESSAGE_CHARS_MAX: usize = 1_024;

/// The status of a `WorkerCluster`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerClusterStatus {
    /// The generation of the newest spec that the coordinator has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The generation of the spec in force: an earlier one while the newest is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force_generation: Option<i64>,
    /// The conditions: Ready, Progressing, Degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The budget in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u32>,
    /// The label selector of its pods, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The workload that it makes or has adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadStatus>,
    /// Numbers of workers.
    pub workers: WorkerCounts,
    /// Numbers of jobs.
    pub jobs: JobCounts,
    /// The agents of the pods that requested one.
    pub agents: AgentCounts,
    /// The workers, at most 50 of them: those that drain or are lost first, then by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = WORKERS_LISTED_MAX))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub worker_list: Vec<WorkerStatus>,
    /// How many workers are not listed; the admin API's ListWorkers has them all.
    pub workers_omitted: u32,
}

/// A workload, by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatus {
    /// Deployment or StatefulSet.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Numbers of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerCounts {
    /// Workers wanted: maxJobs divided by maxJobsPerWorker, rounded up.
    pub desired: u32,
    /// Pods with the cluster's label that have not ended.
    pub total: u32,
    /// Workers whose agent is connected and has reported.
    pub connected: u32,
    /// Connected workers that do not drain.
    pub ready: u32,
    /// Workers that finish their jobs and take no new ones.
    pub draining: u32,
    /// Workers that have lost their connection; they keep their slots and pinned streams.
    pub lost: u32,
    /// Workers that may hold something and have not reported to the present leader.
    pub unreported: u32,
}

/// Numbers of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobCounts {
    /// Jobs that run, as reported.
    pub running: u64,
    /// The sum of all pool sizes that were granted.
    pub granted: u64,
    /// Upper bound of the jobs that are running; never above the budget.
    pub committed: u64,
    /// The jobs that the connected workers could run: at most maxJobs.
    pub capacity: u64,
}

/// The agents of the pods that requested one by the label leasehold.dev/inject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentCounts {
    /// Pods with an agent.
    pub injected: u32,
    /// Pods without an agent: their workers get no leases.
    pub missing: u32,
    /// Pods whose agent differs from what they would get now; a new pod gets the new agent.
    pub outdated: u32,
}

/// One worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// The pod's name.
    pub name: String,
    /// Pending (no agent has connected yet), Running, Draining, Lost or Unreported.
    #[schemars(with = "String")]
    pub phase: WorkerPhase,
    /// The pool size in effect, as reported.
    #[serde(default)]
    pub current: u32,
    /// The pool size that was granted last.
    #[serde(default)]
    pub granted: u32,
    /// Jobs that it runs.
    #[serde(default)]
    pub running: u32,
    /// Streams that it owns.
    #[serde(default)]
    pub streams: u32,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkerPhase {
    /// It finishes its jobs and takes no new ones.
    Draining,
    /// It has lost its connection.
    Lost,
    /// It fails the check that its agent makes: it gets no jobs, and its streams go to others.
    Failing,
    /// It may hold something and has not reported to the present leader.
    Unreported,
    /// Its pod exists, and its agent has not connected yet.
    #[default]
    Pending,
    /// It is connected and takes jobs and streams.
    Running,
}

/// The status of a `StreamSet`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamSetStatus {
    /// The generation of the newest spec that the coordinator has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The generation of the spec in force: an earlier one while the newest is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force_generation: Option<i64>,
    /// The conditions: Ready, Converged, Progressing, Degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Which assignment is the newest; grows with each, within and over terms of leadership.
    pub plan_version: u64,
    /// Digest of the assignment; each new one raises planVersion.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub plan_digest: String,
    /// Numbers of streams.
    pub streams: StreamCounts,
    /// How many workers run the newest assignment.
    pub workers: AssignedWorkers,
}

/// Numbers of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamCounts {
    /// Streams of the set.
    pub total: u64,
    /// Streams that a worker has confirmed as its own.
    pub owned: u64,
    /// Streams on their way from one worker to another.
    pub moving: u64,
    /// Streams without a worker.
    pub unplaced: u64,
}

/// How many workers run the newest assignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AssignedWorkers {
    /// Workers that take part in the set.
    pub total: u32,
    /// Workers that have acknowledged the newest assignment.
    pub current: u32,
}

/// One condition of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The name of the condition, as in Ready.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// The reason, as one word.
    pub reason: String,
    /// The reason, for people.
    #[schemars(length(max = MESSAGE_CHARS_MAX))]
    pub message: String,
    /// When the status last changed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Time,
    /// The generation of the spec that the condition describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
