//! What differs between two desired states, in the words of the manifests, for the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Cluster, Desired, StreamSet};
use leasehold_types::ClusterName;
use serde_json::Value;

use super::check::ObjectId;
use super::last_good::{cluster_manifest, pipeline_manifest, set_manifest};

/// Changes that are named; the others are counted.
const NAMED_MAX: usize = 20;

/// The id of a cluster or class.
pub(crate) fn cluster_id(name: &ClusterName, cluster: &Cluster) -> ObjectId {
    match cluster.class {
        Some(_) => ObjectId::Class(name.clone()),
        None => ObjectId::Cluster(name.clone()),
    }
}

/// One phrase, such as `WorkerCluster builds: maxJobs 6 → 3; StreamSet cars removed`. Empty if
/// nothing differs.
#[must_use]
pub fn describe(before: &Desired, after: &Desired) -> String {
    let mut phrases = Vec::new();
    let (old, new) = (specs(before, after), specs(after, before));
    for (id, old) in &old {
        match new.get(id) {
            None => phrases.push(format!("{id} removed")),
            Some(new) => {
                let mut parts = fields(old, new);
                if let ObjectId::Set(name) = id {
                    parts.extend(streams(&before.sets[name], &after.sets[name]));
                }
                if !parts.is_empty() {
                    phrases.push(format!("{id}: {}", parts.join(", ")));
                }
            }
        }
    }
    let added = new.keys().filter(|id| !old.contains_key(*id));
    phrases.extend(added.map(|id| format!("{id} added")));
    if phrases.len() > NAMED_MAX {
        let more = phrases.len() - NAMED_MAX;
        phrases.truncate(NAMED_MAX);
        phrases.push(format!("{more} more objects"));
    }
    phrases.join("; ")
}

/// The specification of each object that `other` has not, or has otherwise, as it is written; of a
/// set without its streams.
fn specs(desired: &Desired, other: &Desired) -> BTreeMap<ObjectId, Value> {
    let mut specs = BTreeMap::new();
    let mut add = |id: ObjectId, mut manifest: Value| {
        specs.insert(id, manifest["spec"].take());
    };
    for (name, cluster) in &desired.clusters {
        if other.clusters.get(name) != Some(cluster) {
            add(cluster_id(name, cluster), cluster_manifest(name, cluster));
        }
    }
    for (name, set) in &desired.sets {
        if other.sets.get(name) != Some(set) {
            add(ObjectId::Set(name.clone()), set_manifest(name, set));
        }
    }
    for (name, pipeline) in &desired.pipelines {
        if other.pipelines.get(name) != Some(pipeline) {
            add(ObjectId::Pipeline(name.clone()), pipeline_manifest(name, pipeline));
        }
    }
    specs
}

/// The fields that differ, each with its old and new value.
fn fields(old: &Value, new: &Value) -> Vec<String> {
    let [old, new] = [old, new].map(|spec| {
        let mut leaves = BTreeMap::new();
        flatten("", spec, &mut leaves);
        leaves
    });
    let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
    let differs = names.filter(|name| old.get(*name) != new.get(*name));
    let shown = |value: Option<&Value>| match value {
        None => "unset".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    differs
        .map(|name| format!("{name} {} → {}", shown(old.get(name)), shown(new.get(name))))
        .collect()
}

/// The values of a specification by the paths of their fields.
fn flatten(path: &str, value: &Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, leaves);
            }
        }
        value => {
            leaves.insert(path.to_owned(), value.clone());
        }
    }
}

/// How many streams of a set were added, removed and changed.
fn streams(old: &Arc<StreamSet>, new: &Arc<StreamSet>) -> Option<String> {
    if Arc::ptr_eq(old, new) || old.streams == new.streams {
        return None;
    }
    let mut left: HashMap<_, _> = old.streams.iter().map(|stream| (&stream.name, stream)).collect();
    let (mut added, mut changed) = (0_usize, 0_usize);
    for stream in &new.streams {
        match left.remove(&stream.name) {
            None => added += 1,
            Some(old) => changed += usize::from(old != stream),
        }
    }
    let counts = [(added, "added"), (left.len(), "removed"), (changed, "changed")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, verb)| format!("{count} {verb}")).collect();
    match counts.is_empty() {
        true => Some("streams in another order".into()),
        false => Some(format!("streams {}", counts.join(" and "))),
    }
}
