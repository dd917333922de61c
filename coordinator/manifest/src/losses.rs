//! What a version of the manifests takes away of what is in force, where that is so much that it
//! may be a mistake: a whole object, a whole budget, or a share of an object's streams, workers or
//! nodes.

use std::collections::{BTreeMap, HashSet};

use leasehold_coordinator_core::desired::{Cluster, Desired, Pipeline, StreamSet};

use super::changed_part::changed_part;
use super::changes::cluster_id;
use super::check::ObjectId;
use super::last_good::FileContribution;

/// The field of a loss of streams.
pub(crate) const STREAMS: &str = "spec.streams";

/// One object that loses much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The object.
    pub id: ObjectId,
    /// The file that has defined it, or the list of streams that has shrunk.
    pub file: String,
    /// The field; empty if the whole object goes.
    pub field: &'static str,
    /// What it loses, with its name.
    pub what: String,
}

/// The losses between two states. `gave` says which file has defined each object of `before`.
pub(crate) fn losses(
    before: &Desired,
    after: &Desired,
    gave: &BTreeMap<String, FileContribution>,
) -> Vec<Loss> {
    let mut lost: Vec<(ObjectId, &'static str, String)> = Vec::new();
    for (name, old) in &before.clusters {
        let id = cluster_id(name, old);
        let new = after.clusters.get(name).filter(|new| cluster_id(name, new) == id);
        lost.extend(of_object(&id, new.map(|new| of_cluster(old, new))));
    }
    for (name, old) in &before.sets {
        let new = after.sets.get(name);
        lost.extend(of_object(&ObjectId::Set(name.clone()), new.map(|new| of_set(old, new))));
    }
    for (name, old) in &before.pipelines {
        let new = after.pipelines.get(name).map(|new| of_pipeline(old, new));
        lost.extend(of_object(&ObjectId::Pipeline(name.clone()), new));
    }
    let file = |id: &ObjectId| {
        let found = gave.iter().find(|(_, given)| given.objects.contains(id));
        found.map_or(".", |(file, _)| file).to_owned()
    };
    lost.into_iter().map(|(id, field, what)| Loss { file: file(&id), id, field, what }).collect()
}

/// What an object loses, by field.
type FieldLosses = Vec<(&'static str, String)>;

/// The losses of one object, of which all is lost if it has no successor.
fn of_object(id: &ObjectId, kept: Option<FieldLosses>) -> Vec<(ObjectId, &'static str, String)> {
    let Some(fields) = kept else { return vec![(id.clone(), "", format!("{id} is removed"))] };
    let named = |(field, what)| (id.clone(), field, format!("{id}: {what}"));
    fields.into_iter().map(named).collect()
}

fn of_cluster(old: &Cluster, new: &Cluster) -> FieldLosses {
    let mut lost = Vec::new();
    if old.jobs_max > 0 && new.jobs_max == 0 {
        lost.push(("spec.maxJobs", format!("maxJobs {} → 0", old.jobs_max)));
    }
    if let (Some(old), Some(new)) = (&old.class, &new.class) {
        let (old, new) = (old.workers_max, new.workers_max);
        if is_much(old.saturating_sub(new) as usize, old as usize) {
            lost.push(("spec.maxReplicas", format!("maxReplicas {old} → {new}")));
        }
    }
    lost
}

fn of_set(old: &StreamSet, new: &StreamSet) -> FieldLosses {
    if old.cluster != new.cluster {
        let what = format!("all streams leave cluster {} for {}", old.cluster, new.cluster);
        return vec![("spec.cluster", what)];
    }
    let (before, after) = changed_part(&old.streams, &new.streams);
    let kept: HashSet<_> = after.iter().map(|stream| &stream.name).collect();
    let lost = before.iter().filter(|stream| !kept.contains(&stream.name)).count();
    if is_much(lost, old.streams.len()) {
        vec![(STREAMS, format!("{lost} of {} streams removed", old.streams.len()))]
    } else {
        Vec::new()
    }
}

/// Every node is work of its own, so each one counts.
fn of_pipeline(old: &Pipeline, new: &Pipeline) -> FieldLosses {
    let gone = old.nodes.keys().filter(|node| !new.nodes.contains_key(*node));
    gone.map(|node| ("spec.workers", format!("node {node} removed"))).collect()
}

/// Whether the part is a quarter of the whole or more. A single stream or worker is never much.
fn is_much(part: usize, whole: usize) -> bool {
    part >= 2 && part.saturating_mul(4) >= whole
}
