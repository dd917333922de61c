//! The kinds as objects of the API server. Their specs are the very types that files are read
//! into; what an object says is taken only from [`super::desired`], which checks it.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use leasehold_manifest::manifest::{
    API_VERSION, PipelineBindingSpec, PipelineSpec, StreamSetSpec, WorkerClassSpec,
    WorkerClusterSpec,
};
use serde::{Deserialize, Serialize};

use super::names::{GROUP, VERSION};
use super::status::{
    PipelineBindingStatus, PipelineStatus, StreamSetStatus, WorkerClassStatus, WorkerClusterStatus,
};

macro_rules! kind {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $plural:literal, $spec:ty, $status:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            /// `leasehold.dev/v1alpha1`.
            #[serde(default)]
            pub api_version: String,
            /// The kind.
            #[serde(default)]
            pub kind: String,
            /// Name, namespace, labels and the like.
            pub metadata: ObjectMeta,
            /// What is wanted.
            pub spec: $spec,
            /// What is, as the leader last said.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<$status>,
        }

        impl $name {
            /// The kind's name.
            pub const KIND: &'static str = $kind;
            /// The name of the kind's objects in addresses.
            pub const PLURAL: &'static str = $plural;

            /// An object without a status.
            #[must_use]
            pub fn new(metadata: ObjectMeta, spec: $spec) -> Self {
                let (api_version, kind) = (API_VERSION.to_owned(), $kind.to_owned());
                Self { api_version, kind, metadata, spec, status: None }
            }
        }

        impl Resource for $name {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }

            fn api_version((): &()) -> Cow<'_, str> {
                API_VERSION.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind! {
    /// Workers that share one budget of jobs.
    WorkerCluster, "WorkerCluster", "workerclusters", WorkerClusterSpec, WorkerClusterStatus
}
kind! {
    /// Streams that are each owned by at most one worker of a cluster.
    StreamSet, "StreamSet", "streamsets", StreamSetSpec, StreamSetStatus
}
kind! {
    /// Workers of one kind, that pipelines are laid over.
    WorkerClass, "WorkerClass", "workerclasses", WorkerClassSpec, WorkerClassStatus
}
kind! {
    /// A graph of nodes that documents go through.
    Pipeline, "Pipeline", "pipelines", PipelineSpec, PipelineStatus
}
kind! {
    /// A node of a pipeline as it runs.
    PipelineBinding, "PipelineBinding", "pipelinebindings", PipelineBindingSpec,
    PipelineBindingStatus
}
