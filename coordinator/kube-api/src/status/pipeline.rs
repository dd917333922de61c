//! What the coordinator says of classes, pipelines and bindings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, WorkerCounts, WorkloadStatus};

/// Workers that a binding's status lists.
pub const SHARES_LISTED_MAX: usize = 50;

/// What is, of a `WorkerClass`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerClassStatus {
    /// The generation of the spec that the rest of the status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How it stands: Ready, Progressing, Degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Pods that are not over; what autoscalers read.
    pub replicas: u32,
    /// The label selector of its pods, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The workload that it makes or has adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadStatus>,
    /// How many workers there are, and how they stand.
    pub workers: WorkerCounts,
    /// Its load.
    pub load: ClassLoad,
    /// Pipelines that wait for workers of it.
    pub pipelines_waiting: u32,
}

/// The load of a class, in documents per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassLoad {
    /// What it must process, that of Pending pipelines included.
    pub request: String,
    /// Of this, what workers are chosen for.
    pub placed: String,
    /// The request, in percent of what its workers can take together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<u32>,
}

/// What is, of a `Pipeline`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PipelineStatus {
    /// The generation of the spec that the rest of the status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pending, Plotted, Ready or Broken.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// How it stands: Ready, Progressing, Degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// How many bindings there are, and how many are Ready.
    pub bindings: BindingCounts,
    /// The classes that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["class"]))]
    pub waits_for: Vec<WaitsFor>,
}

/// How many bindings there are, and how many are Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingCounts {
    /// One for each node.
    pub total: u32,
    /// Those that all their workers serve.
    pub ready: u32,
}

/// A class that a pipeline waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitsFor {
    /// The class.
    pub class: String,
    /// How many more workers of the class it needs at least; 0 if the class does not exist.
    #[serde(default)]
    pub workers: u32,
}

/// What is, of a `PipelineBinding`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PipelineBindingStatus {
    /// The generation of the spec that the rest of the status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pending, Ready, DeadEnd or Unset.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// How it stands: Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// How many workers serve it, or are to.
    pub workers: u32,
    /// The workers, at most 50 of them, by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = SHARES_LISTED_MAX))]
    pub worker_list: Vec<ShareStatus>,
}

/// What one worker takes of a binding's load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ShareStatus {
    /// The pod's name.
    pub name: String,
    /// Its part of the load, in documents per second.
    pub documents_per_second: String,
    /// Pending, Ready or Draining.
    pub phase: String,
}
