//! A stage for whole stories: a namespace with replicas of the operator, played nodes, and a fleet
//! in their pods.

use std::sync::Arc;

use serde_json::Value;

use super::access::Access;
use super::fleet::{Dials, Fleet, Work};
use super::hollow_node::HollowNode;
use super::replicas::Replicas;
use crate::demo::evidence::Evidence;
use crate::demo::journal::Journals;
use crate::process::eventually;

/// A stage.
#[derive(Debug)]
pub struct Stage {
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

impl Stage {
    /// Sets it up with so many replicas, all ready, and so many nodes.
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
        running.wait_ready();
        let dials = Dials {
            addresses: running.addresses(),
            authority: running.authority(),
            server_name: format!("leasehold-coordinator.{namespace}.svc"),
        };
        let fleet = Fleet::new(access, work, Some(dials));
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
    /// Where it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.access.kubectl(&[&["--namespace", &self.namespace], arguments].concat())
    }

    /// Applies a manifest to the namespace.
    ///
    /// # Panics
    /// Where the API server refuses it.
    pub fn apply(&self, manifest: &str) {
        let arguments = ["--namespace", &self.namespace, "apply", "--filename", "-"];
        if let Err(error) = self.access.try_kubectl_with(&arguments, manifest) {
            panic!("kubectl apply: {error}\n{manifest}");
        }
    }

    /// An object as it is; none while it cannot be had.
    #[must_use]
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let arguments = ["--namespace", &self.namespace, "get", kind, name, "--output=json"];
        let text = self.access.try_kubectl(&arguments).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Waits until an object is as `wanted` says.
    ///
    /// # Panics
    /// Where it is not for a long time.
    pub fn wait_for(&self, what: &str, kind: &str, name: &str, wanted: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        let come_about = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(what, || {
                last = self.get(kind, name)?;
                wanted(&last).then_some(())
            });
        }));
        if let Err(panic) = come_about {
            eprintln!("{kind} {name} is\n{last:#}");
            std::panic::resume_unwind(panic);
        }
    }

    /// The pods of the namespace that are not about to end.
    #[must_use]
    pub fn pods(&self) -> Vec<Value> {
        let list = self.kubectl(&["get", "pods", "--output=json"]);
        let list: Value = serde_json::from_str(&list).expect("a list");
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
    }

    /// A node affinity, as YAML in one line, for pods that are to run on this stage only.
    #[must_use]
    pub fn affinity(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(HollowNode::name).collect();
        format!(
            "{{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
             {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, \
             operator: In, values: [{}]}}]}}]}}}}}}",
            nodes.join(", ")
        )
    }

    /// What the workers' journals say so far.
    ///
    /// # Panics
    /// Where a journal cannot be read.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        let lines = Journals::new(self.fleet.journals()).read().expect("journals");
        Evidence::new(lines)
    }
}
