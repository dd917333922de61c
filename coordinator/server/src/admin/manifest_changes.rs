//! How one desired state differs from another, for people.

use std::collections::BTreeSet;

use leasehold_coordinator_core::desired::Desired;
use leasehold_manifest::ObjectId;
use leasehold_manifest::changes::{self, ChangeKind};
use leasehold_proto::admin::v1::{ObjectChange, ObjectChangeKind};
use leasehold_types::ClusterName;

/// What would change.
pub(super) struct ManifestChanges {
    /// The objects.
    pub(super) objects: Vec<ObjectChange>,
    /// The clusters with a budget, before or after, that are among them or have sets that are.
    pub(super) clusters: BTreeSet<ClusterName>,
    /// Whether any class or pipeline is among them.
    pub(super) pipelines: bool,
}

/// The changes from one desired state to another.
pub(super) fn of(before: &Desired, after: &Desired) -> ManifestChanges {
    let mut clusters = BTreeSet::new();
    let mut objects = Vec::new();
    let mut pipelines = false;
    for (id, kind) in changes::objects(before, after) {
        objects.push(ObjectChange { kind: wire_kind(kind).into(), object: id.to_string() });
        match id {
            ObjectId::Cluster(name) => _ = clusters.insert(name),
            ObjectId::Set(set) => {
                let both = [before.sets.get(&set), after.sets.get(&set)];
                clusters.extend(both.into_iter().flatten().map(|set| set.cluster.clone()));
            }
            ObjectId::Class(_) | ObjectId::Pipeline(_) => pipelines = true,
        }
    }
    ManifestChanges { objects, clusters, pipelines }
}

fn wire_kind(kind: ChangeKind) -> ObjectChangeKind {
    match kind {
        ChangeKind::Added => ObjectChangeKind::Added,
        ChangeKind::Changed => ObjectChangeKind::Changed,
        ChangeKind::Removed => ObjectChangeKind::Removed,
    }
}
