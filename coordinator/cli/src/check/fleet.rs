//! The fleet: all WorkerClusters and WorkerClasses, and all pods that are workers or have asked to
//! be, read once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::ListParams;
use leasehold_injection::names::{CONTAINER, INJECT, STATUS};
use leasehold_kube_api::names::CLUSTER_LABEL;
use leasehold_kube_api::resources::{WorkerClass, WorkerCluster};
use leasehold_manifest::ManifestDuration;
use leasehold_manifest::manifest::{API_VERSION, DrainSpec};
use serde_json::Value;

use super::cluster::{Cluster, Trouble};
use super::installation::Installation;
use super::manifests::{list, text};

/// Pods that one command names.
const NAMED_MAX: usize = 10;

/// What runs, in the namespaces that are looked at.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    /// The WorkerClusters, and after them the WorkerClasses: of two of one name the first has it.
    pub(super) clusters: Result<Vec<Value>, Trouble>,
    /// The pods that are workers or have asked for a sidecar, but for those that are over or about
    /// to end.
    pub(super) pods: Result<Vec<Value>, Trouble>,
    /// The namespaces that are looked at; all where it is empty.
    pub(super) namespaces: Vec<String>,
}

impl Fleet {
    /// Reads it, in the namespaces that the user names; `all` means those that are served.
    pub(super) async fn read(
        cluster: &Cluster,
        installation: &Installation,
        wanted: &[String],
    ) -> Self {
        let namespaces = match wanted.iter().any(|name| name == "all") {
            true => installation.served.clone(),
            false => wanted.to_vec(),
        };
        let folder = format!("/apis/{API_VERSION}");
        let mut clusters = Ok(Vec::new());
        for plural in [WorkerCluster::PLURAL, WorkerClass::PLURAL] {
            let of_kind = (&*folder, plural);
            let found = everywhere(cluster, &namespaces, of_kind, &ListParams::default()).await;
            clusters = clusters.and_then(|all| found.map(|found| [all, found].concat()));
        }
        let pods = match pods(cluster, &namespaces).await {
            Ok(mut pods) => {
                pods.retain(is_there);
                Ok(pods)
            }
            Err(trouble) => Err(trouble),
        };
        Self { clusters, pods, namespaces }
    }

    /// The WorkerCluster or WorkerClass of a pod; none where there is none of the name that its
    /// label says.
    pub(super) fn cluster_of(&self, pod: &Value) -> Option<&Value> {
        let clusters = self.clusters.as_ref().ok()?;
        let (namespace, label) =
            (&pod["metadata"]["namespace"], &pod["metadata"]["labels"][CLUSTER_LABEL]);
        clusters.iter().find(|it| {
            it["metadata"]["namespace"] == *namespace && it["metadata"]["name"] == *label
        })
    }

    /// The namespaces that have a WorkerCluster or a WorkerClass.
    pub(super) fn namespaces_of_clusters(&self) -> BTreeSet<String> {
        let clusters = self.clusters.iter().flatten();
        clusters.map(|it| text(&it["metadata"]["namespace"]).to_owned()).collect()
    }
}

/// Objects of all these namespaces; of all there are where none is named.
pub(super) async fn everywhere(
    cluster: &Cluster,
    namespaces: &[String],
    (folder, plural): (&str, &str),
    wanted: &ListParams,
) -> Result<Vec<Value>, Trouble> {
    if namespaces.is_empty() {
        return cluster.list(&format!("{folder}/{plural}"), wanted.clone()).await;
    }
    let mut all = Vec::new();
    for namespace in namespaces {
        let folder = format!("{folder}/namespaces/{namespace}/{plural}");
        all.extend(cluster.list(&folder, wanted.clone()).await?);
    }
    Ok(all)
}

async fn pods(cluster: &Cluster, namespaces: &[String]) -> Result<Vec<Value>, Trouble> {
    let pods = ("/api/v1", "pods");
    let labelled = ListParams::default().labels(CLUSTER_LABEL);
    let mut all = everywhere(cluster, namespaces, pods, &labelled).await?;
    let asking = ListParams::default().labels(&format!("{INJECT}=true,!{CLUSTER_LABEL}"));
    all.extend(everywhere(cluster, namespaces, pods, &asking).await?);
    Ok(all)
}

fn is_there(pod: &Value) -> bool {
    let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !is_over && pod["metadata"]["deletionTimestamp"].is_null()
}

