//! What the desired objects say about fleets: which names have one, which objects each depends on,
//! and which names a change of the objects leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use leasehold_kube_api::names::disruption_budget;
use leasehold_manifest::ObjectId;
use leasehold_manifest::manifest::RefreshSpec;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::watch_cache::ObjectKey;
use leasehold_types::{ClusterName, SetName};

use super::fleet::Fleet;
use super::workload;

/// The desired objects as last processed.
#[derive(Debug, Default)]
pub(super) struct FleetIndex {
    objects: Arc<Objects>,
    versions: BTreeMap<ClusterName, FleetVersion>,
    /// The fleets that depend on a workload or a PodDisruptionBudget of this name.
    by_object: BTreeMap<ObjectKey, BTreeSet<ClusterName>>,
    /// The sets with `refresh: Restart` of each cluster that has any.
    restart_sets: BTreeMap<ClusterName, Vec<SetName>>,
}

/// Differs if anything of a fleet differs that plans depend on; its status is no part of that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FleetVersion {
    kind: &'static str,
    uid: Option<String>,
    generation: Option<i64>,
    /// The generation of the specification in force.
    in_force: Option<i64>,
    is_deleted: bool,
}

impl FleetIndex {
    /// Stores the objects; returns the fleets that have changed. All have if `is_whole` has.
    pub(super) fn update(&mut self, objects: Arc<Objects>) -> BTreeSet<ClusterName> {
        let before = std::mem::replace(self, Self::of(objects));
        let names = before.versions.keys().chain(self.versions.keys());
        let is_whole_new = before.objects.is_whole != self.objects.is_whole;
        let differs = |name: &&ClusterName| {
            is_whole_new || before.versions.get(*name) != self.versions.get(*name)
        };
        let mut changed: BTreeSet<_> = names.filter(differs).cloned().collect();
        let names = before.restart_sets.keys().chain(self.restart_sets.keys());
        let differs =
            |name: &&ClusterName| before.restart_sets.get(*name) != self.restart_sets.get(*name);
        changed.extend(names.filter(differs).cloned());
        let invalid = before.objects.never_valid.symmetric_difference(&self.objects.never_valid);
        changed.extend(invalid.filter_map(|id| match id {
            ObjectId::Cluster(name) | ObjectId::Class(name) => Some(name.clone()),
            ObjectId::Set(_) | ObjectId::Pipeline(_) => None,
        }));
        changed
    }

    fn of(objects: Arc<Objects>) -> Self {
        let mut index = Self::default();
        for (name, fleet) in Fleet::all(&objects) {
            let in_force = match &fleet {
                Fleet::Cluster(_) => objects.clusters.get(name).map(|seen| seen.generation),
                Fleet::Class(_) => objects.classes.get(name).map(|seen| seen.generation),
            };
            let version = FleetVersion {
                kind: fleet.kind(),
                uid: fleet.metadata().uid.clone(),
                generation: fleet.metadata().generation,
                in_force,
                is_deleted: fleet.is_deleted(),
            };
            index.versions.insert(name.clone(), version);
            let workload = workload::target(&fleet).map(|target| target.name);
            for object in workload.into_iter().chain([disruption_budget(fleet.name())]) {
                let key = ObjectKey::new(fleet.namespace(), object);
                index.by_object.entry(key).or_default().insert(name.clone());
            }
        }
        for (name, seen) in &objects.sets {
            let set = &seen.object;
            let namespace = set.namespace().unwrap_or_default();
            let cluster = ClusterName::in_namespace(&namespace, &set.spec.0.cluster);
            if let (RefreshSpec::Restart, Ok(cluster)) = (set.spec.0.refresh, cluster) {
                index.restart_sets.entry(cluster).or_default().push(name.clone());
            }
        }
        Self { objects, ..index }
    }

    /// The objects.
    pub(super) fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// The names that have a fleet.
    pub(super) fn names(&self) -> impl Iterator<Item = &ClusterName> {
        self.versions.keys()
    }

    /// Whether a name has a fleet.
    pub(super) fn has(&self, name: &ClusterName) -> bool {
        self.versions.contains_key(name)
    }

    /// The fleets that depend on a workload or a PodDisruptionBudget.
    pub(super) fn depending_on(&self, object: &ObjectKey) -> impl Iterator<Item = &ClusterName> {
        self.by_object.get(object).into_iter().flatten()
    }

