//! A node without a machine: its Node object, its heartbeat, and pods that the test plays. The
//! scheduler, the controllers and `kubectl drain` treat it as any other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::StreamExt;

use super::pods::{Runner, SimulatedPod, play};

/// Between two heartbeats: a twentieth of the time after which a control plane of the tests
/// believes a node lost.
const BEAT: Duration = Duration::from_secs(2);

/// As whom the node writes.
const MANAGER: &str = "hollow-node";

/// A node that plays its pods. Without it nothing is heard of them any more, as of a node that was
/// cut off.
pub struct HollowNode {
    name: String,
    client: Client,
    heart: JoinHandle<()>,
    pods: JoinHandle<()>,
}

impl std::fmt::Debug for HollowNode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "HollowNode({})", self.name)
    }
}

impl HollowNode {
    /// Creates a node of this name that is Ready, has room for 250 pods and runs them by `runner`.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub async fn join<R: Runner>(client: Client, name: &str, runner: Arc<R>) -> Self {
        let nodes: Api<Node> = Api::all(client.clone());
        let params = PatchParams::apply(MANAGER).force();
        let labels = json!({
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        });
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels },
        });
        nodes.patch(name, &params, &Patch::Apply(node)).await.expect("a node");
        let status = json!({ "apiVersion": "v1", "kind": "Node", "status": status() });
        nodes.patch_status(name, &params, &Patch::Apply(status)).await.expect("a node's status");
        let heart = tokio::spawn(beat(client.clone(), name.to_owned()));
        let pods = tokio::spawn(keep(client.clone(), name.to_owned(), runner));
        Self { name: name.to_owned(), client, heart, pods }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Cuts the node off: no heartbeat, no pod status. Their processes keep running, and only
    /// the test ends them.
    pub fn fall_silent(&self) {
        self.heart.abort();
        self.pods.abort();
    }

    /// Removes the node, and its pods with it.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub async fn leave(self) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete(&self.name, &DeleteParams::default()).await.expect("the node is deleted");
    }
}

impl Drop for HollowNode {
    fn drop(&mut self) {
        self.fall_silent();
    }
}

fn status() -> serde_json::Value {
    let room = json!({ "cpu": "64", "memory": "256Gi", "pods": "250" });
    let now = Time(Timestamp::now());
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "Played",
            "lastTransitionTime": now, "lastHeartbeatTime": now,
        })
    };
    json!({
        "capacity": room,
        "allocatable": room,
        "conditions": [
            condition("Ready", "True"),
            condition("MemoryPressure", "False"),
            condition("DiskPressure", "False"),
            condition("PIDPressure", "False"),
        ],
    })
}

/// Renews the node's Lease.
async fn beat(client: Client, name: String) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let params = PatchParams::apply(MANAGER).force();
    loop {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name },
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": MicroTime(Timestamp::now()),
            },
        });
        // Where the API server is away, the next beat tries again.
        let _ = leases.patch(&name, &params, &Patch::Apply(lease)).await;
        tokio::time::sleep(BEAT).await;
    }
}

/// Plays every pod that is bound to the node.
async fn keep<R: Runner>(client: Client, node: String, runner: Arc<R>) {
    let here = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let events = watcher(Api::<Pod>::all(client.clone()), here).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut plays = JoinSet::new();
    let mut known: BTreeMap<String, watch::Sender<Arc<Pod>>> = BTreeMap::new();
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitDone) => known.retain(|uid, _| listed.contains(uid)),
            Ok(Event::Delete(pod)) => {
                known.remove(&pod.uid().unwrap_or_default());
            }
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let uid = pod.uid().unwrap_or_default();
                listed.insert(uid.clone());
                if let Some(seen) = known.get(&uid) {
                    seen.send_replace(Arc::new(pod));
                } else {
                    let played = SimulatedPod::new(client.clone(), &pod);
                    let (seen, newest) = watch::channel(Arc::new(pod));
                    known.insert(uid, seen);
                    plays.spawn(play(runner.clone(), played, newest));
                }
            }
            // The stream continues by itself, with a list.
            Err(_) => {}
        }
        while plays.try_join_next().is_some() {}
    }
}
