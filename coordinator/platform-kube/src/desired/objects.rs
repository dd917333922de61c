//! The objects as last seen, for those who act on them: each with the newest metadata and status,
//! and with the newest specification that is valid by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use leasehold_kube_api::resources::{Pipeline, StreamSet, WorkerClass, WorkerCluster};
use leasehold_manifest::manifest::{
    PipelineSpec, StreamSetSpec, WorkerClassSpec, WorkerClusterSpec,
};
use leasehold_manifest::{ObjectId, Problem, Spec};
use leasehold_types::{ClusterName, PipelineName, SetName};
use serde_json::Value;

/// All the objects of the kinds that people write, but those that were never valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    /// Whether all of them were listed once.
    pub is_whole: bool,
    /// The WorkerClusters, by namespace and name.
    pub clusters: BTreeMap<ClusterName, CachedObject<WorkerCluster>>,
    /// The StreamSets, by namespace and name.
    pub sets: BTreeMap<SetName, CachedObject<StreamSet>>,
    /// The WorkerClasses, by namespace and name.
    pub classes: BTreeMap<ClusterName, CachedObject<WorkerClass>>,
    /// The Pipelines, by namespace and name.
    pub pipelines: BTreeMap<PipelineName, CachedObject<Pipeline>>,
}

/// One object.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedObject<K> {
    /// The object. Its specification is an older one where the newest is not valid.
    pub object: Arc<K>,
    /// The generation of that specification.
    pub generation: i64,
    /// What keeps the newest specification, or a list that it names, from being in force.
    pub problems: Vec<Problem>,
}

impl<K> CachedObject<K> {
    /// What keeps the newest specification from being in force, in one line.
    pub fn problem(&self) -> Option<String> {
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

/// A kind whose status is read leniently: the coordinator alone writes it.
trait Kind: Resource + Clone {
    type Spec;

    fn make(metadata: ObjectMeta, spec: Self::Spec) -> Self;

    fn set_status(&mut self, status: Value);
}

macro_rules! kind {
    ($kind:ident, $spec:ty) => {
        impl Kind for $kind {
            type Spec = $spec;

            fn make(metadata: ObjectMeta, spec: $spec) -> Self {
                Self::new(metadata, spec)
            }

            fn set_status(&mut self, status: Value) {
                self.status = serde_json::from_value(status).ok().flatten();
            }
        }
    };
}

kind!(WorkerCluster, WorkerClusterSpec);
kind!(StreamSet, StreamSetSpec);
kind!(WorkerClass, WorkerClassSpec);
kind!(Pipeline, PipelineSpec);

fn seen<K: Kind>(metadata: ObjectMeta, spec: K::Spec, status: Value) -> CachedObject<K> {
    let generation = metadata.generation.unwrap_or_default();
    let mut object = K::make(metadata, spec);
    object.set_status(status);
    CachedObject { object: Arc::new(object), generation, problems: Vec::new() }
}

fn refresh<K: Kind>(seen: Option<&mut CachedObject<K>>, metadata: ObjectMeta, status: Value) {
    let Some(seen) = seen else { return };
    let object = Arc::make_mut(&mut seen.object);
    *object.meta_mut() = metadata;
    object.set_status(status);
}

fn has_generation<K: Kind>(seen: Option<&CachedObject<K>>, metadata: &ObjectMeta) -> bool {
    seen.is_some_and(|seen| {
        let is_same = seen.object.meta().uid == metadata.uid;
        is_same && Some(seen.generation) == metadata.generation
    })
}

impl Objects {
    /// The namespaces that have workers.
    pub fn namespaces(&self) -> BTreeSet<String> {
        let names = self.clusters.keys().chain(self.classes.keys());
        names.filter_map(|name| name.parts().0).map(str::to_owned).collect()
    }

    /// Whether the object was seen with this generation, and all of it is the same object still.
    pub(super) fn has_generation(&self, id: &ObjectId, metadata: &ObjectMeta) -> bool {
        match id {
            ObjectId::Cluster(name) => has_generation(self.clusters.get(name), metadata),
            ObjectId::Set(name) => has_generation(self.sets.get(name), metadata),
            ObjectId::Class(name) => has_generation(self.classes.get(name), metadata),
            ObjectId::Pipeline(name) => has_generation(self.pipelines.get(name), metadata),
        }
    }

    /// Takes in an object; `spec` is none where it is not valid.
    pub(super) fn put(
        &mut self,
        id: &ObjectId,
        metadata: ObjectMeta,
        spec: Option<Spec>,
        status: Value,
    ) {
        match (id, spec) {
            (ObjectId::Cluster(name), Some(Spec::Cluster(spec))) => {
                self.clusters.insert(name.clone(), seen(metadata, spec, status));
            }
            (ObjectId::Set(name), Some(Spec::Set(spec))) => {
                self.sets.insert(name.clone(), seen(metadata, spec, status));
            }
            (ObjectId::Class(name), Some(Spec::Class(spec))) => {
                self.classes.insert(name.clone(), seen(metadata, spec, status));
            }
            (ObjectId::Pipeline(name), Some(Spec::Pipeline(spec))) => {
                self.pipelines.insert(name.clone(), seen(metadata, spec, status));
            }
            (id, _) => self.refresh(id, metadata, status),
        }
    }

    /// Takes in the metadata and status of an object whose specification stays as it was.
    pub(super) fn refresh(&mut self, id: &ObjectId, metadata: ObjectMeta, status: Value) {
        match id {
            ObjectId::Cluster(name) => refresh(self.clusters.get_mut(name), metadata, status),
            ObjectId::Set(name) => refresh(self.sets.get_mut(name), metadata, status),
            ObjectId::Class(name) => refresh(self.classes.get_mut(name), metadata, status),
            ObjectId::Pipeline(name) => refresh(self.pipelines.get_mut(name), metadata, status),
        }
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        match id {
            ObjectId::Cluster(name) => drop(self.clusters.remove(name)),
            ObjectId::Set(name) => drop(self.sets.remove(name)),
            ObjectId::Class(name) => drop(self.classes.remove(name)),
            ObjectId::Pipeline(name) => drop(self.pipelines.remove(name)),
        }
    }

    /// Sets each object's problems.
    pub(super) fn set_problems(&mut self, problems_of: impl Fn(&ObjectId) -> Vec<Problem>) {
        for (name, seen) in &mut self.clusters {
            seen.problems = problems_of(&ObjectId::Cluster(name.clone()));
        }
        for (name, seen) in &mut self.sets {
            seen.problems = problems_of(&ObjectId::Set(name.clone()));
        }
        for (name, seen) in &mut self.classes {
            seen.problems = problems_of(&ObjectId::Class(name.clone()));
        }
        for (name, seen) in &mut self.pipelines {
            seen.problems = problems_of(&ObjectId::Pipeline(name.clone()));
        }
    }
}
