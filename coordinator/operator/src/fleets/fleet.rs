//! A fleet is an object that has workers: a WorkerCluster or a WorkerClass. The same rules apply to
//! the workers of both; only the number of workers is decided differently.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use leasehold_kube_api::resources::{WorkerClass, WorkerCluster};
use leasehold_manifest::manifest::{API_VERSION, PodTemplate, WorkloadRef, WorkloadSpec};
use leasehold_platform_kube::desired::Objects;
use leasehold_types::ClusterName;

/// A WorkerCluster or a WorkerClass; cheap to clone.
#[derive(Clone, Debug)]
pub(super) enum Fleet {
    Cluster(Arc<WorkerCluster>),
    Class(Arc<WorkerClass>),
}

impl Fleet {
    /// Every fleet by its name. If a WorkerCluster and a WorkerClass have the same name, the
    /// WorkerCluster wins.
    pub(super) fn all(objects: &Objects) -> impl Iterator<Item = (&ClusterName, Self)> {
        let clusters = objects.clusters.iter();
        let clusters = clusters.map(|(name, it)| (name, Self::Cluster(Arc::clone(&it.object))));
        let classes = objects.classes.iter();
        let classes = classes.filter(|(name, _)| !objects.clusters.contains_key(*name));
        clusters.chain(classes.map(|(name, it)| (name, Self::Class(Arc::clone(&it.object)))))
    }

    /// The one of this name.
    pub(super) fn find(objects: &Objects, name: &ClusterName) -> Option<Self> {
        let cluster = objects.clusters.get(name).map(|it| Self::Cluster(Arc::clone(&it.object)));
        let class = || objects.classes.get(name).map(|it| Self::Class(Arc::clone(&it.object)));
        cluster.or_else(class)
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
    use serde_json::json;

    use super::*;
    use crate::fleets::fixtures;
    use leasehold_platform_kube::desired::CachedObject;

    #[test]
    fn a_name_shared_with_a_class_belongs_to_the_cluster() {
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
        let kinds: Vec<_> = Fleet::all(&objects).map(|(name, it)| (name, it.kind())).collect();
        assert_eq!(kinds, [(&fixtures::name(), "WorkerCluster"), (&other, "WorkerClass")]);
        let kind = |name: &ClusterName| Fleet::find(&objects, name).map(|it| it.reference().kind);
        assert_eq!(kind(&fixtures::name()), Some(Some("WorkerCluster".into())));
        assert_eq!(kind(&other), Some(Some("WorkerClass".into())));
    }
}
