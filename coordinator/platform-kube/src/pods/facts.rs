//! The fields of a pod that the coordinator needs. There are many pods, so nothing else is kept.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use leasehold_coordinator_core::exposure::Entry;
use leasehold_injection::names::{CONTAINER, INJECT, STATUS};
use leasehold_kube_api::names::{
    BUSY_LABEL, DELETION_COST_ANNOTATION, DRAIN_ANNOTATION, GENERATION_ANNOTATION,
    STREAMS_ANNOTATION, TRUE,
};
use leasehold_types::{ClusterName, WorkerKey, WorkerName};

use super::busy_mark::BusyMark;
use super::exposure_annotation;

/// Annotation of a pod: the image for its agent.
const IMAGE_ANNOTATION: &str = "config.leasehold.dev/image";
/// The longest text of a pod that is kept, in bytes: who may create pods decides how long theirs
/// are.
const TEXT_BYTES_MAX: usize = 1024;
/// The most warnings of an injection that are kept.
const WARNINGS_MAX: usize = 3;
/// The default grace period of a pod.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);

/// Names a pod: its namespace and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name within.
    pub name: String,
}

/// The facts of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its namespace and name.
    pub pod: PodName,
    /// Its UID, which distinguishes it from other pods of this name.
    pub uid: String,
    /// Its resource version.
    pub version: u64,
    /// The cluster in its label, if the label exists and is a valid name.
    pub cluster: Option<ClusterName>,
    /// Whether it has the busy label.
    pub busy: bool,
    /// Which annotations keep it from autoscalers.
    pub mark: BusyMark,
    /// The annotation with the reason of its drain.
    pub drain: Option<String>,
    /// The annotation with the digest of its streams at its start.
    pub streams: Option<String>,
    /// The annotation with the most that it may hold, by cluster.
    pub exposures: BTreeMap<ClusterName, Entry>,
    /// The generation in its template, if any.
    pub generation: Option<u64>,
    /// Its deletion cost, if any.
    pub deletion_cost: Option<i32>,
    /// The node that it is scheduled to.
    pub node: Option<String>,
    /// Its addresses, one of each family.
    pub addresses: Vec<IpAddr>,
    /// Its phase.
    pub phase: Phase,
    /// Whether its condition Ready holds.
    pub ready: bool,
    /// When its grace period ends, if its deletion was requested: it is terminating.
    pub deleted_at: Option<Timestamp>,
    /// Whether it has finished: no container runs, and none will start again.
    pub over: bool,
    /// When the object was created.
    pub created_at: Option<Timestamp>,
    /// Its controller.
    pub owner: Option<Owner>,
    /// Its number within its StatefulSet.
    pub ordinal: Option<u32>,
    /// The label of the ReplicaSet's template.
    pub template_hash: Option<String>,
    /// The label of the StatefulSet's template.
    pub revision: Option<String>,
    /// Its grace period.
    pub grace: Duration,
    /// The restarts of all its containers.
    pub restarts: u32,
    /// Whether it asked for an agent.
    pub opted_in: bool,
    /// The image of its agent; `None` without an agent.
    pub agent_image: Option<String>,
    /// The agent's image that the pod itself decides: by its annotation, or by a hand-written
    /// sidecar, which injection does not change.
    pub agent_image_wanted: Option<String>,
    /// The first warnings of its injection.
    pub warnings: Vec<String>,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Some containers were not started yet.
    Pending,
    /// It runs.
    Running,
    /// All containers have succeeded.
    Succeeded,
    /// All containers have ended or will be ended, and one has failed.
    Failed,
    /// Its node does not report it.
    Unknown,
}

/// A pod's controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `ReplicaSet`, `StatefulSet`…
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl PodName {
    /// The name of a worker of a cluster that has a namespace.
    pub fn of(key: &WorkerKey) -> Option<Self> {
        let (namespace, _) = key.cluster.parts();
        Some(Self { namespace: namespace?.to_owned(), name: key.worker.as_str().to_owned() })
    }

    /// The pod's worker in a cluster of its own namespace. A pod is not a worker of other
    /// namespaces, since its author has rights only in its own.
    pub fn key_in(&self, cluster: &ClusterName) -> Option<WorkerKey> {
        if cluster.parts().0 != Some(&self.namespace) {
            return None;
        }
        let worker = WorkerName::present_name(&self.name).ok()?;
        Some(WorkerKey { cluster: cluster.clone(), worker })
    }
}

