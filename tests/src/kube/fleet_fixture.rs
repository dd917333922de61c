//! The fixture of tests on a cluster: a namespace with replicas of the operator, simulated nodes,
//! and a fleet in their pods.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use leasehold_demo::evidence::Evidence;
use leasehold_demo::journal::Journals;
use serde_json::{Value, json};

use super::access::Access;
use super::cluster::Cluster;
use super::fleet::{CoordinatorEndpoints, Fleet, Work};
use super::hollow_node::HollowNode;
use super::namespace::Namespace;
use super::objects::{names, object};
use super::replicas::Replicas;
use super::wait::until;
use crate::process::{get, soon};

/// What a worker may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whether its agent is connected to a leader.
    pub connected: bool,
    /// The token of its pool.
    pub pool: String,
    /// The streams that it owns, with their tokens.
    pub streams: BTreeMap<String, String>,
}

/// A namespace with replicas, nodes and a fleet.
#[derive(Debug)]
pub struct FleetFixture {
    /// The namespace of everything.
    pub namespace: Namespace,
    /// The coordinators.
    pub replicas: Replicas,
    /// The nodes, with names of their own.
    pub nodes: Vec<HollowNode>,
    /// What runs in the pods.
    pub fleet: Arc<Fleet>,
}

impl Deref for FleetFixture {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

impl FleetFixture {
    /// Starts this many replicas, all ready, and this many nodes, in a new namespace of the shared
    /// cluster; none where there is no cluster, which is noted.
    pub async fn start(prefix: &str, replicas: usize, nodes: usize, work: Work) -> Option<Self> {
        let namespace = Cluster::shared()?.namespace(prefix);
        Some(Self::start_with(namespace, replicas, nodes, work, &[]).await)
    }

    /// The same in a namespace that is there. Without a replica the workers have no coordinator.
    pub async fn set(
        access: &Access,
        namespace: &str,
        replicas: usize,
        nodes: usize,
        work: Work,
    ) -> Self {
        Self::start_with(Namespace::existing(access, namespace), replicas, nodes, work, &[]).await
    }

    /// The same, with flags for the replicas.
    pub async fn start_with(
        namespace: Namespace,
        replicas: usize,
        nodes: usize,
        work: Work,
        flags: &[&str],
    ) -> Self {
        let access = &namespace.access;
        Replicas::define(access);
        let mut running = Replicas::new(access, &namespace, flags);
        for _ in 0..replicas {
            running.start();
        }
        soon("ready replicas", || running.are_ready().then_some(())).await;
        let dials = (replicas > 0).then(|| CoordinatorEndpoints {
            addresses: running.addresses(),
            authority: running.authority(),
            server_name: format!("leasehold-coordinator.{namespace}.svc"),
        });
        let fleet = Fleet::new(access, work, dials);
        let mut joined = Vec::new();
        for number in 1..=nodes {
            let name = format!("{namespace}-{number}");
            let client = access.client().await;
            joined.push(HollowNode::join(client, &name, Arc::clone(&fleet)).await);
        }
        Self { namespace, replicas: running, nodes: joined, fleet }
    }

    /// A node affinity for pods that are to run on this fixture only; nowhere if it has no nodes.
    #[must_use]
    pub fn affinity(&self) -> Value {
        let mut nodes: Vec<_> = self.nodes.iter().map(HollowNode::name).collect();
        if nodes.is_empty() {
            // The API server refuses an empty list.
            nodes.push("no-node");
        }
        let here = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes });
        let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": [here] }] });
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } })
    }

    /// The spec of a worker's pod: one container, on this fixture's nodes.
    #[must_use]
    pub fn pod_spec(&self) -> Value {
        let worker = json!({ "name": "worker", "image": "example.invalid/worker:1" });
        json!({ "affinity": self.affinity(), "containers": [worker] })
    }

    /// A template of such pods, without labels.
    #[must_use]
    pub fn template(&self) -> Value {
        json!({ "spec": self.pod_spec() })
    }

    /// A Deployment or StatefulSet of such pods, which are workers of the WorkerCluster of its
    /// name.
    #[must_use]
    pub fn workload(&self, kind: &str, name: &str) -> Value {
        let labels = json!({ "app": name, "leasehold.dev/cluster": name });
        let template = json!({ "metadata": { "labels": labels }, "spec": self.pod_spec() });
        let selector = json!({ "matchLabels": { "app": name } });
        object(kind, name, json!({ "selector": selector, "template": template }))
    }

    /// What each of these pods' workers may do, as its agent reports it; nothing of an agent that
    /// does not answer.
    #[must_use]
    pub fn leases(&self, uids: &[String]) -> BTreeMap<String, Lease> {
        let lease = |uid: &String| {
            let member = self.fleet.member(uid)?;
            let (_, body) = get(member.agent.as_ref()?.1, "/v1/lease")?;
            let lease: Value = serde_json::from_str(&body).ok()?;
            let held =
                lease["streams"].as_array()?.iter().filter(|stream| stream["state"] == "held");
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Some(Lease {
                connected: lease["connected"] == true,
                pool: text(&lease["pool"]["token"]),
                streams: held
                    .map(|stream| (text(&stream["stream"]), text(&stream["token"])))
                    .collect(),
            })
        };
        uids.iter().filter_map(|uid| Some((uid.clone(), lease(uid)?))).collect()
    }

    /// The UIDs of the pods that are not about to end.
    #[must_use]
    pub fn uids(&self) -> Vec<String> {
        let pods = self.pods().into_iter();
        pods.filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned)).collect()
    }

    /// How many jobs run, by the workers' journals.
    #[must_use]
    pub fn jobs_running(&self) -> u64 {
        let open = self.evidence().runs.iter().filter(|run| run.to_ns == u64::MAX).count();
        open as u64
    }

    /// Ends the scenario: deletes the WorkerCluster `builds`. Every pod ends, and no job was lost.
    /// Returns what the workers' journals say in the end.
    ///
    /// # Panics
    /// If a pod stays, or a job that was begun is not done.
    pub fn end(self) -> Evidence {
        self.kubectl(&["delete", "wc", "builds", "--wait=false"]);
        until("the end of all pods", || names(&self.all_pods()), Vec::is_empty);
        let evidence = self.evidence();
        assert_eq!(evidence.contradictions, Vec::<String>::new());
        let lost: Vec<_> = evidence.runs.iter().filter(|run| !run.done).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        evidence
    }

    /// What the workers' journals say so far.
    ///
    /// # Panics
    /// If a journal cannot be read.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        let lines = Journals::new(self.fleet.journals()).read().expect("journals");
        Evidence::new(lines)
    }
}
