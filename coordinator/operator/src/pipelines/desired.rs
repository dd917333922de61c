//! The objects that a pipeline should have, as a function of the Pipeline, the core's view of it
//! and the pods: each in the form that is applied.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::api::DynamicObject;
use leasehold_coordinator_core::view::{BindingView, PipelineView};
use leasehold_kube_api::names::{
    DOCUMENTS_PORT, FIELD_MANAGER, MANAGED_BY_LABEL, PIPELINE_LABEL, SERVICE_NAME_LABEL,
    SLICE_MANAGED_BY_LABEL, binding,
};
use leasehold_kube_api::resources::Pipeline;
use leasehold_manifest::Rate;
use leasehold_manifest::manifest::API_VERSION;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::{PodFacts, Pods};
use leasehold_types::ClusterName;
use serde_json::{Value, json};

use super::endpoint_slices::{SliceContent, serving_pods, slice_contents};
use super::managed_kind::ManagedKind;
use crate::nodes::Nodes;

/// The objects that a binding should have.
#[derive(Clone, Debug)]
pub(super) struct DesiredBinding {
    /// The name of the binding, its Service, and of its slices up to the last part.
    pub(super) name: String,
    /// The core's view of it.
    pub(super) view: BindingView,
    /// The Service.
    pub(super) service: DynamicObject,
    /// The EndpointSlices.
    pub(super) slices: Vec<DynamicObject>,
    /// The PipelineBinding, without its status.
    pub(super) binding: DynamicObject,
}

/// Looks up ports, pods and zones.
pub(super) trait Lookup {
    /// The port of a class.
    fn port(&self, class: &ClusterName) -> Option<u16>;
    /// The pod of this name, in the pipeline's namespace.
    fn pod(&self, name: &str) -> Option<Arc<PodFacts>>;
    /// The zone of a node.
    fn zone(&self, node: &str) -> Option<String>;
}

/// Looks up in the caches, for pipelines of one namespace.
#[derive(Clone)]
pub(super) struct CacheLookup {
    pub(super) namespace: String,
    pub(super) objects: Arc<Objects>,
    pub(super) pods: Pods,
    pub(super) nodes: Nodes,
}

impl Lookup for CacheLookup {
    fn port(&self, class: &ClusterName) -> Option<u16> {
        self.objects.classes.get(class)?.object.spec.0.port
    }

    fn pod(&self, name: &str) -> Option<Arc<PodFacts>> {
        self.pods.find(&self.namespace, name)
    }

    fn zone(&self, node: &str) -> Option<String> {
        self.nodes.zone(node)
    }
}

/// The objects that each binding of a pipeline should have.
pub(super) fn desired(
    pipeline: &Pipeline,
    view: &PipelineView,
    lookup: &impl Lookup,
) -> Vec<DesiredBinding> {
    let builder =
        ObjectBuilder { pipeline, name: pipeline.metadata.name.clone().unwrap_or_default() };
    view.bindings.iter().map(|binding| builder.binding(binding, view, lookup)).collect()
}

/// The names of the pods that serve a pipeline.
pub(super) fn pods(view: &PipelineView) -> BTreeSet<String> {
    let shares = view.bindings.iter().flat_map(|binding| &binding.shares);
    shares.map(|share| share.worker.as_str().to_owned()).collect()
}

struct ObjectBuilder<'a> {
    pipeline: &'a Pipeline,
    name: String,
}

impl ObjectBuilder<'_> {
    fn binding(
        &self,
        binding_view: &BindingView,
        view: &PipelineView,
        lookup: &impl Lookup,
    ) -> DesiredBinding {
        let name = binding(&self.name, binding_view.node.as_str());
        let port = lookup.port(&binding_view.class);
        // A worker is a pod of its class; a pod that has changed its class is another worker.
        let pod = |name: &str| {
            lookup.pod(name).filter(|pod| pod.cluster.as_ref() == Some(&binding_view.class))
        };
        let serving_pods = serving_pods(&binding_view.shares, pod, |node| lookup.zone(node));
        let slice = |slice: &SliceContent| self.slice(&name, slice, port);
        let slices = slice_contents(&serving_pods).iter().map(slice).collect();
        let next: Vec<_> =
            binding_view.next.iter().map(|node| binding(&self.name, node.as_str())).collect();
        let spec = json!({
            "spec": {
                "pipeline": self.name,
                "node": binding_view.node.as_str(),
                "class": binding_view.class.parts().1,
                "documentsPerSecond": Rate(view.load),
                "next": next,
            },
        });
        DesiredBinding {
            view: binding_view.clone(),
            service: self.service(&name, port),
            slices,
            binding: self.object(ManagedKind::Binding, &name, &[], spec),
            name,
        }
    }

    fn service(&self, name: &str, port: Option<u16>) -> DynamicObject {
        // The pods' addresses decide: a binding has slices of each of their address families.
        let mut spec = json!({ "type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack" });
        match port {
            Some(port) => {
                spec["ports"] = json!([{
                    "name": DOCUMENTS_PORT, "port": port, "targetPort": port, "protocol": "TCP",
                }]);
            }
            None => spec["clusterIP"] = json!("None"),
        }
        self.object(ManagedKind::Service, name, &[], json!({ "spec": spec }))
    }

    fn slice(&self, name: &str, slice: &SliceContent, port: Option<u16>) -> DynamicObject {
        let labels = [(SERVICE_NAME_LABEL, name), (SLICE_MANAGED_BY_LABEL, FIELD_MANAGER)];
        let ports: Vec<Value> = port
            .iter()
            .map(|port| json!({ "name": DOCUMENTS_PORT, "port": port, "protocol": "TCP" }))
            .collect();
        let data = json!({
            "addressType": slice.family, "ports": ports, "endpoints": slice.endpoints,
        });
        self.object(ManagedKind::EndpointSlice, &format!("{name}-{}", slice.suffix), &labels, data)
    }

    fn object(
        &self,
        kind: ManagedKind,
        name: &str,
        labels: &[(&str, &str)],
        data: Value,
    ) -> DynamicObject {
        use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
        let metadata = &self.pipeline.metadata;
        let owner = OwnerReference {
            api_version: API_VERSION.into(),
            kind: Pipeline::KIND.into(),
            name: self.name.clone(),
            uid: metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            // It would need another RBAC right, and no object has to be deleted before its owner.
            block_owner_deletion: None,
        };
        let common = [(MANAGED_BY_LABEL, FIELD_MANAGER), (PIPELINE_LABEL, self.name.as_str())];
        let mut object = DynamicObject::new(name, &kind.resource()).data(data);
        object.metadata.namespace = metadata.namespace.clone();
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        object.metadata.labels = Some(common.iter().chain(labels).map(text).collect());
        object.metadata.owner_references = Some(vec![owner]);
        object
    }
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
