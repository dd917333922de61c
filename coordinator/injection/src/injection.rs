//! Puts the sidecar into a pod.

use leasehold_types::ClusterName;
use serde_json::{Value, json};

use crate::annotations::{self, PodSettings};
use crate::container;
use crate::draft::{Draft, below, keys, list_at, map_at, named, text_at};
use crate::edit::{Edit, EditOperation, Place, apply, at};
use crate::names::{CLUSTER, CONTAINER, INJECT, LOCAL_VOLUMES, STATUS};
use crate::probes::restart_grace;
use crate::refusal::Refusal;
use crate::removal;
use crate::sidecar::Sidecar;
use crate::status::{LocalVolumes, Status};
use crate::travis;
use crate::volumes;
use crate::warnings;
use crate::worker::{Worker, ports_taken};

/// The annotation of a mirror pod, by which a kubelet shows a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The longest value of a label.
const LABEL_CHARS_MAX: usize = 63;

/// The edits and warnings for a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injection {
    /// The edits in order; each applies to the result of the ones before. Empty without a change.
    pub edits: Vec<Edit>,
    /// Warnings about settings that work but may surprise the user.
    pub warnings: Vec<String>,
}

/// The edits that inject the sidecar into a pod or a pod template, from its root with `metadata`
/// and `spec`. If the pod was injected with other settings, the old injection is removed first.
///
/// A pod with a hand-written sidecar, or with the label that opts out, is not changed.
///
/// # Errors
/// If the pod or the settings are invalid; the error names the field.
pub fn inject(pod: &Value, with: &Sidecar) -> Result<Injection, Refusal> {
    no_nulls(pod)?;
    if let Some(warning) = left_alone(pod)? {
        return Ok(Injection { edits: Vec::new(), warnings: vec![warning] });
    }
    let status = Status::of(pod)?;
    let mut edits = removal::uninject(pod)?;
    let mut bare = pod.clone();
    apply(&edits, &mut bare);
    let mut warnings = Vec::new();
    let config = annotations::read(&bare, with)?;
    let cluster = cluster(pod, with)?;
    let (fresh, added) = build(&bare, &config, with, &cluster, &mut warnings)?;
    match status {
        Some(status) if status.same_as(fresh) && complete(pod, &status) => edits.clear(),
        _ => edits.extend(added),
    }
    Ok(Injection { edits, warnings })
}

/// Rejects null for a label or an annotation that the injection writes: it is invalid, and the
/// removal could not restore it.
fn no_nulls(pod: &Value) -> Result<(), Refusal> {
    for (map, key) in [("labels", CLUSTER), ("annotations", STATUS), ("annotations", LOCAL_VOLUMES)]
    {
        let path = below(&keys(&["metadata", map]), key);
        if at(pod, &path) == Some(&Value::Null) {
            return Err(Refusal::shape(&path, "a string: it is null, remove it"));
        }
    }
    Ok(())
}

/// Why nothing is injected, if so.
fn left_alone(pod: &Value) -> Result<Option<String>, Refusal> {
    if let Some(Value::String(value)) = label(pod, INJECT)?
        && value == "false"
    {
        return Ok(Some(format!("the label {INJECT} is \"false\": nothing is injected")));
    }
    if at(pod, &keys(&["metadata", "annotations", MIRROR])).is_some() {
        let why = "the pod shows a static pod, which its node runs already: nothing is injected";
        return Ok(Some(why.into()));
    }
    let own = list_at(pod, &keys(&["spec", "initContainers"]))?;
    let by_hand = Status::of(pod)?.is_none() && named(own, CONTAINER).is_some();
    Ok(by_hand.then(|| {
        format!(
            "spec.initContainers has {CONTAINER}, but the annotation {STATUS} is missing: the \
             sidecar was written by hand, so nothing is injected"
        )
    }))
}

fn label<'a>(pod: &'a Value, name: &str) -> Result<Option<&'a Value>, Refusal> {
    Ok(map_at(pod, &keys(&["metadata", "labels"]))?.and_then(|labels| labels.get(name)))
}

/// The edits that inject a pod without a sidecar, and the digest of the injection. Adds the
/// warnings, which the pod's annotation has too.
fn build(
    bare: &Value,
    config: &PodSettings,
    with: &Sidecar,
    cluster: &str,
    warnings: &mut Vec<String>,
) -> Result<(crate::digest::Digest, Vec<Edit>), Refusal> {
    check_place(bare)?;
    let worker = Worker::find(bare, config)?;
    let mut draft = Draft::new(bare);
    let mut status = Status::new(&config.image, &worker.name);

    if bare.get("metadata").is_none_or(Value::is_null) {
        draft.want_map(&keys(&["metadata"]))?;
    }
    let labels = keys(&["metadata", "labels"]);
    if label(bare, CLUSTER)?.is_none() {
        draft.want_map(&labels)?;
        draft.insert(below(&labels, CLUSTER), cluster.into());
        status.label = true;
    }
    let first = keys(&["spec", "initContainers"]);
    draft.want_list(&first)?;
    let more = travis::agent_variables(config, worker.own(bare)?);
    let grace = restart_grace(bare);
    let sidecar = container::sidecar(config, with, cluster, grace, more);
    status.digest.add(&sidecar);
    draft.insert(below(&first, 0), sidecar);

    worker.environment(&mut draft, &mut status, config, cluster, warnings)?;
    worker.hook(&mut draft, &mut status, warnings)?;
    worker.probes(&mut draft, &mut status, grace)?;
    worker.mount(&mut draft, &mut status)?;

    let all = keys(&["spec", "volumes"]);
    draft.want_list(&all)?;
    for volume in volumes::volumes(with) {
        status.digest.add(&volume);
        draft.push(&all, volume);
    }
    for secret in pull_secrets(bare, config)? {
        let all = keys(&["spec", "imagePullSecrets"]);
        draft.want_list(&all)?;
        let reference = json!({ "name": secret });
        status.digest.add(&reference);
        draft.push(&all, reference);
        status.pull_secrets.push(secret);
    }
    let annotations = keys(&["metadata", "annotations"]);
    draft.want_map(&annotations)?;
    local_volumes(&mut draft, &mut status)?;
    warnings::all(bare, config, with, warnings);
    ports_taken(bare, config, warnings);
    status.warnings.clone_from(warnings);
    let digest = status.digest;
    let text = status.write(&draft, &worker.path);
    draft.insert(below(&annotations, STATUS), text.into());
    Ok((digest, draft.finish().1))
}

