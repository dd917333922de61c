//! Which parts of an object are pods, or what pods are made from.

use leasehold_injection::Step;
use serde_json::Value;

/// A pod, or a template of pods, in an object.
#[derive(Debug)]
pub(crate) struct Pod<'a> {
    /// The path to it from the document's root.
    pub(crate) path: Vec<Step>,
    /// The pod or the template.
    pub(crate) value: &'a Value,
    /// The object that it is in, for messages: `Deployment web`.
    pub(crate) object: String,
    /// The settings that the object has for its pods, where it is a WorkerCluster or a WorkerClass.
    pub(crate) cluster: Option<Cluster>,
}

/// The settings of a WorkerCluster or a WorkerClass for its pods.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its name.
    pub(crate) name: String,
    /// `drain.deadline`.
    pub(crate) drain_deadline: Option<String>,
    /// The port on which its workers take documents.
    pub(crate) port: Option<String>,
}

/// An object of a kind that must have containers has none.
#[derive(Debug)]
pub(crate) struct MissingContainers {
    /// The object, for messages.
    pub(crate) object: String,
    /// Its kind.
    pub(crate) kind: String,
    /// The path to the object from the document's root.
    pub(crate) path: Vec<Step>,
    /// The field that is missing or empty.
    pub(crate) field: String,
}

/// How deep lists may be in lists.
const LISTS_MAX: usize = 8;

/// Kubernetes' own kinds with pods, and where those are.
const KINDS: [(&str, &[&str]); 9] = [
    ("CronJob", &["spec", "jobTemplate", "spec", "template"]),
    ("DaemonSet", &["spec", "template"]),
    ("Deployment", &["spec", "template"]),
    ("Job", &["spec", "template"]),
    ("Pod", &[]),
    ("PodTemplate", &["template"]),
    ("ReplicaSet", &["spec", "template"]),
    ("ReplicationController", &["spec", "template"]),
    ("StatefulSet", &["spec", "template"]),
];

/// The pods and pod templates in a document. Kubernetes' own kinds must have one; an object of any
/// other kind has one where its `spec.template` has containers.
pub(crate) fn pods(root: &Value) -> Result<Vec<Pod<'_>>, MissingContainers> {
    let found = objects(root).into_iter().map(Object::pod);
    found.filter_map(Result::transpose).collect()
}

/// The WorkerClusters and WorkerClasses in a document, with a pod template or without.
pub(crate) fn clusters(root: &Value) -> Vec<Cluster> {
    objects(root).iter().filter_map(Object::cluster).collect()
}

/// An object of a document.
struct Object<'a> {
    path: Vec<Step>,
    kind: &'a str,
    value: &'a Value,
}

/// The objects of a document: itself, or the items of a list. The items of a
/// `DeploymentList` need no kind.
fn objects(root: &Value) -> Vec<Object<'_>> {
    let mut found = Vec::new();
    walk(root, None, Vec::new(), &mut found);
    found
}

fn walk<'a>(
    value: &'a Value,
    kind_in_list: Option<&'a str>,
    path: Vec<Step>,
    found: &mut Vec<Object<'a>>,
) {
    let Some(kind) = value["kind"].as_str().or(kind_in_list) else { return };
    match (kind.strip_suffix("List"), value["items"].as_array()) {
        (Some(kind), Some(items)) if path.len() < 2 * LISTS_MAX => {
            let kind = Some(kind).filter(|kind| !kind.is_empty());
            for (index, item) in items.iter().enumerate() {
                let path = [&*path, &["items".into(), index.into()]].concat();
                walk(item, kind, path, found);
            }
        }
        _ => found.push(Object { path, kind, value }),
    }
}

impl<'a> Object<'a> {
    fn name(&self) -> Option<&'a str> {
        let metadata = &self.value["metadata"];
        metadata["name"].as_str().or_else(|| metadata["generateName"].as_str())
    }

    fn pod(self) -> Result<Option<Pod<'a>>, MissingContainers> {
        let known = KINDS.iter().find(|(kind, _)| *kind == self.kind && self.is_kubernetes());
        let fields = known.map_or(["spec", "template"].as_slice(), |(_, fields)| fields);
        let object = format!("{} {}", self.kind, self.name().unwrap_or("without a name"));
        let value = fields.iter().fold(self.value, |value, field| &value[field]);
        let containers = value["spec"]["containers"].as_array();
        if containers.is_some_and(|containers| !containers.is_empty()) {
            let cluster = self.cluster();
            let steps = fields.iter().map(|field| Step::from(*field));
            let path = self.path.into_iter().chain(steps).collect();
            return Ok(Some(Pod { path, value, object, cluster }));
        }
        match known {
            Some(_) => {
                let field = [fields, &["spec", "containers"]].concat().join(".");
                Err(MissingContainers {
                    object,
                    kind: self.kind.to_owned(),
                    path: self.path,
                    field,
                })
            }
            None => Ok(None),
        }
    }

    /// Whether an object of one of the names in [`KINDS`] is Kubernetes' own: other groups have
    /// kinds of the same names.
    fn is_kubernetes(&self) -> bool {
        let Some(api_version) = self.value["apiVersion"].as_str() else { return true };
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        ["", "apps", "batch", "extensions"].contains(&group)
    }

    fn cluster(&self) -> Option<Cluster> {
        if !["WorkerCluster", "WorkerClass"].contains(&self.kind) {
            return None;
        }
        let spec = &self.value["spec"];
        Some(Cluster {
            name: self.name()?.to_owned(),
            drain_deadline: spec["drain"]["deadline"].as_str().map(str::to_owned),
            port: spec["port"].as_u64().map(|port| port.to_string()),
        })
    }
}
