//! The zones of nodes, where nodes may be read: an endpoint then says which zone it is in. Where
//! they may not, no zone is known, and nobody waits for one.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

/// The well-known label.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The zones of all nodes that are in one; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct NodeZones {
    by_node: Arc<Mutex<BTreeMap<String, String>>>,
    changed: watch::Sender<()>,
}

impl NodeZones {
    /// Starts to watch the nodes' labels, until nobody looks.
    pub(super) fn watch(client: Client) -> Self {
        let node_zones = Self { by_node: Arc::default(), changed: watch::Sender::new(()) };
        tokio::spawn(node_zones.clone().follow(client));
        node_zones
    }

    /// The zone of a node.
    pub(super) fn of(&self, node: &str) -> Option<String> {
        self.lock().get(node).cloned()
    }

    /// Told when a node is in another zone than was known.
    pub(super) fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    async fn follow(self, client: Client) {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(client);
        let changes = watcher(nodes, watcher::Config::default()).default_backoff();
        let mut changes = pin!(changes);
        let mut is_well = true;
        while let Some(change) = changes.next().await {
            if self.changed.is_closed() {
                return;
            }
            match change {
                Ok(Event::Apply(node) | Event::InitApply(node)) => {
                    is_well = true;
                    self.put(node.name_any(), node.labels().get(ZONE_LABEL).cloned());
                }
                Ok(Event::Delete(node)) => self.put(node.name_any(), None),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => {
                    if std::mem::replace(&mut is_well, false) {
                        tracing::info!(%error, "nodes cannot be read: endpoints have no zones");
                    }
                }
            }
        }
    }

    fn put(&self, node: String, zone: Option<String>) {
        let before = match zone.clone() {
            Some(zone) => self.lock().insert(node, zone),
            None => self.lock().remove(&node),
        };
        if before != zone {
            self.changed.send_replace(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.by_node.lock().expect("no panic while it is held")
    }
}