/// Adds the agent's volumes to those that do not keep cluster-autoscaler from removing a node: with
/// its defaults a volume on the node's disk does, also of an idle worker.
fn local_volumes(draft: &mut Draft, status: &mut Status) -> Result<(), Refusal> {
    let path = below(&keys(&["metadata", "annotations"]), LOCAL_VOLUMES);
    let own = text_at(draft.pod(), &path)?.map(str::to_owned);
    let listed: Vec<&str> = own.iter().flat_map(|own| own.split(',')).map(str::trim).collect();
    let missing = volumes::LOCAL.into_iter().filter(|name| !listed.contains(name));
    let added: Vec<String> = missing.map(str::to_owned).collect();
    status.digest.add(&LOCAL_VOLUMES.into());
    if added.is_empty() {
        return Ok(());
    }
    let before = own.as_deref().filter(|own| !own.is_empty());
    let parts = before.into_iter().chain(added.iter().map(String::as_str));
    let value = parts.collect::<Vec<_>>().join(",");
    if own.is_some() {
        draft.change(path, EditOperation::Replace(value.into()));
    } else {
        draft.insert(path, value.into());
    }
    status.local_volumes = LocalVolumes { added, is_new: own.is_none() };
    Ok(())
}

/// The Secrets of the agent's image that the pod does not name itself.
fn pull_secrets(bare: &Value, config: &PodSettings) -> Result<Vec<String>, Refusal> {
    let there = list_at(bare, &keys(&["spec", "imagePullSecrets"]))?;
    let names = config.pull_secrets.iter().filter(|name| named(there, name).is_none());
    Ok(names.cloned().collect())
}

/// Checks that the pod runs on Linux, and has no container or volume with a name of the injection.
fn check_place(bare: &Value) -> Result<(), Refusal> {
    map_at(bare, &[])?;
    map_at(bare, &keys(&["metadata"]))?;
    let spec = keys(&["spec"]);
    map_at(bare, &spec)?.ok_or(Refusal::shape(&spec, "a map"))?;
    for path in [&["spec", "os", "name"], &["spec", "nodeSelector", "kubernetes.io/os"]] {
        let path = keys(path);
        if at(bare, &path).and_then(Value::as_str) == Some("windows") {
            return Err(Refusal::shape(&path, "linux: the agent does not run on Windows"));
        }
    }
    let volumes = keys(&["spec", "volumes"]);
    for name in volumes::NAMES {
        if let Some(index) = named(list_at(bare, &volumes)?, name) {
            let field = Place(&below(&volumes, index)).to_string();
            return Err(Refusal::Taken { field, why: "its name is that of a volume of the agent" });
        }
    }
    let containers = keys(&["spec", "containers"]);
    match named(list_at(bare, &containers)?, CONTAINER) {
        Some(index) => Err(Refusal::Taken {
            field: Place(&below(&containers, index)).to_string(),
            why: "its name is the sidecar's",
        }),
        None => Ok(()),
    }
}

/// The name of the WorkerCluster or WorkerClass: from the label, or else the given one.
fn cluster(pod: &Value, with: &Sidecar) -> Result<String, Refusal> {
    let labelled = text_at(pod, &below(&keys(&["metadata", "labels"]), CLUSTER))?;
    let name = labelled.or(with.cluster.as_deref()).ok_or(Refusal::NoCluster)?;
    ClusterName::new(name).map_err(|why| Refusal::Cluster(why.to_string()))?;
    if name.len() <= LABEL_CHARS_MAX && !name.contains('/') {
        Ok(name.into())
    } else {
        Err(Refusal::Cluster(format!(
            "invalid label value {name:?}: use at most {LABEL_CHARS_MAX} characters and no slash"
        )))
    }
}

/// Whether the pod still has every part of the injection.
fn complete(pod: &Value, status: &Status) -> bool {
    let list = |path: &[&str]| list_at(pod, &keys(path)).unwrap_or_default();
    let containers = list(&["spec", "containers"]);
    let worker = named(containers, &status.container).map(|index| &containers[index]);
    let has = |field: &str, name: &str| {
        let list = worker.and_then(|container| container.get(field)).and_then(Value::as_array);
        list.is_some_and(|list| named(list, name).is_some())
    };
    let [.., bin] = volumes::NAMES;
    named(list(&["spec", "initContainers"]), CONTAINER) == Some(0)
        && volumes::NAMES.iter().all(|name| named(list(&["spec", "volumes"]), name).is_some())
        && status.env.iter().all(|name| has("env", name))
        && has("volumeMounts", bin)
        && worker.is_some_and(|worker| removal::hook_there(worker, status.hook))
}
