//! The manifests as people write them, the same on Kubernetes: plain types whose documentation is
//! what `kubectl explain` shows. What a field means is checked in [`super::check`], not here.

mod agent;
mod pipeline;

use std::collections::BTreeMap;

use leasehold_types::limits;
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

pub use self::agent::{AgentAmounts, AgentResources, AgentSpec, IMAGE_BYTES_MAX};
pub use self::pipeline::{
    NodeSpec, PipelineBindingSpec, PipelineSpec, RebalanceSpec, ScalingSpec, ShareLeaseSpec,
    SpreadSpec, WorkerClassSpec,
};
use super::values::{CountOrPercent, ManifestDuration};

/// The version that every manifest names.
pub const API_VERSION: &str = "leasehold.dev/v1alpha1";
/// Label of a ConfigMap with lists of streams, `true`: others are not read. A released name never
/// changes.
pub const STREAM_LIST_LABEL: &str = "leasehold.dev/stream-list";

/// One document of a manifest file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Manifest<S> {
    /// Always `leasehold.dev/v1alpha1`.
    pub api_version: String,
    /// `WorkerCluster`, `StreamSet`, `WorkerClass` or `Pipeline`.
    pub kind: String,
    /// The object's name.
    pub metadata: Metadata,
    /// The desired state.
    pub spec: S,
    /// The observed state; ignored in files.
    #[serde(default)]
    pub status: Option<IgnoredAny>,
}

/// An object's name, and what only Kubernetes uses.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The name, unique among objects of its kind.
    pub name: String,
    /// Ignored in files.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Ignored in files.
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
    /// Ignored in files.
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Workers that share one budget of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkerClusterSpec {
    /// The budget: the most jobs that run at once over all workers; draining, surging and silent
    /// ones count too. Lowering it ends no job. `kubectl scale` and autoscalers change this field:
    /// leave it out of what is applied where they do. 0 unless given: no job runs then, as where
    /// workers only own streams.
    // The default is the schema's: the scale subresource fails where the field is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = limits::JOBS_MAX), extend("default" = 0))]
    pub max_jobs: Option<u32>,
    /// The most jobs that one worker takes. A workload that is made gets maxJobs /
    /// maxJobsPerWorker replicas, rounded up. Given where maxJobs is above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = limits::JOBS_PER_WORKER_MAX))]
    pub max_jobs_per_worker: Option<u32>,
    /// The pods of the workload to make. The label leasehold.dev/cluster is added, and
    /// terminationGracePeriodSeconds is drain.deadline and 30 seconds unless given. Without
    /// template and workloadRef, workers are whatever pods carry that label. Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
    /// What kind of workload is made from the template; a Deployment unless given. Kubernetes
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSpec>,
    /// A workload that exists already, instead of a template. Its pods must carry the label
    /// leasehold.dev/cluster with this object's name, or only opt in to injection, by the label
    /// leasehold.dev/inject, where it is the only WorkerCluster here. Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,
    /// The agent that pods with the label leasehold.dev/inject: "true" get as a native sidecar. An
    /// annotation config.leasehold.dev/SETTING of a pod takes precedence. Running pods keep their
    /// agent. Kubernetes only.
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
    /// How leases last.
    #[serde(default)]
    pub lease: LeaseSpec,
    /// When a lost worker counts as gone.
    #[serde(default, skip_serializing_if = "LostSpec::is_empty")]
    pub lost: LostSpec,
    /// What generations of workers do to pools.
    #[serde(default, skip_serializing_if = "RolloutSpec::is_empty")]
    pub rollout: RolloutSpec,
}

impl WorkerClusterSpec {
    /// The budget and the most jobs of one worker. A cluster whose workers only own streams runs
    /// no job.
    pub fn jobs(&self) -> (u32, u32) {
        (self.max_jobs.unwrap_or(0), self.max_jobs_per_worker.unwrap_or(1))
    }
}

/// What generations of workers do to pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct RolloutSpec {
    /// Which workers get slots first; Newest unless given.
    // No default in the schema: coordinators of earlier versions refuse an unknown field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<RolloutOrderSpec>,
}

impl RolloutSpec {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which workers get slots first, where their generations differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutOrderSpec {
    /// Those of the highest generation; the others get what these leave.
    #[default]
    Newest,
    /// All alike.
    Fair,
}

/// A PodTemplateSpec: metadata (labels, annotations) and spec, as in a Deployment. It is checked
/// where it is used, by the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PodTemplate(
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub  serde_json::Map<String, serde_json::Value>,
);

