//! A fleet is an object that has workers: a WorkerCluster or a WorkerClass. The same rules apply to
//! the workers of both; only the number of workers is decided differently.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use leasehold_kube_api::resources::{WorkerClass, WorkerCluster};
use leasehold_manifest::manifest::{
    API_VERSION, AfterDeadline, OnCordon, PodTemplate, WorkloadRef, WorkloadSpec,
};
use leasehold_platform_kube::desired::Objects;
use leasehold_types::ClusterName;

/// A WorkerCluster or a WorkerClass; cheap to clone.
#[derive(Clone, Debug)]
pub(super) enum Fleet {
    Cluster(Arc<WorkerCluster>),
    Class(Arc<WorkerClass>),
}

impl Fleet {
    /// Every fleet by its name. If a WorkerCluster and a WorkerClass have the same name, the older
    /// one has it.
    pub(super) fn all(objects: &Objects) -> impl Iterator<Item = (&ClusterName, Self)> {
        let clusters = objects.clusters.iter().filter(|(name, _)| !objects.is_class(name));
        let clusters =
            clusters.map(|(name, found)| (name, Self::Cluster(Arc::clone(&found.object))));
        let classes = objects.classes.iter().filter(|(name, _)| objects.is_class(name));
        clusters.chain(classes.map(|(name, found)| (name, Self::Class(Arc::clone(&found.object)))))
    }

    /// The one of this name.
    pub(super) fn find(objects: &Objects, name: &ClusterName) -> Option<Self> {
        if objects.is_class(name) {
            return objects.classes.get(name).map(|seen| Self::Class(Arc::clone(&seen.object)));
        }
        objects.clusters.get(name).map(|seen| Self::Cluster(Arc::clone(&seen.object)))
    }

    /// The object's kind.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Cluster(_) => WorkerCluster::KIND,
            Self::Class(_) => WorkerClass::KIND,
        }
    }

    /// Its name in messages.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "cluster",
            Self::Class(_) => "class",
        }
    }

    /// The object's metadata.
    pub(super) fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Cluster(cluster) => &cluster.metadata,
            Self::Class(class) => &class.metadata,
        }
    }

    /// The object's name.
    pub(super) fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The object's namespace.
    pub(super) fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }

    /// Whether its deletion was requested.
    pub(super) fn is_deleted(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    /// The template of its pods.
    pub(super) fn template(&self) -> Option<&PodTemplate> {
        match self {
            Self::Cluster(cluster) => cluster.spec.0.template.as_ref(),
            Self::Class(class) => class.spec.0.template.as_ref(),
        }
    }

    /// The workload to create from the template.
    pub(super) fn workload(&self) -> Option<&WorkloadSpec> {
        match self {
            Self::Cluster(cluster) => cluster.spec.0.workload.as_ref(),
            Self::Class(class) => class.spec.0.workload.as_ref(),
        }
    }

    /// The existing workload that it adopts.
    pub(super) fn workload_ref(&self) -> Option<&WorkloadRef> {
        match self {
            Self::Cluster(cluster) => cluster.spec.0.workload_ref.as_ref(),
            Self::Class(class) => class.spec.0.workload_ref.as_ref(),
        }
    }

    /// How long a worker's drain may take.
    pub(super) fn drain_deadline(&self) -> Duration {
        match self {
            Self::Cluster(cluster) => cluster.spec.0.drain.deadline.0,
            Self::Class(class) => class.spec.0.drain.deadline.0,
        }
    }

    /// Whether a pod may end with running jobs when its drain has passed the deadline.
    pub(super) fn releases_after_deadline(&self) -> bool {
        let after = match self {
            Self::Cluster(cluster) => cluster.spec.0.drain.after_deadline,
            Self::Class(class) => class.spec.0.drain.after_deadline,
        };
        match after.unwrap_or_default() {
            AfterDeadline::Wait => false,
            AfterDeadline::Release => true,
        }
    }

    /// What a cordoned node means for its workers.
    pub(super) fn on_cordon(&self) -> OnCordon {
        let on_cordon = match self {
            Self::Cluster(cluster) => cluster.spec.0.on_cordon,
            Self::Class(class) => class.spec.0.on_cordon,
        };
        on_cordon.unwrap_or_default()
    }

    /// As events name it.
    pub(super) fn reference(&self) -> ObjectReference {
        let metadata = self.metadata();
        ObjectReference {
            api_version: Some(API_VERSION.into()),
            kind: Some(self.kind().into()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        }
    }

    /// The owner reference by which objects are deleted with it.
    pub(super) fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: API_VERSION.into(),
            kind: self.kind().into(),
            name: self.name().into(),
            uid: self.metadata().uid.clone().unwrap_or_default(),
            controller: Some(true),
            // It would need another RBAC right, and no object has to be deleted before its owner.
            block_owner_deletion: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::fleets::fixtures;
    use leasehold_platform_kube::desired::CachedObject;

    #[test]
    fn a_name_shared_by_both_kinds_belongs_to_the_older_object() {
        let mut objects = Objects::default();
        let class = fixtures::class(json!({ "capacity": 15, "maxReplicas": 5 }));
        let seen = CachedObject { object: class, generation: 1, problems: Vec::new() };
        let other = ClusterName::in_namespace("ns", "green").expect("a name");
        objects.classes.insert(fixtures::name(), seen.clone());
        objects.classes.insert(other.clone(), seen);
        let spec = json!({ "maxJobs": 1, "maxJobsPerWorker": 1 });
        let cluster = Arc::new(fixtures::cluster_object(spec));
        let seen = CachedObject { object: cluster, generation: 1, problems: Vec::new() };
        objects.clusters.insert(fixtures::name(), seen);
        for (cluster_seconds, class_seconds, kind) in
            [(5, 6, "WorkerCluster"), (6, 5, "WorkerClass"), (5, 5, "WorkerClass")]
        {
            let at = |seconds| Timestamp::from_second(seconds).ok().map(Time);
            let cluster = objects.clusters.get_mut(&fixtures::name()).expect("the cluster");
            Arc::make_mut(&mut cluster.object).metadata.creation_timestamp = at(cluster_seconds);
            let class = objects.classes.get_mut(&fixtures::name()).expect("the class");
            // Of two of the same second, the UID decides.
            Arc::make_mut(&mut class.object).metadata.creation_timestamp = at(class_seconds);
            let mut kinds: Vec<_> =
                Fleet::all(&objects).map(|(name, fleet)| (name, fleet.kind())).collect();
            kinds.sort();
            assert_eq!(kinds, [(&fixtures::name(), kind), (&other, "WorkerClass")]);
            let kind_of = |name: &ClusterName| {
                Fleet::find(&objects, name).map(|fleet| fleet.reference().kind)
            };
            assert_eq!(kind_of(&fixtures::name()), Some(Some(kind.into())));
            assert_eq!(kind_of(&other), Some(Some("WorkerClass".into())));
        }
    }
}
