//! Where a pass looks things up: the classes, the pods and the nodes as last seen.

use std::sync::Arc;

use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::{PodFacts, Pods};
use leasehold_types::ClusterName;

use super::wanted::Places;
use super::zones::Zones;

/// What was seen, for pipelines of one namespace.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) namespace: String,
    pub(super) objects: Arc<Objects>,
    pub(super) pods: Pods,
    pub(super) zones: Zones,
}

impl Places for Scene {
    fn port(&self, class: &ClusterName) -> Option<u16> {
        self.objects.classes.get(class)?.object.spec.port
    }

    fn pod(&self, name: &str) -> Option<Arc<PodFacts>> {
        self.pods.find(&self.namespace, name)
    }

    fn zone(&self, node: &str) -> Option<String> {
        self.zones.of(node)
    }
}
