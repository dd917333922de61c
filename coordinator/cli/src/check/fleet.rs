//! The fleet, read once: all WorkerClusters, WorkerClasses, and pods that are workers or ask for a
//! sidecar.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt};
use leasehold_injection::names::{CONTAINER, INJECT, STATUS};
use leasehold_kube_api::names::CLUSTER_LABEL;
use leasehold_kube_api::resources::{WorkerClass, WorkerCluster};
use leasehold_manifest::ManifestDuration;
use leasehold_manifest::manifest::{API_VERSION, DrainSpec};
use serde_json::{Value, json};

use super::api::{ApiClient, ApiError};
use super::expected::{list, text};
use super::installation::Installation;
use super::report::patch;

/// At most this many pods are named in one command.
const LISTED_MAX: usize = 10;

/// Clusters and workers in the checked namespaces.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    /// The WorkerClusters, then the WorkerClasses: of two with one name the first owns the pods.
    pub(super) clusters: Result<Vec<Value>, ApiError>,
    /// The pods that are workers or ask for a sidecar, without ended and terminating ones.
    pub(super) pods: Result<Vec<Value>, ApiError>,
    /// The checked namespaces; all if it is empty.
    pub(super) namespaces: Vec<String>,
}

impl Fleet {
    /// Reads the fleet in the wanted namespaces; `all` stands for those that are served.
    pub(super) async fn read(
        api: &ApiClient,
        installation: &Installation,
        wanted: &[String],
    ) -> Self {
        let namespaces = if wanted.iter().any(|name| name == "all") {
            installation.served.clone()
        } else {
            wanted.to_vec()
        };
        let folder = format!("/apis/{API_VERSION}");
        let mut clusters = Ok(Vec::new());
        for plural in [WorkerCluster::plural(&()), WorkerClass::plural(&())] {
            let of_kind = (&*folder, &*plural);
            let found = list_in(api, &namespaces, of_kind, &ListParams::default()).await;
            clusters = clusters.and_then(|all| found.map(|found| [all, found].concat()));
        }
        let pods = match pods(api, &namespaces).await {
            Ok(mut pods) => {
                pods.retain(is_active);
                Ok(pods)
            }
            Err(error) => Err(error),
        };
        Self { clusters, pods, namespaces }
    }

    /// The WorkerCluster or WorkerClass that a pod's label names, if it exists.
    pub(super) fn cluster_of(&self, pod: &Value) -> Option<&Value> {
        let clusters = self.clusters.as_ref().ok()?;
        let (namespace, label) =
            (&pod["metadata"]["namespace"], &pod["metadata"]["labels"][CLUSTER_LABEL]);
        clusters.iter().find(|cluster| {
            cluster["metadata"]["namespace"] == *namespace && cluster["metadata"]["name"] == *label
        })
    }

    /// The namespaces that have a WorkerCluster or a WorkerClass.
    pub(super) fn namespaces_of_clusters(&self) -> BTreeSet<String> {
        let clusters = self.clusters.iter().flatten();
        clusters.map(|cluster| text(&cluster["metadata"]["namespace"]).to_owned()).collect()
    }
}

/// The objects in the given namespaces; in all namespaces if the list is empty.
pub(super) async fn list_in(
    api: &ApiClient,
    namespaces: &[String],
    (folder, plural): (&str, &str),
    wanted: &ListParams,
) -> Result<Vec<Value>, ApiError> {
    if namespaces.is_empty() {
        return api.list(&format!("{folder}/{plural}"), wanted.clone()).await;
    }
    let mut all = Vec::new();
    for namespace in namespaces {
        let folder = format!("{folder}/namespaces/{namespace}/{plural}");
        all.extend(api.list(&folder, wanted.clone()).await?);
    }
    Ok(all)
}

async fn pods(api: &ApiClient, namespaces: &[String]) -> Result<Vec<Value>, ApiError> {
    let pods = ("/api/v1", "pods");
    let labelled = ListParams::default().labels(CLUSTER_LABEL);
    let mut all = list_in(api, namespaces, pods, &labelled).await?;
    let asking = ListParams::default().labels(&format!("{INJECT}=true,!{CLUSTER_LABEL}"));
    all.extend(list_in(api, namespaces, pods, &asking).await?);
    Ok(all)
}

fn is_active(pod: &Value) -> bool {
    let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !is_over && pod["metadata"]["deletionTimestamp"].is_null()
}

/// The sidecar of a pod.
pub(super) fn sidecar(pod: &Value) -> Option<&Value> {
    let spec = &pod["spec"];
    let containers = list(&spec["initContainers"]).chain(list(&spec["containers"]));
    containers.into_iter().find(|container| container["name"] == CONTAINER)
}

/// Whether a pod's label asks for a sidecar.
pub(super) fn wants_sidecar(pod: &Value) -> bool {
    pod["metadata"]["labels"][INJECT] == "true"
}

/// Whether a pod's sidecar was injected, not written by hand.
pub(super) fn is_injected(pod: &Value) -> bool {
    wants_sidecar(pod) && pod["metadata"]["annotations"][STATUS].is_string()
}

