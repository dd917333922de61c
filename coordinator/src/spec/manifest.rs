//! The manifests as people write them, the same on Kubernetes: plain types whose documentation is
//! what `kubectl explain` shows. What a field means is checked in [`super::check`], not here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::duration::Span;

/// The version that every manifest names.
pub const API_VERSION: &str = "leasehold.dev/v1alpha1";

/// One document of a manifest file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Manifest<S> {
    /// Always `leasehold.dev/v1alpha1`.
    pub api_version: String,
    /// `WorkerCluster` or `StreamSet`.
    pub kind: String,
    /// The object's name.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: S,
    /// What is; ignored in files.
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
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkerClusterSpec {
    /// The budget: the most jobs that may run at once over all workers, draining, surging and
    /// unreachable ones included.
    pub max_jobs: u32,
    /// The most jobs that one worker takes; at least 1.
    pub max_jobs_per_worker: u32,
    /// The workload to make, in short form. Used on Kubernetes only. At most one of `workload`,
    /// `template` and `workloadRef` is given.
    #[serde(default)]
    pub workload: Option<serde_json::Value>,
    /// The pod template of the workload to make. Used on Kubernetes only.
    #[serde(default)]
    pub template: Option<serde_json::Value>,
    /// A workload that exists already. Used on Kubernetes only.
    #[serde(default)]
    pub workload_ref: Option<serde_json::Value>,
    /// How workers leave.
    #[serde(default)]
    pub drain: DrainSpec,
    /// How leases last.
    #[serde(default)]
    pub lease: LeaseSpec,
}

/// How workers leave.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct DrainSpec {
    /// How long a worker may take to end its jobs; 2h unless given.
    pub deadline: Span,
}

impl Default for DrainSpec {
    fn default() -> Self {
        Self { deadline: Span(std::time::Duration::from_secs(2 * 3600)) }
    }
}

/// How leases last.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// How long a lease lasts without renewal, 200ms to 10m; 10s unless given.
    pub ttl: Span,
    /// The pool size that a worker keeps when its lease has ended; the budget reserves it. 0
    /// unless given.
    pub floor: u32,
}

impl Default for LeaseSpec {
    fn default() -> Self {
        Self { ttl: Span(std::time::Duration::from_secs(10)), floor: 0 }
    }
}

/// Streams that are each owned by at most one worker of a cluster.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StreamSetSpec {
    /// The WorkerCluster that it runs on.
    pub cluster: String,
    /// The streams, in the order of assignment.
    #[serde(default)]
    pub streams: Vec<StreamEntry>,
    /// Long lists of streams, appended in this order.
    #[serde(default)]
    pub streams_from: Vec<StreamsSource>,
    /// How streams are laid over workers; Sticky unless given.
    #[serde(default)]
    pub policy: PolicySpec,
    /// What the end of a lease's time means; Expiring unless given.
    #[serde(default)]
    pub mode: ModeSpec,
    /// How a stream changes its worker.
    #[serde(default)]
    pub handover: HandoverSpec,
    /// How moves between living workers are limited.
    #[serde(default)]
    pub moves: MovesSpec,
    /// What is done for workers that cannot reload; None unless given. Used on Kubernetes only.
    #[serde(default)]
    pub refresh: RefreshSpec,
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StreamEntry {
    /// Its name, unique within the set.
    pub name: String,
    /// Its share of a worker's load; 1 unless given.
    #[serde(default = "one")]
    pub weight: u32,
    /// Whether it gets a worker of its own; false unless given.
    #[serde(default)]
    pub dedicated: bool,
}

fn one() -> u32 {
    1
}

/// Where a long list of streams is; exactly one of its fields is given.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StreamsSource {
    /// A file, named from the folder of the manifest: YAML (a list, or `jobs:` with a list) if
    /// its name ends in .yaml or .yml, else text with one stream a line and # comments. Used in
    /// standalone mode only.
    #[serde(default)]
    pub file: Option<String>,
    /// A key of a ConfigMap. Used on Kubernetes only.
    #[serde(default)]
    pub config_map_key_ref: Option<ConfigMapKeyRef>,
}

/// A key of a ConfigMap in the namespace of the set.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// The ConfigMap's name.
    pub name: String,
    /// The key.
    pub key: String,
}

/// How streams are laid over workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum PolicySpec {
    /// Balanced, and the fewest streams move.
    #[default]
    Sticky,
    /// Slices of the list in the order of the workers' names.
    Contiguous,
}

/// What the end of a lease's time means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ModeSpec {
    /// A silent worker's stream goes to another when its lease is surely over.
    #[default]
    Expiring,
    /// A stream stays with its worker until that gives it back or is gone.
    Pinned,
}

/// What is done for workers that cannot reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum RefreshSpec {
    /// Nothing.
    #[default]
    None,
    /// Workers whose streams changed are restarted, one at a time.
    Restart,
}

/// How a stream changes its worker.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct HandoverSpec {
    /// How long a worker may take to let a stream go; 30s unless given.
    pub deadline: Span,
}

impl Default for HandoverSpec {
    fn default() -> Self {
        Self { deadline: Span(std::time::Duration::from_secs(30)) }
    }
}

/// How moves between living workers are limited.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct MovesSpec {
    /// The most streams of the set that move at the same time; no limit unless given.
    pub per_round: Option<u32>,
    /// How long a stream that was moved for balance stays where it is; 30s unless given.
    pub cooldown: Span,
    /// How long joins and drains are gathered and then planned together; 200ms unless given.
    pub settle: Span,
}

impl Default for MovesSpec {
    fn default() -> Self {
        Self {
            per_round: None,
            cooldown: Span(std::time::Duration::from_secs(30)),
            settle: Span(std::time::Duration::from_millis(200)),
        }
    }
}