/// A workload to make. It has the name of its WorkerCluster or WorkerClass, is owned by it, and
/// goes with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    /// Deployment, or StatefulSet for workers with names that stay. It cannot be changed.
    pub kind: WorkloadKind,
    /// How many pods a rollout may have beyond the replicas: a number, or a percentage of them;
    /// 25% unless given. A Deployment's only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<CountOrPercent>,
    /// How many pods may be missing during a rollout: a number, or a percentage of the replicas;
    /// 25% unless given. A Deployment's only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<CountOrPercent>,
    /// The headless Service that names the pods of a StatefulSet. It cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub service_name: Option<String>,
    /// Whether a StatefulSet's pods start one after the other (OrderedReady) or all at once
    /// (Parallel); Parallel unless given. It cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_management_policy: Option<PodManagementSpec>,
}

/// A kind of workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadKind {
    /// Workers that replace each other.
    #[default]
    Deployment,
    /// Workers with names that stay.
    StatefulSet,
}

/// How a StatefulSet starts its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodManagementSpec {
    /// One after the other.
    OrderedReady,
    /// All at once.
    #[default]
    Parallel,
}

/// A workload that exists already, in the namespace of the WorkerCluster or WorkerClass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkloadRef {
    /// Deployment or StatefulSet, of apps/v1.
    pub kind: WorkloadKind,
    /// Its name.
    #[schemars(length(min = 1, max = limits::NAME_BYTES_MAX))]
    pub name: String,
    /// Whether its replicas follow maxJobs and maxJobsPerWorker, or what a class needs. Its pods
    /// are left as they are either way.
    #[serde(default)]
    pub scale: bool,
}

/// How workers leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct DrainSpec {
    /// How long a worker may take to end its jobs, as in 90s or 1h30m; above 0.
    pub deadline: ManifestDuration,
    /// What happens to the pod of a worker that still runs jobs after the deadline. On Kubernetes
    /// only. Wait unless given.
    // No default in the schema: coordinators of earlier versions refuse an unknown field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_deadline: Option<AfterDeadline>,
}

impl Default for DrainSpec {
    fn default() -> Self {
        let deadline = ManifestDuration(std::time::Duration::from_secs(2 * 3600));
        Self { deadline, after_deadline: None }
    }
}

/// What a cordoned node means for the workers on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnCordon {
    /// They get nothing new while others have room, and keep what they have.
    #[default]
    Prefer,
    /// They are drained, a few at a time, and their pods replaced.
    Drain,
    /// Nothing.
    Ignore,
}

/// What happens to a pod whose drain has passed its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AfterDeadline {
    /// It stays until its jobs have ended, however long that takes.
    #[default]
    Wait,
    /// It may be evicted, and the coordinator ends it, although its jobs still run. Their slots
    /// stay used until the pod is gone.
    Release,
}

/// How leases last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// How long a lease lasts without renewal, 200ms to 10m. A longer one outlasts longer outages
    /// of the coordinators, a shorter one hands a silent worker's streams on sooner.
    pub ttl: ManifestDuration,
    /// The pool size that a worker keeps when its lease has ended, at most maxJobsPerWorker; the
    /// budget reserves it.
    #[schemars(range(max = limits::JOBS_PER_WORKER_MAX))]
    pub floor: u32,
}

impl Default for LeaseSpec {
    fn default() -> Self {
        Self { ttl: ManifestDuration(std::time::Duration::from_secs(10)), floor: 0 }
    }
}

/// When a lost worker counts as gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct LostSpec {
    /// How long after the end of its leases a lost worker counts as gone:
    /// its slots, its pinned streams and its shares are then given to others, though its jobs may
    /// still run. Give more than the longest time for which a worker may run without its
    /// coordinator. Without it only a person, the platform or the worker's own agent ends that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<ManifestDuration>,
}

impl LostSpec {
    /// Whether no field is set; an empty one is not written.
    pub fn is_empty(&self) -> bool {
        self.after.is_none()
    }
}