    /// The sets of a cluster with `refresh: Restart`.
    pub(super) fn restart_sets(&self, cluster: &ClusterName) -> Option<&Vec<SetName>> {
        self.restart_sets.get(cluster)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_kube_api::resources::{StreamSet, WorkerCluster};
    use leasehold_kube_api::status::WorkerClusterStatus;
    use leasehold_platform_kube::desired::CachedObject;
    use serde_json::{Value, json};

    use super::*;
    use crate::fleets::fixtures;

    fn seen<K>(object: K) -> CachedObject<K> {
        CachedObject { object: Arc::new(object), generation: 7, problems: Vec::new() }
    }

    fn cluster(more: Value) -> WorkerCluster {
        let mut spec = json!({ "maxJobs": 1, "maxJobsPerWorker": 1 });
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        fixtures::cluster_object(spec)
    }

    fn objects(cluster: WorkerCluster) -> Objects {
        let clusters = [(fixtures::name(), seen(cluster))].into();
        Objects { is_whole: true, clusters, ..Objects::default() }
    }

    fn changed(index: &mut FleetIndex, objects: &Objects) -> bool {
        let changed = index.update(Arc::new(objects.clone()));
        assert!(changed.iter().all(|name| *name == fixtures::name()), "{changed:?}");
        !changed.is_empty()
    }

    #[test]
    fn a_fleet_changes_with_its_specification_and_not_with_its_status() {
        let mut index = FleetIndex::default();
        let first = cluster(json!({}));
        assert!(changed(&mut index, &objects(first.clone())));
        let mut shown = first.clone();
        shown.status = Some(WorkerClusterStatus::default());
        shown.metadata.resource_version = Some("9".into());
        assert!(!changed(&mut index, &objects(shown)));
        let mut next = first.clone();
        next.metadata.generation = Some(8);
        assert!(changed(&mut index, &objects(next.clone())));
        assert!(!changed(&mut index, &objects(next)));
        assert!(changed(&mut index, &Objects { is_whole: true, ..Objects::default() }));
        let invalid = [ObjectId::Cluster(fixtures::name())].into();
        let invalid = Objects { is_whole: true, never_valid: invalid, ..Objects::default() };
        assert!(changed(&mut index, &invalid), "its pods are not those of a deleted fleet");
    }

    #[test]
    fn every_fleet_changes_when_all_objects_were_listed() {
        let mut index = FleetIndex::default();
        let objects = Objects { is_whole: false, ..objects(cluster(json!({}))) };
        assert!(changed(&mut index, &objects));
        assert!(changed(&mut index, &Objects { is_whole: true, ..objects }));
    }

    #[test]
    fn a_workload_leads_to_the_fleets_that_create_or_adopt_it() {
        let mut index = FleetIndex::default();
        let of = |index: &FleetIndex, name: &str| {
            index.depending_on(&ObjectKey::new("ns", name)).count()
        };
        changed(&mut index, &objects(cluster(json!({ "template": { "spec": {} } }))));
        assert_eq!((of(&index, "ci"), of(&index, "ci-busy"), of(&index, "web")), (1, 1, 0));
        let reference = json!({ "workloadRef": { "kind": "Deployment", "name": "web" } });
        let mut adopts = cluster(reference);
        adopts.metadata.generation = Some(8);
        changed(&mut index, &objects(adopts));
        assert_eq!((of(&index, "ci"), of(&index, "web")), (0, 1));
    }

    #[test]
    fn a_set_with_restarts_leads_to_its_cluster() {
        let set = |refresh: &str| -> StreamSet {
            let spec = json!({ "cluster": "ci", "refresh": refresh, "streams": [{ "name": "a" }] });
            let metadata = json!({ "name": "feeds", "namespace": "ns" });
            serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a set")
        };
        let mut index = FleetIndex::default();
        let mut objects = objects(cluster(json!({})));
        let name = SetName::in_namespace("ns", "feeds").expect("a name");
        changed(&mut index, &objects);
        objects.sets.insert(name.clone(), seen(set("None")));
        assert!(!changed(&mut index, &objects));
        objects.sets.insert(name.clone(), seen(set("Restart")));
        assert!(changed(&mut index, &objects));
        assert_eq!(index.restart_sets(&fixtures::name()), Some(&vec![name]));
        objects.sets.clear();
        assert!(changed(&mut index, &objects));
    }
}
