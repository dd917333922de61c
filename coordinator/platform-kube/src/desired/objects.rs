//! The objects as last seen, for the operator and the webhooks: each with its newest metadata and
//! status, and with its newest valid specification.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use leasehold_kube_api::resources::{
    Pipeline, PipelineCrdSpec, StreamSet, StreamSetCrdSpec, WorkerClass, WorkerClassCrdSpec,
    WorkerCluster, WorkerClusterCrdSpec,
};
use leasehold_manifest::manifest::{
    PipelineSpec, StreamSetSpec, WorkerClassSpec, WorkerClusterSpec,
};
use leasehold_manifest::{Created, ObjectId, Problem, Spec};
use leasehold_types::{ClusterName, PipelineName, SetName};
use serde_json::Value;

/// All objects of the kinds that users write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    /// Whether all objects were listed once.
    pub is_whole: bool,
    /// The WorkerClusters, by namespace and name.
    pub clusters: BTreeMap<ClusterName, CachedObject<WorkerCluster>>,
    /// The StreamSets, by namespace and name.
    pub sets: BTreeMap<SetName, CachedObject<StreamSet>>,
    /// The WorkerClasses, by namespace and name.
    pub classes: BTreeMap<ClusterName, CachedObject<WorkerClass>>,
    /// The Pipelines, by namespace and name.
    pub pipelines: BTreeMap<PipelineName, CachedObject<Pipeline>>,
    /// Those that were never valid: the maps have none of them.
    pub never_valid: BTreeSet<ObjectId>,
}

/// One object.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedObject<K> {
    /// The object. If its newest specification is invalid, it has an older one.
    pub object: Arc<K>,
    /// The generation of that specification.
    pub generation: i64,
    /// The problems of the newest specification and of the lists that it names.
    pub problems: Vec<Problem>,
}

