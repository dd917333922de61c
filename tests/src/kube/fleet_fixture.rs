//! The fixture of tests on a cluster: a namespace with replicas of the operator, simulated nodes,
//! and a fleet in their pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_demo::evidence::Evidence;
use leasehold_demo::journal::Journals;
use serde_json::Value;

use super::access::Access;
use super::fleet::{CoordinatorEndpoints, Fleet, Work};
use super::hollow_node::HollowNode;
use super::replicas::Replicas;
use crate::process::{eventually, get, soon, until_ok};

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
    /// The administrator's way in.
    pub access: Access,
    /// The namespace of everything.
    pub namespace: String,
    /// The coordinators.
    pub replicas: Replicas,
    /// The nodes, with names of their own.
    pub nodes: Vec<HollowNode>,
    /// What runs in the pods.
    pub fleet: Arc<Fleet>,
}

impl FleetFixture {
    /// Starts this many replicas, all ready, and this many nodes. Without a replica the workers
    /// have no coordinator.
    pub async fn set(
        access: &Access,
        namespace: &str,
        replicas: usize,
        nodes: usize,
        work: Work,
    ) -> Self {
        Self::set_with(access, namespace, replicas, nodes, work, &[]).await
    }

    /// The same, with flags for the replicas.
    pub async fn set_with(
        access: &Access,
        namespace: &str,
        replicas: usize,
        nodes: usize,
        work: Work,
        flags: &[&str],
    ) -> Self {
        Replicas::define(access);
        let mut running = Replicas::new(access, namespace, flags);
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
        let (access, namespace) = (access.clone(), namespace.to_owned());
        Self { access, namespace, replicas: running, nodes: joined, fleet }
    }

    /// Runs kubectl in the namespace.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.access.kubectl(&[&["--namespace", &self.namespace], arguments].concat())
    }

    /// Applies a manifest to the namespace.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub fn apply(&self, manifest: &str) {
        let arguments = ["--namespace", &self.namespace, "apply", "--filename", "-"];
        if let Err(error) = self.access.try_kubectl_with(&arguments, manifest) {
            panic!("kubectl apply: {error}\n{manifest}");
        }
    }

    /// An object as it is; none while it cannot be had.
    #[must_use]
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.access.objects().get(&self.namespace, kind, name).ok()
    }

    /// Waits until an object is as `wanted` says.
    ///
    /// # Panics
    /// If it is not for a long time.
    pub fn wait_for(&self, what: &str, kind: &str, name: &str, wanted: impl Fn(&Value) -> bool) {
        until_ok(what, || {
            let Some(object) = self.get(kind, name) else {
                return Err(format!("no {kind} {name}"));
            };
            if wanted(&object) { Ok(()) } else { Err(format!("{kind} {name} is\n{object:#}")) }
        });
    }

    /// The pods of the namespace that are not about to end.
    #[must_use]
    pub fn pods(&self) -> Vec<Value> {
        let pods = self.all_pods().into_iter();
        pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
    }

    /// The pods of the namespace, those that are about to end, too.
    #[must_use]
    pub fn all_pods(&self) -> Vec<Value> {
        self.access.objects().list(&self.namespace, "pods").expect("a list")
    }

    /// A node affinity, as YAML in one line, for pods that are to run on this fixture only; nowhere
    /// if it has no nodes.
    #[must_use]
    pub fn affinity(&self) -> String {
        let mut nodes: Vec<_> = self.nodes.iter().map(HollowNode::name).collect();
        if nodes.is_empty() {
            // The API server refuses an empty list.
            nodes.push("no-node");
        }
        format!(
            "{{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
             {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, \
             operator: In, values: [{}]}}]}}]}}}}}}",
            nodes.join(", ")
        )
    }

    /// A WorkerCluster `builds` of workers that take two jobs each, and a StreamSet `feeds` of so
    /// many streams on it, as YAML.
    #[must_use]
    pub fn builds(&self, jobs: u32, streams: u32, ttl: &str) -> String {
        let streams: Vec<_> =
            (1..=streams).map(|number| format!("{{name: feed-{number}}}")).collect();
        format!(
            r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec:
  maxJobs: {jobs}
  maxJobsPerWorker: 2
  lease: {{ttl: {ttl}}}
  template:
    spec:
      affinity: {}
      containers: [{{name: worker, image: example.invalid/worker:1}}]
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {{name: feeds}}
spec:
  cluster: builds
  streams: [{}]
",
            self.affinity(),
            streams.join(", ")
        )
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

    /// Ends the scenario: deletes the WorkerCluster `builds`. Every pod ends, and no job was lost.
    ///
    /// # Panics
    /// If a pod stays, or a job that was begun is not done.
    pub fn end(self) {
        self.kubectl(&["delete", "wc", "builds", "--wait=false"]);
        eventually("the end of all pods", || self.all_pods().is_empty().then_some(()));
        let evidence = self.evidence();
        assert_eq!(evidence.contradictions, Vec::<String>::new());
        let lost: Vec<_> = evidence.runs.iter().filter(|run| !run.done).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
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
