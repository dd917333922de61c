//! Decides the sidecar of an opted-in pod: the installation's settings, overridden by those of its
//! WorkerCluster or WorkerClass. The injection then applies the pod's own annotations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_driver::metrics::InjectionResult;
use leasehold_injection::{Edit, Resources, Sidecar, inject, names};
use leasehold_manifest::manifest::{AgentResources, AgentSpec, WorkerClassSpec, WorkerClusterSpec};
use serde_json::Value;
use tokio::sync::watch;

/// The most WorkerClusters and WorkerClasses that a message names.
const NAMED_MAX: usize = 5;

/// All WorkerClusters and WorkerClasses by namespace and name; both kinds share the names. No
/// namespace is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clusters(BTreeMap<String, BTreeMap<String, Cluster>>);

/// The settings of a WorkerCluster or a WorkerClass for the agents of its pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Its `spec.agent`.
    pub agent: AgentSpec,
    /// Its drain deadline.
    pub drain_deadline: Duration,
    /// The port on which its workers accept documents.
    pub port: Option<u16>,
}

/// Decides the sidecars of pods.
#[derive(Clone, Debug)]
pub struct Injector {
    /// The settings of every agent; a WorkerCluster or WorkerClass may override them.
    pub installation: Sidecar,
    /// The namespaces that are served; empty for all.
    pub served: Vec<String>,
    /// The WorkerClusters and WorkerClasses; `None` before the first read.
    pub clusters: watch::Receiver<Option<Arc<Clusters>>>,
}

/// The decision on a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum InjectionDecision {
    /// The pod is not changed.
    Unchanged,
    /// The pod is changed; without edits if it has its agent already.
    Injected {
        /// The changes.
        edits: Vec<Edit>,
        /// Warnings for the user.
        warnings: Vec<String>,
    },
    /// The pod is denied, for this reason.
    Denied(String),
}

impl InjectionDecision {
    /// The label of the metric that counts it.
    pub(super) fn kind(&self) -> InjectionResult {
        match self {
            Self::Unchanged => InjectionResult::Unchanged,
            Self::Injected { edits, .. } if edits.is_empty() => InjectionResult::Unchanged,
            Self::Injected { .. } => InjectionResult::Injected,
            Self::Denied(_) => InjectionResult::Refused,
        }
    }
}

impl From<&WorkerClusterSpec> for Cluster {
    fn from(spec: &WorkerClusterSpec) -> Self {
        let agent = spec.agent.clone().unwrap_or_default();
        Self { agent, drain_deadline: spec.drain.deadline.0, port: None }
    }
}

impl From<&WorkerClassSpec> for Cluster {
    fn from(spec: &WorkerClassSpec) -> Self {
        let agent = spec.agent.clone().unwrap_or_default();
        Self { agent, drain_deadline: spec.drain.deadline.0, port: spec.port }
    }
}

impl Clusters {
    /// Adds one.
    pub fn insert(&mut self, namespace: &str, name: &str, cluster: Cluster) {
        self.0.entry(namespace.to_owned()).or_default().insert(name.to_owned(), cluster);
    }

    /// The names of those in a namespace.
    fn of(&self, namespace: &str) -> impl Iterator<Item = &String> {
        self.0.get(namespace).into_iter().flat_map(BTreeMap::keys)
    }

    /// One of them.
    fn get(&self, namespace: &str, name: &str) -> Option<&Cluster> {
        self.0.get(namespace)?.get(name)
    }

    /// The only one in a namespace, which pods without the label belong to.
    #[must_use]
    pub fn only(&self, namespace: &str) -> Option<&str> {
        let mut names = self.of(namespace);
        let first = names.next()?;
        names.next().is_none().then_some(first)
    }
}

impl Injector {
    /// All WorkerClusters and WorkerClasses; `None` before the first read.
    #[must_use]
    pub fn clusters(&self) -> Option<Arc<Clusters>> {
        self.clusters.borrow().clone()
    }

    /// The agent of a pod of this WorkerCluster or WorkerClass, which may not exist.
    #[must_use]
    pub fn sidecar(&self, cluster: Option<&Cluster>) -> Sidecar {
        let mut sidecar = self.installation.clone();
        let Some(Cluster { agent, drain_deadline, port }) = cluster else { return sidecar };
        sidecar.drain_deadline = Some(*drain_deadline);
        if let Some(image) = &agent.image {
            sidecar.image.clone_from(image);
        }
        if let Some(port) = port {
            sidecar.flags.insert("worker-port".to_owned(), port.to_string());
        }
        sidecar.flags.extend(agent.flags.clone());
        if let Some(adapter) = &agent.adapter {
            sidecar.flags.insert("adapter".to_owned(), adapter.clone());
        }
        sidecar.resources.refine(&resources(agent));
        sidecar
    }