/// Whether a label selector of an object selects these labels; a missing one selects none.
pub(super) fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = serde_json::from_value::<Option<LabelSelector>>(selector.clone());
    let selector = selector.ok().flatten().and_then(|selector| Selector::try_from(selector).ok());
    let labels = serde_json::from_value(labels.clone()).unwrap_or_default();
    selector.is_some_and(|selector| selector.matches(&labels))
}

/// An object's namespace and name, as `default/builds`.
pub(super) fn place(object: &Value) -> String {
    let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
    format!("{}/{}", text(namespace), text(name))
}

/// The kind of a WorkerCluster or a WorkerClass.
pub(super) fn kind_of(cluster: &Value) -> &'static str {
    if cluster["kind"] == WorkerClass::KIND { WorkerClass::KIND } else { WorkerCluster::KIND }
}

/// The drain deadline of a WorkerCluster or a WorkerClass.
pub(super) fn drain_deadline(cluster: &Value) -> Duration {
    let given = cluster["spec"]["drain"]["deadline"].clone();
    let deadline: Option<ManifestDuration> = serde_json::from_value(given).ok();
    deadline.unwrap_or(DrainSpec::default().deadline).0
}

/// The command that changes the pod template of a WorkerCluster or a WorkerClass.
pub(super) fn patch_template(cluster: &Value, template: &Value) -> String {
    let metadata = &cluster["metadata"];
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    let body = json!({ "spec": { "template": template } });
    let kind = kind_of(cluster).to_lowercase();
    patch(&format!("{kind}/{name} -n {namespace}"), "merge", &body)
}

/// The workload that a pod belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Workload {
    pub(super) namespace: String,
    /// In lower case: `deployment`; `pod` for a pod without a controller.
    pub(super) kind: String,
    pub(super) name: String,
}

impl Workload {
    /// The workload of a pod.
    pub(super) fn of(pod: &Value) -> Self {
        let metadata = &pod["metadata"];
        let namespace = text(&metadata["namespace"]).to_owned();
        let owner = list(&metadata["ownerReferences"]).find(|owner| owner["controller"] == true);
        let Some(owner) = owner else {
            return Self { namespace, kind: "pod".into(), name: text(&metadata["name"]).into() };
        };
        let (kind, name) = (text(&owner["kind"]).to_lowercase(), text(&owner["name"]));
        // A ReplicaSet of a Deployment is named DEPLOYMENT-HASH.
        let template = text(&metadata["labels"]["pod-template-hash"]);
        let deployment = name.strip_suffix(template).and_then(|stem| stem.strip_suffix('-'));
        match deployment.filter(|_| kind == "replicaset" && !template.is_empty()) {
            Some(name) => Self { namespace, kind: "deployment".into(), name: name.into() },
            None => Self { namespace, kind, name: name.into() },
        }
    }

    /// For messages: `deployment/web in default`.
    pub(super) fn words(&self) -> String {
        format!("{}/{} in {}", self.kind, self.name, self.namespace)
    }

    /// Whether the coordinator created it for a WorkerCluster or WorkerClass of that name.
    pub(super) fn is_created_for(&self, cluster: &Value) -> bool {
        matches!(self.kind.as_str(), "deployment" | "statefulset")
            && cluster["spec"]["template"].is_object()
            && cluster["metadata"]["name"] == *self.name
    }

    /// The command that changes its pod template; `None` if it has none that can be changed.
    pub(super) fn patch_template(&self, template: &Value) -> Option<String> {
        let Self { namespace, kind, name } = self;
        match kind.as_str() {
            "deployment" | "statefulset" | "daemonset" | "replicaset" | "replicationcontroller" => {
                let body = json!({ "spec": { "template": template } });
                Some(patch(&format!("{kind}/{name} -n {namespace}"), "strategic", &body))
            }
            _ => None,
        }
    }

    /// The command that replaces its pods, each after its drain.
    pub(super) fn restart_command(&self, pods: &[&Value]) -> String {
        let Self { namespace, kind, name } = self;
        match kind.as_str() {
            "deployment" | "statefulset" | "daemonset" => {
                format!("kubectl -n {namespace} rollout restart {kind}/{name}")
            }
            _ => {
                let names = pods.iter().take(LISTED_MAX).map(|pod| text(&pod["metadata"]["name"]));
                let names: Vec<&str> = names.collect();
                format!("kubectl -n {namespace} delete pods {}", names.join(" "))
            }
        }
    }

    /// What that command does, for messages.
    pub(super) fn restart_words(&self) -> &'static str {
        match self.kind.as_str() {
            "pod" => "delete the pod, which drains it first, and create it again from its manifest",
            _ => "restart its pods; each is drained first",
        }
    }
}

/// Pods by their workload.
pub(super) fn by_workload<'a>(
    pods: impl Iterator<Item = &'a Value>,
) -> BTreeMap<Workload, Vec<&'a Value>> {
    let mut all: BTreeMap<Workload, Vec<&Value>> = BTreeMap::new();
    for pod in pods {
        all.entry(Workload::of(pod)).or_default().push(pod);
    }
    all
}

/// Pods for messages: `the pod default/a`, or `3 pods, for example default/a`.
pub(super) fn describe_pods(pods: &[&Value]) -> String {
    match pods {
        [] => "no pod".into(),
        [one] => format!("the pod {}", place(one)),
        [first, ..] => format!("{} pods, for example {}", pods.len(), place(first)),
    }
}