impl<K> CachedObject<K> {
    /// The problems of the newest specification in one line.
    pub fn problem(&self) -> Option<String> {
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

/// A kind whose status is parsed leniently: only the coordinator writes it.
trait Kind: Resource + Clone {
    type Spec;

    fn make(metadata: ObjectMeta, spec: Self::Spec) -> Self;

    fn set_status(&mut self, status: Value);
}

macro_rules! kind {
    ($kind:ident, $crd_spec:ident, $spec:ty) => {
        impl Kind for $kind {
            type Spec = $spec;

            fn make(metadata: ObjectMeta, spec: $spec) -> Self {
                Self { metadata, spec: $crd_spec(spec), status: None }
            }

            fn set_status(&mut self, status: Value) {
                self.status = serde_json::from_value(status).ok().flatten();
            }
        }
    };
}

kind!(WorkerCluster, WorkerClusterCrdSpec, WorkerClusterSpec);
kind!(StreamSet, StreamSetCrdSpec, StreamSetSpec);
kind!(WorkerClass, WorkerClassCrdSpec, WorkerClassSpec);
kind!(Pipeline, PipelineCrdSpec, PipelineSpec);

fn cached<K: Kind>(metadata: ObjectMeta, spec: K::Spec, status: Value) -> CachedObject<K> {
    let generation = metadata.generation.unwrap_or_default();
    let mut object = K::make(metadata, spec);
    object.set_status(status);
    CachedObject { object: Arc::new(object), generation, problems: Vec::new() }
}

/// Replaces metadata and status; returns whether the object has changed.
fn refresh<K: Kind + PartialEq>(
    cached: Option<&mut CachedObject<K>>,
    metadata: ObjectMeta,
    status: Value,
) -> bool {
    let Some(cached) = cached else { return false };
    let mut object = K::clone(&cached.object);
    *object.meta_mut() = metadata;
    object.set_status(status);
    let is_changed = object != *cached.object;
    if is_changed {
        cached.object = Arc::new(object);
    }
    is_changed
}

/// When an object was created.
pub(super) fn created(metadata: &ObjectMeta) -> Created {
    let seconds = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    Created { seconds, uid: metadata.uid.clone().unwrap_or_default() }
}

impl Objects {
    /// Whether a WorkerClass has this name: there is one, and no WorkerCluster that is older.
    pub fn is_class(&self, name: &ClusterName) -> bool {
        let Some(class) = self.classes.get(name) else { return false };
        let class = created(&class.object.metadata);
        self.clusters.get(name).is_none_or(|cluster| class < created(&cluster.object.metadata))
    }

    /// Whether a WorkerCluster or a WorkerClass has this name, valid or not.
    pub fn has_fleet(&self, name: &ClusterName) -> bool {
        [ObjectId::Cluster(name.clone()), ObjectId::Class(name.clone())]
            .iter()
            .any(|id| self.has_valid(id) || self.never_valid.contains(id))
    }

    /// The namespaces that have workers.
    pub fn namespaces(&self) -> BTreeSet<String> {
        let names = self.clusters.keys().chain(self.classes.keys());
        names.filter_map(|name| name.parts().0).map(str::to_owned).collect()
    }

    /// Stores an object; `spec` is `None` if it is invalid. Returns whether the object has changed.
    pub(super) fn put(
        &mut self,
        id: &ObjectId,
        metadata: ObjectMeta,
        spec: Option<Spec>,
        status: Value,
    ) -> bool {
        match (id, spec) {
            (ObjectId::Cluster(name), Some(Spec::Cluster(spec))) => {
                self.clusters.insert(name.clone(), cached(metadata, spec, status));
            }
            (ObjectId::Set(name), Some(Spec::Set(spec))) => {
                self.sets.insert(name.clone(), cached(metadata, spec, status));
            }
            (ObjectId::Class(name), Some(Spec::Class(spec))) => {
                self.classes.insert(name.clone(), cached(metadata, spec, status));
            }
            (ObjectId::Pipeline(name), Some(Spec::Pipeline(spec))) => {
                self.pipelines.insert(name.clone(), cached(metadata, spec, status));
            }
            (id, _) => {
                let is_new = !self.has_valid(id) && self.never_valid.insert(id.clone());
                return self.refresh(id, metadata, status) || is_new;
            }
        }
        self.never_valid.remove(id);
        true
    }

    fn has_valid(&self, id: &ObjectId) -> bool {
        match id {
            ObjectId::Cluster(name) => self.clusters.contains_key(name),
            ObjectId::Set(name) => self.sets.contains_key(name),
            ObjectId::Class(name) => self.classes.contains_key(name),
            ObjectId::Pipeline(name) => self.pipelines.contains_key(name),
        }
    }

    /// Stores the metadata and status of an object with an unchanged spec. Returns whether the
    /// object has changed.
    pub(super) fn refresh(&mut self, id: &ObjectId, metadata: ObjectMeta, status: Value) -> bool {
        match id {
            ObjectId::Cluster(name) => refresh(self.clusters.get_mut(name), metadata, status),
            ObjectId::Set(name) => refresh(self.sets.get_mut(name), metadata, status),
            ObjectId::Class(name) => refresh(self.classes.get_mut(name), metadata, status),
            ObjectId::Pipeline(name) => refresh(self.pipelines.get_mut(name), metadata, status),
        }
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        self.never_valid.remove(id);
        match id {
            ObjectId::Cluster(name) => drop(self.clusters.remove(name)),
            ObjectId::Set(name) => drop(self.sets.remove(name)),
            ObjectId::Class(name) => drop(self.classes.remove(name)),
            ObjectId::Pipeline(name) => drop(self.pipelines.remove(name)),
        }
    }

    /// Sets each object's problems. Returns whether any has changed.
    pub(super) fn set_problems(&mut self, problems_of: impl Fn(&ObjectId) -> Vec<Problem>) -> bool {
        fn set<N: Clone, K>(
            objects: &mut BTreeMap<N, CachedObject<K>>,
            id: impl Fn(N) -> ObjectId,
            problems_of: &impl Fn(&ObjectId) -> Vec<Problem>,
        ) -> bool {
            let mut is_changed = false;
            for (name, cached) in objects {
                let problems = problems_of(&id(name.clone()));
                is_changed |= problems != cached.problems;
                cached.problems = problems;
            }
            is_changed
        }
        let changed = [
            set(&mut self.clusters, ObjectId::Cluster, &problems_of),
            set(&mut self.sets, ObjectId::Set, &problems_of),
            set(&mut self.classes, ObjectId::Class, &problems_of),
            set(&mut self.pipelines, ObjectId::Pipeline, &problems_of),
        ];
        changed.contains(&true)
    }
}
