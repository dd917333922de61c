//! The statuses of classes, pipelines and bindings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, WorkerCounts, WorkloadStatus};

/// Workers that a binding's status lists.
pub const SHARES_LISTED_MAX: usize = 50;

/// The status of a `WorkerClass`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerClassStatus {
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
    /// Pods that have not ended; autoscalers read this field.
    pub replicas: u32,
    /// The label selector of its pods, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The workload that it makes or has adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadStatus>,
    /// Numbers of workers.
    pub workers: WorkerCounts,
    /// Its load.
    pub load: ClassLoad,
    /// Pipelines that wait for its workers.
    pub pipelines_waiting: u32,
}

/// The load of a class, in documents per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassLoad {
    /// The load that its workers must process, including that of Pending pipelines.
    pub request: String,
    /// The part of the request that has workers.
    pub placed: String,
    /// The request, in percent of what its workers can take together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<u32>,
}

/// The status of a `Pipeline`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PipelineStatus {
    /// The generation of the newest spec that the coordinator has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The generation of the spec in force: an earlier one while the newest is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force_generation: Option<i64>,
    /// Pending, Plotted, Ready or Broken.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The conditions: Ready, Progressing, Degraded.
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
    /// Bindings that are served by all their workers.
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

/// The status of a `PipelineBinding`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PipelineBindingStatus {
    /// The generation of the spec that the rest of the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pending, Ready, DeadEnd or Unset.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The conditions: Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Workers that serve it or are chosen to.
    pub workers: u32,
    /// The workers, at most 50 of them, by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = SHARES_LISTED_MAX))]
    pub worker_list: Vec<ShareStatus>,
}

/// The share of one worker in a binding's load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ShareStatus {
    /// The pod's name.
    pub name: String,
    /// Its share of the load, in documents per second.
    pub documents_per_second: String,
    /// Pending, Ready or Draining.
    pub phase: String,
}
