//! The facts of nodes that the operator needs: which are cordoned, and the zone of each. Without
//! the right to read nodes, no node counts as cordoned or has a zone, and nothing waits for them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use leasehold_platform_kube::watch_cache::{ObjectKey, WatchCache};
use tokio::sync::watch;

/// The well-known label.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The nodes that are cordoned or in a zone; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Nodes(WatchCache<NodeFacts>);

/// The facts that are kept of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeFacts {
    /// `kubectl cordon`: no new pod is scheduled to it.
    is_cordoned: bool,
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

    /// The names of the cordoned nodes.
    pub(crate) fn cordoned(&self) -> BTreeSet<String> {
        let nodes = self.0.all().into_iter().filter(|(_, node)| node.is_cordoned);
        nodes.map(|(key, _)| key.name).collect()
    }

    /// Notifies of each change.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed()
    }
}

impl NodeFacts {
    fn new(node: &Node) -> Option<Self> {
        let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        let facts = Self { is_cordoned, zone: node.labels().get(ZONE_LABEL).cloned() };
        (facts != Self::default()).then_some(facts)
    }
}
