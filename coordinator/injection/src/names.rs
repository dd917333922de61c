//! The labels and annotations that opt pods in, configure the sidecar, and record the injection.

/// The pod's label that opts in, with the value `"true"`.
pub const INJECT: &str = "leasehold.dev/inject";
/// The pod's label that names its WorkerCluster or WorkerClass.
pub const CLUSTER: &str = "leasehold.dev/cluster";
/// The prefix of the annotations that configure the sidecar of one pod.
pub const CONFIG: &str = "config.leasehold.dev/";
/// The annotation that records the injection, for its removal.
pub const STATUS: &str = "leasehold.dev/status";
/// The sidecar's name among the init containers.
pub const CONTAINER: &str = "leasehold-agent";
/// Annotation of a pod: its volumes, separated by commas, that do not keep cluster-autoscaler from
/// removing its node.
pub(crate) const LOCAL_VOLUMES: &str =
    "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
