//! How one desired state differs from another, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_manifest::ObjectId;
use leasehold_proto::admin::v1::{ObjectChange, ObjectChangeKind};
use leasehold_types::ClusterName;

/// What would change.
pub(super) struct ManifestChanges {
    /// The objects.
    pub(super) objects: Vec<ObjectChange>,
    /// The clusters with a budget, before or after, that are among them or have sets that are.
    pub(super) clusters: BTreeSet<ClusterName>,
}

/// The changes from one desired state to another.
pub(super) fn of(before: &Desired, after: &Desired) -> ManifestChanges {
    let cluster_id = |name: &ClusterName, cluster: &Cluster| match cluster.class {
        Some(_) => ObjectId::Class(name.clone()),
        None => ObjectId::Cluster(name.clone()),
    };
    let clusters = changed(&before.clusters, &after.clusters, cluster_id);
    let sets = changed(&before.sets, &after.sets, |name, _| ObjectId::Set(name.clone()));
    let pipelines =
        changed(&before.pipelines, &after.pipelines, |name, _| ObjectId::Pipeline(name.clone()));
    let named = clusters.iter().filter_map(|(_, id)| match id {
        ObjectId::Cluster(name) => Some(name.clone()),
        ObjectId::Class(_) | ObjectId::Set(_) | ObjectId::Pipeline(_) => None,
    });
    let mut affected: BTreeSet<_> = named.collect();
    for set in sets.iter().filter_map(|(_, id)| id.set()) {
        let both = [before.sets.get(set), after.sets.get(set)];
        affected.extend(both.into_iter().flatten().map(|set| set.cluster.clone()));
    }
    let objects = [clusters, sets, pipelines].concat().into_iter();
    let objects = objects
        .map(|(kind, id)| ObjectChange { kind: kind.into(), object: id.to_string() })
        .collect();
    ManifestChanges { objects, clusters: affected }
}

/// The objects of one kind that differ.
fn changed<N: Ord, T: PartialEq>(
    before: &BTreeMap<N, Arc<T>>,
    after: &BTreeMap<N, Arc<T>>,
    id: impl Fn(&N, &T) -> ObjectId,
) -> Vec<(ObjectChangeKind, ObjectId)> {
    let gone = before.iter().filter(|(name, _)| !after.contains_key(name));
    let gone = gone.map(|(name, object)| (ObjectChangeKind::Removed, id(name, object)));
    let others = after.iter().filter_map(|(name, object)| match before.get(name) {
        None => Some((ObjectChangeKind::Added, id(name, object))),
        Some(was) if Arc::ptr_eq(was, object) || was == object => None,
        Some(_) => Some((ObjectChangeKind::Changed, id(name, object))),
    });
    gone.chain(others).collect()
}