    /// The image that the agent of such a pod gets now.
    #[must_use]
    pub fn image(&self, clusters: &Clusters, namespace: &str, cluster: Option<&str>) -> String {
        let cluster = cluster.or(clusters.only(namespace));
        let found = cluster.and_then(|name| clusters.get(namespace, name));
        let image = found.and_then(|cluster| cluster.agent.image.as_ref());
        image.unwrap_or(&self.installation.image).clone()
    }

    /// The decision on a new pod in this namespace.
    pub(super) fn decide(
        &self,
        clusters: &Clusters,
        namespace: &str,
        pod: &Value,
    ) -> InjectionDecision {
        let labels = &pod["metadata"]["labels"];
        if labels[names::INJECT] != "true" {
            return InjectionDecision::Unchanged;
        }
        let named = labels[names::CLUSTER].as_str();
        let mut warnings = Vec::new();
        let Some(name) = named.or(clusters.only(namespace)) else {
            return InjectionDecision::Denied(self.cluster_missing(clusters, namespace));
        };
        let found = clusters.get(namespace, name);
        if found.is_none() {
            warnings.push(self.cluster_unknown(clusters, namespace, name));
        }
        // Needed also if the pod has the label: an earlier round of the same admission may have
        // added it.
        let sidecar = Sidecar { cluster: Some(name.to_owned()), ..self.sidecar(found) };
        match inject(pod, &sidecar) {
            Ok(injection) => {
                warnings.extend(injection.warnings);
                InjectionDecision::Injected { edits: injection.edits, warnings }
            }
            Err(refusal) => InjectionDecision::Denied(refusal.to_string()),
        }
    }

    /// The denial for a pod without the label whose cluster is ambiguous.
    fn cluster_missing(&self, clusters: &Clusters, namespace: &str) -> String {
        let label = names::CLUSTER;
        if self.is_unserved(namespace) {
            return self.unserved(namespace);
        }
        match listed(clusters, namespace) {
            None => format!(
                "namespace {namespace} has no WorkerCluster and no WorkerClass: create one, and \
                 name it in the pod's label {label}"
            ),
            Some(names) => format!(
                "the label {label} is missing, and namespace {namespace} has several \
                 WorkerClusters or WorkerClasses: add {label}: NAME with one of {names}"
            ),
        }
    }

    /// The warning for a pod whose label names an object that does not exist.
    fn cluster_unknown(&self, clusters: &Clusters, namespace: &str, name: &str) -> String {
        if self.is_unserved(namespace) {
            return self.unserved(namespace);
        }
        let there = match listed(clusters, namespace) {
            Some(names) => format!("there is {names}"),
            None => format!("namespace {namespace} has none"),
        };
        format!(
            "WorkerCluster or WorkerClass {name} does not exist yet ({there}): the pod's agent \
             waits for it; create it, or correct the label"
        )
    }

    fn is_unserved(&self, namespace: &str) -> bool {
        !self.served.is_empty() && !self.served.iter().any(|served| served == namespace)
    }

    fn unserved(&self, namespace: &str) -> String {
        let served = self.served.join(", ");
        format!(
            "the coordinator serves {served} and not namespace {namespace}: add it to \
             --watch-namespace"
        )
    }
}

/// The names in a namespace as a text list, if there are any.
fn listed(clusters: &Clusters, namespace: &str) -> Option<String> {
    let all: Vec<&str> = clusters.of(namespace).map(String::as_str).collect();
    let (named, rest) = all.split_at(all.len().min(NAMED_MAX));
    let more = if rest.is_empty() { "" } else { ", …" };
    (!all.is_empty()).then(|| named.join(", ") + more)
}

/// The agents' resources.
fn resources(agent: &AgentSpec) -> Resources {
    let AgentResources { requests, limits } = &agent.resources;
    Resources {
        cpu_request: requests.cpu.clone(),
        cpu_limit: limits.cpu.clone(),
        memory_request: requests.memory.clone(),
        memory_limit: limits.memory.clone(),
        ephemeral_storage_request: requests.ephemeral_storage.clone(),
        ephemeral_storage_limit: limits.ephemeral_storage.clone(),
    }
}

#[cfg(test)]
#[path = "injector_tests.rs"]
mod tests;
