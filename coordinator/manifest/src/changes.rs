//! What differs between two desired states, in the words of the manifests, for the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use leasehold_coordinator_core::desired::{Cluster, Desired, StreamSet};
use leasehold_types::{ClusterName, counted};
use serde_json::Value;

use super::changed_part::changed_part;
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

/// How an object differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Only the later state has it.
    Added,
    /// Both have it, with other content.
    Changed,
    /// Only the earlier state has it.
    Removed,
}

/// The objects that differ, by id; those that are new come last.
#[must_use]
pub fn objects(before: &Desired, after: &Desired) -> Vec<(ObjectId, ChangeKind)> {
    let (old, mut new) = (differing(before, after), differing(after, before));
    let mut objects = Vec::new();
    for id in old {
        let kind = if new.remove(&id) { ChangeKind::Changed } else { ChangeKind::Removed };
        objects.push((id, kind));
    }
    objects.extend(new.into_iter().map(|id| (id, ChangeKind::Added)));
    objects
}

/// The objects that `other` has not, or has with other content.
fn differing(desired: &Desired, other: &Desired) -> BTreeSet<ObjectId> {
    let clusters = desired.clusters.iter();
    let clusters = clusters.filter(|(name, cluster)| other.clusters.get(*name) != Some(*cluster));
    let sets = desired.sets.iter().filter(|(name, set)| other.sets.get(*name) != Some(*set));
    let pipelines = desired.pipelines.iter();
    let pipelines =
        pipelines.filter(|(name, pipeline)| other.pipelines.get(*name) != Some(*pipeline));
    let clusters = clusters.map(|(name, cluster)| cluster_id(name, cluster));
    let sets = sets.map(|(name, _)| ObjectId::Set(name.clone()));
    let pipelines = pipelines.map(|(name, _)| ObjectId::Pipeline(name.clone()));
    clusters.chain(sets).chain(pipelines).collect()
}

/// One phrase, such as `WorkerCluster builds: maxJobs 6 → 3; StreamSet cars removed`. Empty if
/// nothing differs.
#[must_use]
pub fn describe(before: &Desired, after: &Desired) -> String {
    let mut phrases = Vec::new();
    for (id, kind) in objects(before, after) {
        match kind {
            ChangeKind::Added => phrases.push(format!("{id} added")),
            ChangeKind::Removed => phrases.push(format!("{id} removed")),
            ChangeKind::Changed => {
                let mut parts = fields(&spec(before, &id), &spec(after, &id));
                if let ObjectId::Set(name) = &id {
                    parts.extend(streams(&before.sets[name], &after.sets[name]));
                }
                if !parts.is_empty() {
                    phrases.push(format!("{id}: {}", parts.join(", ")));
                }
            }
        }
    }
    if phrases.len() > NAMED_MAX {
        let more = phrases.len() - NAMED_MAX;
        phrases.truncate(NAMED_MAX);
        phrases.push(counted(more, "more object"));
    }
    phrases.join("; ")
}

/// The specification of an object, as it is written; of a set without its streams.
fn spec(desired: &Desired, id: &ObjectId) -> Value {
    let mut manifest = match id {
        ObjectId::Cluster(name) | ObjectId::Class(name) => {
            cluster_manifest(name, &desired.clusters[name])
        }
        ObjectId::Set(name) => set_manifest(name, &desired.sets[name]),
        ObjectId::Pipeline(name) => pipeline_manifest(name, &desired.pipelines[name]),
    };
    manifest["spec"].take()
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
fn streams(old: &StreamSet, new: &StreamSet) -> Option<String> {
    let (old, new) = changed_part(&old.streams, &new.streams);
    if old.is_empty() && new.is_empty() {
        return None;
    }
    let mut left: HashMap<_, _> = old.iter().map(|stream| (&stream.name, stream)).collect();
    let (mut added, mut changed) = (0_usize, 0_usize);
    for stream in new {
        match left.remove(&stream.name) {
            None => added += 1,
            Some(old) => changed += usize::from(old != stream),
        }
    }
    let counts = [(added, "added"), (left.len(), "removed"), (changed, "changed")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, verb)| format!("{count} {verb}")).collect();
    if counts.is_empty() {
        return Some("streams in another order".into());
    }
    Some(format!("streams {}", counts.join(" and ")))
}