impl PodFacts {
    /// The facts of a pod; `None` without a name, a namespace or a UID, which the API server never
    /// sends.
    pub fn new(pod: &Pod) -> Option<Self> {
        let namespace = pod.metadata.namespace.clone()?;
        let name = pod.metadata.name.clone()?;
        let uid = pod.metadata.uid.clone()?;
        let labels = pod.labels();
        let annotations = pod.annotations();
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let node = spec.and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
        let phase = Phase::new(status.and_then(|status| status.phase.as_deref()));
        let owner = owner(pod);
        let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let grace = grace.and_then(|seconds| u64::try_from(seconds).ok());
        Some(Self {
            cluster: exposure_annotation::cluster(pod),
            busy: labels.get(BUSY_LABEL).is_some_and(|busy| busy == TRUE),
            mark: BusyMark::read(pod),
            drain: annotations.get(DRAIN_ANNOTATION).map(|text| cut(text)),
            streams: annotations.get(STREAMS_ANNOTATION).map(|text| cut(text)),
            exposures: exposure_annotation::read(pod),
            generation: annotations.get(GENERATION_ANNOTATION).and_then(|text| text.parse().ok()),
            deletion_cost: annotations
                .get(DELETION_COST_ANNOTATION)
                .and_then(|text| text.parse().ok()),
            addresses: status.map(addresses).unwrap_or_default(),
            phase,
            ready: status.is_some_and(is_ready),
            deleted_at: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            over: phase.is_terminal() && status.is_none_or(|status| !may_run(status)),
            created_at: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            ordinal: owner
                .as_ref()
                .filter(|owner| owner.kind == "StatefulSet")
                .and_then(|owner| name.strip_prefix(&owner.name)?.strip_prefix('-')?.parse().ok()),
            template_hash: labels.get("pod-template-hash").cloned(),
            revision: labels.get("controller-revision-hash").cloned(),
            grace: grace.map_or(GRACE_DEFAULT, Duration::from_secs),
            restarts: status.map_or(0, |status| {
                let counts = containers(status).map(|container| container.restart_count);
                counts.map(|count| u32::try_from(count).unwrap_or(0)).sum()
            }),
            opted_in: labels.get(INJECT).is_some_and(|opted_in| opted_in == TRUE),
            agent_image: spec.and_then(agent_image),
            agent_image_wanted: if annotations.contains_key(STATUS) {
                annotations.get(IMAGE_ANNOTATION).map(|text| cut(text))
            } else {
                spec.and_then(agent_image)
            },
            warnings: annotations.get(STATUS).map_or_else(Vec::new, |status| {
                let warnings = leasehold_injection::warnings(status).into_iter();
                warnings.take(WARNINGS_MAX).map(|warning| cut(&warning)).collect()
            }),
            version: version(pod.metadata.resource_version.as_deref()),
            pod: PodName { namespace, name },
            uid,
            node,
            owner,
        })
    }

    /// Whether its deletion was requested.
    pub fn is_terminating(&self) -> bool {
        self.deleted_at.is_some()
    }

    /// Whether controllers count it: it has neither finished nor is terminating.
    pub fn is_active(&self) -> bool {
        !self.over && !self.phase.is_terminal() && !self.is_terminating()
    }

    /// Every worker that it is or was: of the cluster in its label, and of the clusters in its
    /// exposure annotation.
    pub fn workers(&self) -> Vec<WorkerKey> {
        let clusters = self.exposures.keys().chain(&self.cluster);
        let mut keys: Vec<_> = clusters.filter_map(|name| self.pod.key_in(name)).collect();
        keys.sort();
        keys.dedup();
        keys
    }
}

/// A resource version as a number: the store's revision. They are compared only where a list and a
/// watch may be apart by a moment; a text that is not a number counts as the oldest.
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Phase {
    fn new(text: Option<&str>) -> Self {
        match text {
            None | Some("Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) => Self::Unknown,
        }
    }

    /// Whether a pod in this phase never starts a container again.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

fn agent_image(spec: &PodSpec) -> Option<String> {
    let agent =
        spec.init_containers.iter().flatten().find(|container| container.name == CONTAINER)?;
    agent.image.as_deref().map(cut)
}

/// The beginning of a text, if it is longer than any that is written for Leasehold.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

fn owner(pod: &Pod) -> Option<Owner> {
    let owners = pod.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(Owner { kind: owner.kind.clone(), name: owner.name.clone(), uid: owner.uid.clone() })
}

fn addresses(status: &PodStatus) -> Vec<IpAddr> {
    let listed = status.pod_ips.iter().flatten().map(|pod_ip| pod_ip.ip.as_str());
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in listed.chain(status.pod_ip.as_deref()) {
        let Ok(address) = text.parse::<IpAddr>() else { continue };
        if addresses.iter().all(|other| other.is_ipv4() != address.is_ipv4()) {
            addresses.push(address);
        }
    }
    addresses
}

fn is_ready(status: &PodStatus) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.type_ == "Ready")
        .any(|condition| condition.status == "True")
}

/// Whether a container runs, as far as the node has reported. A pod may be Failed while containers
/// run: the pod garbage collector does so for lost nodes.
fn may_run(status: &PodStatus) -> bool {
    containers(status)
        .any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()))
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let groups = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    groups.into_iter().flatten().flatten()
}
