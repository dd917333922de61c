//! The names of labels, annotations and objects on Kubernetes. A released name never changes.

use std::sync::LazyLock;

/// The API group of all kinds.
pub const GROUP: &str = "leasehold.dev";
/// Their version.
pub const VERSION: &str = "v1alpha1";

/// Label of a pod: the `WorkerCluster`, in the pod's namespace, whose worker it is.
pub const CLUSTER_LABEL: &str = "leasehold.dev/cluster";
/// Label of a pod, [`TRUE`] while it may be running jobs.
pub const BUSY_LABEL: &str = "leasehold.dev/busy";
/// Label of a pod, [`TRUE`] while it has an exposure: a new leader finds the pod by it even if the
/// label of the cluster was removed.
pub const EXPOSED_LABEL: &str = "leasehold.dev/exposed";
/// The value of boolean labels and annotations.
pub const TRUE: &str = "true";

/// Annotation of a pod: its exposure, the most that it may hold, as JSON; written by the leader.
pub const EXPOSURE_ANNOTATION: &str = "leasehold.dev/exposure";
/// Annotation of a pod: why the operator drains it, as one of the `DRAIN_FOR_*`.
pub const DRAIN_ANNOTATION: &str = "leasehold.dev/drain";
/// A scale-in removes the pod.
pub const DRAIN_FOR_SCALE_IN: &str = "scale-in";
/// Its node is cordoned.
pub const DRAIN_FOR_NODE: &str = "node";
/// Its eviction was asked for while it ran jobs.
pub const DRAIN_FOR_EVICTION: &str = "eviction";
/// Its streams changed and it cannot reload.
pub const DRAIN_FOR_RESTART: &str = "restart";
/// Annotation of a pod that cannot reload: a digest of the streams that it started with.
pub const STREAMS_ANNOTATION: &str = "leasehold.dev/streams";
/// Annotation of a made workload's pod template: a number that grows when the template changes.
pub const GENERATION_ANNOTATION: &str = "leasehold.dev/generation";
/// Annotation of a made workload: the digest of its pod template, to detect a change.
pub const TEMPLATE_DIGEST: &str = "leasehold.dev/template";
/// Label of a made object: [`FIELD_MANAGER`].
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Label of objects made for a pipeline: its name.
pub const PIPELINE_LABEL: &str = "leasehold.dev/pipeline";
/// Label of an EndpointSlice: the Service that it belongs to.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Label of an EndpointSlice: [`FIELD_MANAGER`], so that no other controller writes it.
pub const SLICE_MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// The port of a binding's Service, by its name.
pub const DOCUMENTS_PORT: &str = "documents";
/// Annotation of a pod: its controller deletes the pods with the lowest first.
pub const DELETION_COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Annotation of a pod: cluster-autoscaler does not remove its node if this is `false`.
pub const SAFE_TO_EVICT_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Annotation of a pod: Karpenter does not disrupt its node if this is [`TRUE`].
pub const DO_NOT_DISRUPT_ANNOTATION: &str = "karpenter.sh/do-not-disrupt";

/// Annotation of a busy pod: which of these two the coordinator has added, separated by commas.
pub const BUSY_ANNOTATIONS_ANNOTATION: &str = "leasehold.dev/busy-annotations";

/// Annotation of the election's Lease: the newest epoch, in decimal.
pub const EPOCH_ANNOTATION: &str = "leasehold.dev/epoch";
/// Annotation of the election's Lease: the identity of the cell. It is not the Lease's UID, because
/// that changes when the Lease is deleted beside running replicas, or restored.
pub const CELL_ANNOTATION: &str = "leasehold.dev/cell";
/// Annotation of the election's Lease: the leader's address, HOST:PORT.
pub const ADDRESS_ANNOTATION: &str = "leasehold.dev/address";

/// The election's Lease, in the coordinator's namespace.
pub const LEASE: &str = "leasehold-coordinator";

/// The pod of a replica, whose identity in the Lease is the pod's name and a number.
#[must_use]
pub fn pod_of_replica(identity: &str) -> Option<&str> {
    identity.rsplit_once('_').map(|(pod, _)| pod).filter(|pod| !pod.is_empty())
}

/// The Secret of the coordinator's certificate authority, in its namespace.
pub const CA_SECRET: &str = "leasehold-ca";
/// The ConfigMap that publishes the trusted certificates, in every namespace with workers.
pub const CA_CONFIG_MAP: &str = "leasehold-ca";
/// The key of the trusted certificates (PEM), in the Secret and in the ConfigMap.
pub const CA_KEY: &str = "ca.crt";

/// The coordinator as the field manager of server-side apply.
pub const FIELD_MANAGER: &str = "leasehold";

/// The most bytes of a `WorkerCluster`'s name: it is a label's value.
pub const CLUSTER_NAME_BYTES_MAX: usize = 63;
/// The most bytes of the name of a WorkerCluster that makes a StatefulSet: the names of its
/// revisions are labels' values, and eleven bytes longer.
pub const STATEFUL_NAME_BYTES_MAX: usize = 52;

/// The webhook that refuses evictions of busy pods, in the ValidatingWebhookConfiguration.
pub const EVICTIONS_WEBHOOK: &str = "evictions.leasehold.dev";

/// The PodDisruptionBudget by which earlier versions protected a cluster's busy pods.
#[must_use]
pub fn disruption_budget(cluster: &str) -> String {
    format!("{cluster}-busy")
}

/// The PipelineBinding of a pipeline's node, and its Service.
#[must_use]
pub fn binding(pipeline: &str, node: &str) -> String {
    format!("{pipeline}-{node}")
}

/// The selector of a cluster's pods.
#[must_use]
pub fn selector(cluster: &str) -> String {
    format!("{CLUSTER_LABEL}={cluster}")
}
/// The registry and folder of images that are published nowhere: the registry cannot exist (RFC
/// 6761), so that no image of somebody else is pulled. All files of `deploy` name it.
pub const UNPUBLISHED_IMAGES: &str = "registry.invalid/leasehold";
/// The registry and folder of the images, unless an installation names another: those of `make
/// release IMAGES=...`.
pub const IMAGES: &str = match option_env!("LEASEHOLD_IMAGES") {
    Some(images) => images,
    None => UNPUBLISHED_IMAGES,
};
/// The agent's image of this version.
pub static AGENT_IMAGE: LazyLock<String> =
    LazyLock::new(|| format!("{IMAGES}/agent:{}", env!("CARGO_PKG_VERSION")));
