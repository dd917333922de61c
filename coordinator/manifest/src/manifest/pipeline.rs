//! Worker classes, pipelines, and the bindings that the coordinator makes of them.

use std::collections::BTreeMap;

use leasehold_types::limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::values::{ManifestDuration, Rate};
use super::{
    AgentSpec, DrainSpec, HandoverSpec, LostSpec, OnCordon, PodTemplate, WorkloadRef, WorkloadSpec,
};

/// Workers of one kind and capacity, which run the nodes of pipelines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkerClassSpec {
    /// The documents per second that one worker can process; above 0. No worker is ever given
    /// more.
    pub capacity: Rate,
    /// The number of workers, if an autoscaler or `kubectl scale` decides it. Without it the
    /// coordinator decides, by the load. Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = limits::REPLICAS_MAX))]
    pub replicas: Option<u32>,
    /// The fewest workers that it is scaled to.
    #[serde(default = "one")]
    #[schemars(range(max = limits::REPLICAS_MAX))]
    pub min_replicas: u32,
    /// The most workers that it is scaled to. A pipeline that needs more by itself is
    /// refused.
    #[schemars(range(min = 1, max = limits::REPLICAS_MAX))]
    pub max_replicas: u32,
    /// How the coordinator scales it.
    #[serde(default)]
    pub scaling: ScalingSpec,
    /// The port on which workers take documents: each binding gets a Service with this port, and
    /// its address goes to the workers before it in the pipeline. Without it the Service is
    /// headless and without ports. Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<u16>,
    /// How a load above one worker's capacity is laid over several. Fewest: over the fewest that
    /// can take it. Even: over all that have room, in equal parts as far as their room goes.
    #[serde(default)]
    pub spread: SpreadSpec,
    /// Whether pipelines that run may be moved to make room for one that would have to wait.
    #[serde(default)]
    pub rebalance: RebalanceSpec,
    /// The pods of the workload to make. The label leasehold.dev/cluster is added. Without
    /// template and workloadRef, workers are whatever pods carry that label with this object's
    /// name. Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
    /// What kind of workload is made from the template; a Deployment unless given. Kubernetes
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSpec>,
    /// A workload that exists already, instead of a template. Its pods must carry the label
    /// leasehold.dev/cluster with this object's name. Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,
    /// The agent that pods with the label leasehold.dev/inject: "true" get as a native sidecar.
    /// Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentSpec>,
    /// How workers leave.
    #[serde(default)]
    pub drain: DrainSpec,
    /// What a cordoned node means for the workers on it: they get nothing new while others have
    /// room (Prefer), they are drained (Drain), or nothing (Ignore). On Kubernetes only. Prefer
    /// unless given.
    // No default in the schema: coordinators of earlier versions refuse an unknown field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_cordon: Option<OnCordon>,
    /// How a share changes its worker.
    #[serde(default)]
    pub handover: HandoverSpec,
    /// How leases last.
    #[serde(default)]
    pub lease: ShareLeaseSpec,
    /// When a lost worker counts as gone.
    #[serde(default, skip_serializing_if = "LostSpec::is_empty")]
    pub lost: LostSpec,
}

fn one() -> u32 {
    1
}

/// How the coordinator scales a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ScalingSpec {
    /// The part of the capacity that it aims at, in percent: workers are added above it.
    #[schemars(range(min = 1, max = 100))]
    pub target_utilization: u32,
    /// How long fewer workers must have been enough before one is taken away.
    pub stabilization: ManifestDuration,
}

impl Default for ScalingSpec {
    fn default() -> Self {
        Self {
            target_utilization: 70,
            stabilization: ManifestDuration(std::time::Duration::from_secs(300)),
        }
    }
}

/// How the leases of a class last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ShareLeaseSpec {
    /// How long a lease lasts without renewal, 200ms to 10m: after it a silent worker's pipelines
    /// are given to others.
    pub ttl: ManifestDuration,
}

impl Default for ShareLeaseSpec {
    fn default() -> Self {
        Self { ttl: ManifestDuration(std::time::Duration::from_secs(10)) }
    }
}

/// How a load above one worker's capacity is laid over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SpreadSpec {
    /// Over the fewest workers that can take it.
    #[default]
    Fewest,
    /// Over all workers that have room, in equal parts as far as their room goes.
    Even,
}

/// Whether pipelines that run may be moved to make another fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RebalanceSpec {
    /// Never.
    #[default]
    Never,
    /// Where one would have to wait otherwise: the fewest shares that make room for it move.
    WhenBlocked,
}

/// A directed acyclic graph of nodes, each of which processes every document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PipelineSpec {
    /// The load: documents per second that each node processes.
    pub documents_per_second: Rate,
    /// The nodes by their names: DNS labels that together with the pipeline's name and a '-' have
    /// at most 63 characters, since the binding's Service is called so.
    #[schemars(extend("minProperties" = 1, "maxProperties" = limits::NODES_MAX))]
    pub workers: BTreeMap<String, NodeSpec>,
}

/// A node of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeSpec {
    /// The WorkerClass of its workers; on Kubernetes in the same namespace.
    #[schemars(length(min = 1, max = limits::NAME_BYTES_MAX))]
    pub class: String,
    /// The nodes that its documents go to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NODES_MAX))]
    pub next: Vec<String>,
}

/// A node of a pipeline as it runs. The coordinator makes it, and its Service of the same name;
/// what others write to it is undone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PipelineBindingSpec {
    /// The pipeline.
    pub pipeline: String,
    /// The node.
    pub node: String,
    /// Its WorkerClass.
    pub class: String,
    /// The load.
    pub documents_per_second: Rate,
    /// The bindings that its documents go to, each with a Service of that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
}
