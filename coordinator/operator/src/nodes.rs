//! The facts of nodes that the operator needs: which are cordoned or about to go, and the zone of
//! each. Without the right to read nodes, no node counts as cordoned or has a zone, and nothing
//! waits for them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use leasehold_platform_kube::watch_cache::{ObjectKey, WatchCache};
use tokio::sync::watch;

/// The well-known label.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The keys of taints by which autoscalers and handlers of interruptions say that a node goes soon.
/// They do not cordon it. A taint that only proposes its removal is not among them.
const LEAVING_TAINTS: [&str; 5] = [
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "cloud.google.com/impending-node-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
];
/// The taints of the AWS Node Termination Handler begin with this; each says why.
const AWS_HANDLER_TAINTS: &str = "aws-node-termination-handler/";

/// The nodes that are cordoned, about to go or in a zone; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Nodes(WatchCache<NodeFacts>);

/// The facts that are kept of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeFacts {
    /// It is cordoned (`kubectl cordon`), or goes soon.
    must_be_left: bool,
    zone: Option<String>,
}

impl Nodes {
    /// Starts to watch the nodes.
    pub(crate) fn start(client: Client) -> Self {
        let config = watcher::Config::default();
        Self(WatchCache::start("nodes", vec![Api::<Node>::all(client)], &config, NodeFacts::new))
    }

    /// The zone of a node.
    pub(crate) fn zone(&self, node: &str) -> Option<String> {
        self.0.get(&ObjectKey::new("", node))?.zone.clone()
    }

    /// The names of the nodes that are cordoned or go soon.
    pub(crate) fn to_be_left(&self) -> BTreeSet<String> {
        let nodes = self.0.all().into_iter().filter(|(_, node)| node.must_be_left);
        nodes.map(|(key, _)| key.name).collect()
    }

    /// Notifies of each change.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed()
    }
}

impl NodeFacts {
    fn new(node: &Node) -> Option<Self> {
        let spec = node.spec.as_ref();
        let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
        let mut taints = spec.into_iter().flat_map(|spec| spec.taints.iter().flatten());
        let is_leaving = taints.any(|taint| {
            LEAVING_TAINTS.contains(&&*taint.key) || taint.key.starts_with(AWS_HANDLER_TAINTS)
        });
        let must_be_left = is_cordoned || is_leaving || node.metadata.deletion_timestamp.is_some();
        let facts = Self { must_be_left, zone: node.labels().get(ZONE_LABEL).cloned() };
        (facts != Self::default()).then_some(facts)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_node_is_left_when_it_is_cordoned_or_goes_soon() {
        let must_be_left = |node: Value| {
            let node = serde_json::from_value(node).expect("a node");
            NodeFacts::new(&node).is_some_and(|facts| facts.must_be_left)
        };
        let tainted = |key: &str| {
            let taints = json!([{ "key": key, "effect": "NoSchedule" }]);
            must_be_left(json!({ "metadata": {}, "spec": { "taints": taints } }))
        };
        assert!(must_be_left(json!({ "metadata": {}, "spec": { "unschedulable": true } })));
        let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert!(must_be_left(json!({ "metadata": deleted, "spec": {} })));
        for key in LEAVING_TAINTS {
            assert!(tainted(key), "{key}");
        }
        assert!(tainted("aws-node-termination-handler/spot-itn"));
        for key in
            ["DeletionCandidateOfClusterAutoscaler", "node.kubernetes.io/not-ready", "dedicated"]
        {
            assert!(!tainted(key), "{key}");
        }
        assert!(!must_be_left(json!({ "metadata": {}, "spec": {} })));
    }
}
