//! The kinds as objects of the API server: kube's derive makes the type of the object, with
//! metadata and status, and its definition without schema and columns ([`crate::crd`] adds these).
//! The specs are the types that files are read into, each in a newtype, since the derive is put on
//! the spec and `leasehold-manifest` does not depend on kube.

use kube::CustomResource;
use leasehold_manifest::manifest::{
    PipelineBindingSpec, PipelineSpec, StreamSetSpec, WorkerClassSpec, WorkerClusterSpec,
};
use serde::{Deserialize, Serialize};

use super::status::{
    PipelineBindingStatus, PipelineStatus, StreamSetStatus, WorkerClassStatus, WorkerClusterStatus,
};

/// The field `spec` of a [`WorkerCluster`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "WorkerCluster",
    doc = "Workers that share one budget of jobs.",
    plural = "workerclusters",
    shortname = "wc",
    category = "leasehold",
    namespaced,
    status = "WorkerClusterStatus",
    scale(
        spec_replicas_path = ".spec.maxJobs",
        status_replicas_path = ".status.maxJobs",
        label_selector_path = ".status.selector"
    ),
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct WorkerClusterCrdSpec(pub WorkerClusterSpec);

/// The field `spec` of a [`StreamSet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "StreamSet",
    doc = "Streams that are each owned by at most one worker of a cluster.",
    plural = "streamsets",
    shortname = "ss",
    category = "leasehold",
    namespaced,
    status = "StreamSetStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct StreamSetCrdSpec(pub StreamSetSpec);

/// The field `spec` of a [`WorkerClass`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "WorkerClass",
    doc = "Workers of one kind and capacity, which run the nodes of pipelines.",
    plural = "workerclasses",
    shortname = "wcl",
    category = "leasehold",
    namespaced,
    status = "WorkerClassStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct WorkerClassCrdSpec(pub WorkerClassSpec);

/// The field `spec` of a [`Pipeline`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "Pipeline",
    doc = "A directed acyclic graph of nodes that process documents.",
    plural = "pipelines",
    shortname = "pl",
    category = "leasehold",
    namespaced,
    status = "PipelineStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct PipelineCrdSpec(pub PipelineSpec);

/// The field `spec` of a [`PipelineBinding`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "PipelineBinding",
    doc = "A node of a pipeline as it runs.",
    plural = "pipelinebindings",
    shortname = "plb",
    category = "leasehold",
    namespaced,
    status = "PipelineBindingStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct PipelineBindingCrdSpec(pub PipelineBindingSpec);

impl WorkerCluster {
    /// The kind's name, also where a constant is needed.
    pub const KIND: &'static str = "WorkerCluster";
}

impl StreamSet {
    /// The kind's name, also where a constant is needed.
    pub const KIND: &'static str = "StreamSet";
}

impl WorkerClass {
    /// The kind's name, also where a constant is needed.
    pub const KIND: &'static str = "WorkerClass";
}

impl Pipeline {
    /// The kind's name, also where a constant is needed.
    pub const KIND: &'static str = "Pipeline";
}

impl PipelineBinding {
    /// The kind's name, also where a constant is needed.
    pub const KIND: &'static str = "PipelineBinding";
}

#[cfg(test)]
mod tests {
    use kube::Resource;
    use leasehold_manifest::manifest::API_VERSION;

    use super::*;
    use crate::names::{GROUP, VERSION};

    #[test]
    fn attributes_and_constants_are_equal() {
        fn check<K: Resource<DynamicType = ()>>(kind: &str) {
            assert_eq!(K::kind(&()), kind);
            assert_eq!(K::group(&()), GROUP);
            assert_eq!(K::version(&()), VERSION);
            assert_eq!(K::api_version(&()), API_VERSION);
        }
        check::<WorkerCluster>(WorkerCluster::KIND);
        check::<StreamSet>(StreamSet::KIND);
        check::<WorkerClass>(WorkerClass::KIND);
        check::<Pipeline>(Pipeline::KIND);
        check::<PipelineBinding>(PipelineBinding::KIND);
    }
}