/// Streams that are each owned by at most one worker of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StreamSetSpec {
    /// The WorkerCluster whose workers own the streams; on Kubernetes in the same namespace.
    #[schemars(length(min = 1, max = limits::NAME_BYTES_MAX))]
    pub cluster: String,
    /// The streams, in the order of assignment. Streams or streamsFrom must name one at least.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamEntry>,
    /// Long lists of streams, appended in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams_from: Vec<StreamsSource>,
    /// How streams are laid over workers. Sticky: balanced, and the fewest streams move.
    /// Contiguous: slices of the list, in the order of the workers' names.
    #[serde(default)]
    pub policy: PolicySpec,
    /// What the end of a lease's time means. Expiring: a silent worker's stream goes to another
    /// when its lease is surely over. Pinned: a stream stays with its worker until that gives it
    /// back or is gone.
    #[serde(default)]
    pub mode: ModeSpec,
    /// How a stream changes its worker.
    #[serde(default)]
    pub handover: HandoverSpec,
    /// How moves between living workers are limited.
    #[serde(default)]
    pub moves: MovesSpec,
    /// What is done for workers that cannot reload. None: nothing. Restart: pods whose streams
    /// changed are restarted, one at a time, after they have released them. Kubernetes only.
    #[serde(default)]
    pub refresh: RefreshSpec,
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StreamEntry {
    /// Its name, unique within the set: printable text without white space at its ends.
    #[schemars(length(min = 1, max = limits::STREAM_NAME_BYTES_MAX))]
    #[schemars(regex(pattern = STREAM_NAME_PATTERN))]
    #[schemars(extend("x-wanted" = "printable text without white space at its ends"))]
    pub name: String,
    /// Its share of a worker's load.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = limits::WEIGHT_MAX))]
    pub weight: u32,
    /// Whether it gets a worker of its own.
    #[serde(default)]
    pub dedicated: bool,
}

/// What [`leasehold_types::StreamName`] takes, but for its bytes: no control character, and no
/// white space at the ends. `Z` and the control characters are all the white space there is.
const STREAM_NAME_PATTERN: &str = r"^[^\p{Cc}\p{Z}]([^\p{Cc}]*[^\p{Cc}\p{Z}])?$";

fn one() -> u32 {
    1
}

/// Where a long list of streams is; exactly one of its fields is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StreamsSource {
    /// A file, named from the folder of the manifest: YAML (a list, or `jobs:` with a list) if
    /// its name ends in .yaml or .yml, else text with one stream a line and # comments.
    /// Standalone only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = FILE_BYTES_MAX))]
    pub file: Option<String>,
    /// A key of a ConfigMap, in the form of a file: YAML (a list, or `jobs:` with a list) if the
    /// key ends in .yaml or .yml, else text with one stream a line and # comments. The ConfigMap
    /// must have the label leasehold.dev/stream-list: "true". Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKeyRef>,
}

/// Bytes of a path.
const FILE_BYTES_MAX: usize = 4096;

/// A key of a ConfigMap in the namespace of the set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// The ConfigMap's name.
    #[schemars(length(min = 1, max = limits::NAME_BYTES_MAX))]
    pub name: String,
    /// The key.
    #[schemars(length(min = 1, max = limits::NAME_BYTES_MAX))]
    pub key: String,
}

/// How streams are laid over workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicySpec {
    /// Balanced, and the fewest streams move.
    #[default]
    Sticky,
    /// Slices of the list in the order of the workers' names.
    Contiguous,
}

/// What the end of a lease's time means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModeSpec {
    /// A silent worker's stream goes to another when its lease is surely over.
    #[default]
    Expiring,
    /// A stream stays with its worker until that gives it back or is gone.
    Pinned,
}

/// What is done for workers that cannot reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RefreshSpec {
    /// Nothing.
    #[default]
    None,
    /// Workers whose streams changed are restarted, one at a time.
    Restart,
}

/// How a stream changes its worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct HandoverSpec {
    /// How long a worker may take to let a stream go, as in 500ms or 1m.
    pub deadline: ManifestDuration,
}

impl Default for HandoverSpec {
    fn default() -> Self {
        Self { deadline: ManifestDuration(std::time::Duration::from_secs(30)) }
    }
}

/// How moves between living workers are limited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct MovesSpec {
    /// The most streams of the set that move at the same time; no limit unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = limits::STREAMS_MAX))]
    pub per_round: Option<u32>,
    /// How long a stream that was moved for balance stays where it is.
    pub cooldown: ManifestDuration,
    /// How long joins and drains are gathered and then planned together.
    pub settle: ManifestDuration,
}

impl Default for MovesSpec {
    fn default() -> Self {
        Self {
            per_round: None,
            cooldown: ManifestDuration(std::time::Duration::from_secs(30)),
            settle: ManifestDuration(std::time::Duration::from_millis(200)),
        }
    }
}
