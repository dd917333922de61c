//! The facts of nodes that the operator needs: which are cordoned, which are about to go, and the
//! zone of each. Without the right to read nodes, no node counts as cordoned or about to go or has
//! a zone, and nothing waits for them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use leasehold_kube_api::node_taints::removal_taint;
use leasehold_platform_kube::watch_cache::{ObjectKey, WatchCache};
use tokio::sync::watch;

/// The well-known label.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The names of the nodes that take no new pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClosedNodes {
    /// A person has cordoned them.
    pub(crate) cordoned: BTreeSet<String>,
    /// They go soon, cordoned or not.
    pub(crate) leaving: BTreeSet<String>,
    /// All nodes were read: one that is in neither set takes pods.
    pub(crate) are_all_known: bool,
}

/// The nodes that are cordoned, about to go or in a zone; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Nodes(WatchCache<NodeFacts>);

/// The facts that are kept of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeFacts {
    /// `kubectl cordon` was run.
    is_cordoned: bool,
    is_leaving: bool,
    zone: Option<String>,
}

impl Nodes {
    /// Starts to watch the nodes.
    pub(crate) fn start(client: Client) -> Self {
        let (api, config) = (Api::<Node>::all(client), watcher::Config::default());
        let nodes = WatchCache::start("nodes", vec![api], &config, NodeFacts::new);
        nodes.collect_changed();
        Self(nodes)
    }

    /// The zone of a node.
    pub(crate) fn zone(&self, node: &str) -> Option<String> {
        self.0.get(&ObjectKey::new("", node))?.zone.clone()
    }

    /// The nodes that take no new pods.
    pub(crate) fn closed(&self) -> ClosedNodes {
        let are_all_known = self.0.is_complete() && self.0.forbidden_in(None).is_none();
        let mut closed = ClosedNodes { are_all_known, ..ClosedNodes::default() };
        for (ObjectKey { name, .. }, node) in self.0.all() {
            if node.is_leaving {
                closed.leaving.insert(name);
            } else if node.is_cordoned {
                closed.cordoned.insert(name);
            }
        }
        closed
    }

    /// Notifies of each change.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed()
    }

    /// The names of the nodes that have changed since the last call.
    pub(crate) fn take_changed(&self) -> impl Iterator<Item = String> {
        self.0.take_changed().into_iter().map(|key| key.name)
    }
}

impl ClosedNodes {
    /// Whether a node takes pods, as far as is known.
    pub(crate) fn is_open(&self, node: &str) -> bool {
        self.are_all_known && !self.cordoned.contains(node) && !self.leaving.contains(node)
    }
}

impl NodeFacts {
    fn new(node: &Node) -> Option<Self> {
        let spec = node.spec.as_ref();
        let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
        let mut taints = spec.into_iter().flat_map(|spec| spec.taints.iter().flatten());
        let is_leaving = taints.any(|taint| removal_taint(&taint.key).is_some());
        let is_leaving = is_leaving || node.metadata.deletion_timestamp.is_some();
        let zone = node.labels().get(ZONE_LABEL).cloned();
        let facts = Self { is_cordoned, is_leaving, zone };
        (facts != Self::default()).then_some(facts)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_kube_api::node_taints::REMOVAL_TAINTS;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_cordoned_node_is_not_one_that_goes_soon() {
        let facts = |node: Value| {
            let node = serde_json::from_value(node).expect("a node");
            let facts = NodeFacts::new(&node).unwrap_or_default();
            (facts.is_cordoned, facts.is_leaving)
        };
        let tainted = |key: &str| {
            let taints = json!([{ "key": key, "effect": "NoSchedule" }]);
            facts(json!({ "metadata": {}, "spec": { "taints": taints } }))
        };
        let cordoned = json!({ "metadata": {}, "spec": { "unschedulable": true } });
        assert_eq!(facts(cordoned), (true, false));
        let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert_eq!(facts(json!({ "metadata": deleted, "spec": {} })), (false, true));
        for taint in REMOVAL_TAINTS {
            assert_eq!(tainted(taint.key), (false, true), "{}", taint.key);
        }
        assert_eq!(tainted("aws-node-termination-handler/spot-itn"), (false, true));
        for key in
            ["DeletionCandidateOfClusterAutoscaler", "node.kubernetes.io/not-ready", "dedicated"]
        {
            assert_eq!(tainted(key), (false, false), "{key}");
        }
        assert_eq!(facts(json!({ "metadata": {}, "spec": {} })), (false, false));
    }
}