/// The sidecar of a pod.
pub(super) fn sidecar(pod: &Value) -> Option<&Value> {
    let spec = &pod["spec"];
    let containers = list(&spec["initContainers"]).chain(list(&spec["containers"]));
    containers.into_iter().find(|container| container["name"] == CONTAINER)
}

/// Whether a pod has asked for a sidecar.
pub(super) fn asks(pod: &Value) -> bool {
    pod["metadata"]["labels"][INJECT] == "true"
}

/// Whether a pod's sidecar was injected as it asked; one that was written by hand is left alone.
pub(super) fn is_injected(pod: &Value) -> bool {
    asks(pod) && pod["metadata"]["annotations"][STATUS].is_string()
}

/// An object's namespace and name, as `default/builds`.
pub(super) fn place(object: &Value) -> String {
    let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
    format!("{}/{}", text(namespace), text(name))
}

/// The kind of a WorkerCluster or a WorkerClass.
pub(super) fn kind_of(cluster: &Value) -> &'static str {
    match cluster["kind"] == WorkerClass::KIND {
        true => WorkerClass::KIND,
        false => WorkerCluster::KIND,
    }
}

/// The drain deadline of a WorkerCluster or a WorkerClass.
pub(super) fn drain_deadline(cluster: &Value) -> Duration {
    let given = cluster["spec"]["drain"]["deadline"].clone();
    let deadline: Option<ManifestDuration> = serde_json::from_value(given).ok();
    deadline.unwrap_or(DrainSpec::default().deadline).0
}

/// What made a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Workload {
    pub(super) namespace: String,
    /// In lower case: `deployment`; `pod` for one that nothing made.
    pub(super) kind: String,
    pub(super) name: String,
}

impl Workload {
    /// The one of a pod.
    pub(super) fn of(pod: &Value) -> Self {
        let metadata = &pod["metadata"];
        let namespace = text(&metadata["namespace"]).to_owned();
        let owner = list(&metadata["ownerReferences"]).find(|owner| owner["controller"] == true);
        let Some(owner) = owner else {
            return Self { namespace, kind: "pod".into(), name: text(&metadata["name"]).into() };
        };
        let (kind, name) = (text(&owner["kind"]).to_lowercase(), text(&owner["name"]));
        // A Deployment's ReplicaSets are named for it and for the template.
        let template = text(&metadata["labels"]["pod-template-hash"]);
        let deployment = name.strip_suffix(template).and_then(|stem| stem.strip_suffix('-'));
        match deployment.filter(|_| kind == "replicaset" && !template.is_empty()) {
            Some(name) => Self { namespace, kind: "deployment".into(), name: name.into() },
            None => Self { namespace, kind, name: name.into() },
        }
    }

    /// As kubectl takes it, with its namespace: `deployment/web in default`.
    pub(super) fn words(&self) -> String {
        format!("{}/{} in {}", self.kind, self.name, self.namespace)
    }

    /// The command that has its pods made anew, each after its drain.
    pub(super) fn renew(&self, pods: &[&Value]) -> String {
        let Self { namespace, kind, name } = self;
        match kind.as_str() {
            "deployment" | "statefulset" | "daemonset" => {
                format!("kubectl -n {namespace} rollout restart {kind}/{name}")
            }
            _ => {
                let names = pods.iter().take(NAMED_MAX).map(|pod| text(&pod["metadata"]["name"]));
                let names: Vec<&str> = names.collect();
                format!("kubectl -n {namespace} delete pods {}", names.join(" "))
            }
        }
    }

    /// What to say to that command.
    pub(super) fn renewal(&self) -> &'static str {
        match self.kind.as_str() {
            "pod" => "delete the pod, which drains it first, and make it anew from its manifest",
            _ => "have its pods made anew, each is drained first",
        }
    }
}

/// Pods by what made them.
pub(super) fn by_workload<'a>(
    pods: impl Iterator<Item = &'a Value>,
) -> BTreeMap<Workload, Vec<&'a Value>> {
    let mut all: BTreeMap<Workload, Vec<&Value>> = BTreeMap::new();
    for pod in pods {
        all.entry(Workload::of(pod)).or_default().push(pod);
    }
    all
}

/// Pods in words: `the pod default/a`, or `3 pods, default/a among them`.
pub(super) fn some(pods: &[&Value]) -> String {
    match pods {
        [] => "no pod".into(),
        [one] => format!("the pod {}", place(one)),
        [first, ..] => format!("{} pods, {} among them", pods.len(), place(first)),
    }
}
