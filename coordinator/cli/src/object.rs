//! Which parts of an object are pods, or what pods are made from.

use leasehold_injection::Step;

use crate::yaml::{Kind, Node, look};

/// A pod, or a template of pods, in an object.
#[derive(Debug)]
pub(crate) struct Pod<'a> {
    /// The way to it from the document's root.
    pub(crate) path: Vec<Step>,
    /// The node itself.
    pub(crate) node: &'a Node,
    /// Whose it is, as in `Deployment web`.
    pub(crate) of: String,
    /// The object is a WorkerCluster or a WorkerClass: what it says itself of its pods.
    pub(crate) cluster: Option<Cluster>,
}

/// What a WorkerCluster or a WorkerClass says of its pods.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its name.
    pub(crate) name: String,
    /// How long a drain may take.
    pub(crate) deadline: Option<String>,
    /// The port that its workers take documents at.
    pub(crate) port: Option<String>,
}

/// An object that must have a template, and has none that makes sense.
#[derive(Debug)]
pub(crate) struct NoTemplate {
    /// Whose it is.
    pub(crate) of: String,
    /// The field that is missing.
    pub(crate) field: String,
    /// The line of the object.
    pub(crate) line: Option<usize>,
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

/// The pods in a document without aliases. An object that Kubernetes would refuse for want of a
/// template is an error; objects of all other kinds have a pod where `spec.template` is one.
pub(crate) fn pods(root: &Node) -> Result<Vec<Pod<'_>>, NoTemplate> {
    let mut found = Vec::new();
    walk(root, None, &[], &mut found)?;
    Ok(found)
}

fn walk<'a>(
    object: &'a Node,
    kind_if_none: Option<&str>,
    path: &[Step],
    found: &mut Vec<Pod<'a>>,
) -> Result<(), NoTemplate> {
    let text = |node: Option<&'a Node>| node.and_then(Node::text);
    let own = text(look(object, "kind"));
    let Some(kind) = own.or(kind_if_none) else { return Ok(()) };
    let below = |node: &'a Node, key: &str| look(node, key);
    if let (Some(of), Some(items)) = (kind.strip_suffix("List"), below(object, "items")) {
        let Kind::List(items) = &items.kind else { return Ok(()) };
        if path.len() >= 2 * LISTS_MAX {
            return Ok(());
        }
        for (index, item) in items.iter().enumerate() {
            let path = [path, &["items".into(), index.into()]].concat();
            walk(item, Some(of).filter(|of| !of.is_empty()), &path, found)?;
        }
        return Ok(());
    }
    let metadata = below(object, "metadata");
    let name = metadata.and_then(|it| text(look(it, "name")).or(text(look(it, "generateName"))));
    let of = format!("{kind} {}", name.unwrap_or("without a name"));
    let group = text(below(object, "apiVersion"));
    let known = KINDS.iter().find(|(known, _)| *known == kind && is_kubernetes(group));
    let fields = known.map_or(["spec", "template"].as_slice(), |(_, fields)| fields);
    let node = fields.iter().try_fold(object, |node, field| look(node, field));
    let has_containers = node.is_some_and(|node| {
        let containers = look(node, "spec").and_then(|spec| look(spec, "containers"));
        containers.is_some_and(|it| matches!(&it.kind, Kind::List(items) if !items.is_empty()))
    });
    match (node.filter(|_| has_containers), known) {
        (Some(node), _) => {
            let steps = fields.iter().map(|field| Step::from(*field));
            let cluster = cluster(object, kind);
            let path = path.iter().cloned().chain(steps).collect();
            found.push(Pod { path, node, of, cluster });
            Ok(())
        }
        (None, Some((_, fields))) => {
            let field = fields.iter().chain(&["spec", "containers"]).copied().collect::<Vec<_>>();
            let line = object.at.as_ref().map(|place| place.line);
            Err(NoTemplate { of, field: field.join("."), line })
        }
        (None, None) => Ok(()),
    }
}

/// The WorkerClusters and WorkerClasses in a document without aliases, with a template or without.
pub(crate) fn clusters(root: &Node) -> Vec<Cluster> {
    let mut found = Vec::new();
    let mut open = vec![(root, None, 0)];
    while let Some((object, kind_if_none, depth)) = open.pop() {
        let Some(kind) = look(object, "kind").and_then(Node::text).or(kind_if_none) else {
            continue;
        };
        match (kind.strip_suffix("List"), look(object, "items").map(|items| &items.kind)) {
            (Some(of), Some(Kind::List(items))) if depth < LISTS_MAX => {
                let of = Some(of).filter(|of| !of.is_empty());
                open.extend(items.iter().map(|item| (item, of, depth + 1)));
            }
            _ => found.extend(cluster(object, kind)),
        }
    }
    found
}

/// What an object says of its workers; none where it is no cluster.
fn cluster(object: &Node, kind: &str) -> Option<Cluster> {
    if !["WorkerCluster", "WorkerClass"].contains(&kind) {
        return None;
    }
    let text = |node: Option<&Node>| node.and_then(Node::text).map(str::to_owned);
    let metadata = look(object, "metadata")?;
    let name = text(look(metadata, "name")).or_else(|| text(look(metadata, "generateName")))?;
    let spec = look(object, "spec");
    let drain = spec.and_then(|spec| look(spec, "drain"));
    let deadline = text(drain.and_then(|drain| look(drain, "deadline")));
    let port = text(spec.and_then(|spec| look(spec, "port")));
    Some(Cluster { name, deadline, port })
}

/// Whether an object of one of the names in [`KINDS`] is Kubernetes' own: others have kinds of the
/// same names.
fn is_kubernetes(api_version: Option<&str>) -> bool {
    let Some(api_version) = api_version else { return true };
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    ["", "apps", "batch", "extensions"].contains(&group)
}
