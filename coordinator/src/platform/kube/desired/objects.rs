//! The objects as last seen, for those who act on them: each with the newest metadata and status,
//! and with the newest specification that is valid by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leasehold_types::{ClusterName, PipelineName, SetName};
use serde_json::Value;

use super::super::resources::{Pipeline, StreamSet, WorkerClass, WorkerCluster};
use crate::spec::{ObjectId, Problem, Spec};

/// All the objects of both kinds, but those that were never valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::platform::kube) struct Objects {
    /// Whether all of them were listed once.
    pub(in crate::platform::kube) is_whole: bool,
    /// The WorkerClusters, by namespace and name.
    pub(in crate::platform::kube) clusters: BTreeMap<ClusterName, Seen<WorkerCluster>>,
    /// The StreamSets, by namespace and name.
    pub(in crate::platform::kube) sets: BTreeMap<SetName, Seen<StreamSet>>,
    /// The WorkerClasses, by namespace and name.
    pub(in crate::platform::kube) classes: BTreeMap<ClusterName, Seen<WorkerClass>>,
    /// The Pipelines, by namespace and name.
    pub(in crate::platform::kube) pipelines: BTreeMap<PipelineName, Seen<Pipeline>>,
}

/// One object.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::platform::kube) struct Seen<K> {
    /// The object. Its specification is an older one where the newest is not valid.
    pub(in crate::platform::kube) object: Arc<K>,
    /// The generation of that specification.
    pub(in crate::platform::kube) generation: i64,
    /// What keeps the newest specification, or a list that it names, from being in force.
    pub(in crate::platform::kube) problems: Vec<Problem>,
}

impl<K> Seen<K> {
    /// What keeps the newest specification from being in force, in one line.
    pub(in crate::platform::kube) fn problem(&self) -> Option<String> {
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

impl Objects {
    /// The namespaces that have workers.
    pub(in crate::platform::kube) fn namespaces(&self) -> BTreeSet<String> {
        let namespaces = self.clusters.keys().filter_map(|name| name.parts().0);
        namespaces.map(str::to_owned).collect()
    }

    /// Whether the object was seen with this generation, and all of it is the same object still.
    pub(super) fn has_generation(&self, id: &ObjectId, metadata: &ObjectMeta) -> bool {
        let seen = match id {
            ObjectId::Cluster(name) => {
                self.clusters.get(name).map(|seen| (&seen.object.metadata.uid, seen.generation))
            }
            ObjectId::Set(name) => {
                self.sets.get(name).map(|seen| (&seen.object.metadata.uid, seen.generation))
            }
        };
        seen.is_some_and(|(uid, generation)| {
            *uid == metadata.uid && Some(generation) == metadata.generation
        })
    }

    /// Takes in an object; `spec` is none where it is not valid.
    pub(super) fn put(
        &mut self,
        id: &ObjectId,
        metadata: ObjectMeta,
        spec: Option<Spec>,
        status: Value,
    ) {
        let generation = metadata.generation.unwrap_or_default();
        match (id, spec) {
            (ObjectId::Cluster(name), Some(Spec::Cluster(spec))) => {
                let mut object = WorkerCluster::new(metadata, spec);
                object.status = serde_json::from_value(status).ok().flatten();
                let object = Arc::new(object);
                let seen = Seen { object, generation, problems: Vec::new() };
                self.clusters.insert(name.clone(), seen);
            }
            (ObjectId::Set(name), Some(Spec::Set(spec))) => {
                let mut object = StreamSet::new(metadata, spec);
                object.status = serde_json::from_value(status).ok().flatten();
                let object = Arc::new(object);
                let seen = Seen { object, generation, problems: Vec::new() };
                self.sets.insert(name.clone(), seen);
            }
            (id, _) => self.refresh(id, metadata, status),
        }
    }

    /// Takes in the metadata and status of an object whose specification stays as it was.
    pub(super) fn refresh(&mut self, id: &ObjectId, metadata: ObjectMeta, status: Value) {
        match id {
            ObjectId::Cluster(name) => {
                let Some(seen) = self.clusters.get_mut(name) else { return };
                let object = Arc::make_mut(&mut seen.object);
                object.metadata = metadata;
                object.status = serde_json::from_value(status).ok().flatten();
            }
            ObjectId::Set(name) => {
                let Some(seen) = self.sets.get_mut(name) else { return };
                let object = Arc::make_mut(&mut seen.object);
                object.metadata = metadata;
                object.status = serde_json::from_value(status).ok().flatten();
            }
        }
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        match id {
            ObjectId::Cluster(name) => drop(self.clusters.remove(name)),
            ObjectId::Set(name) => drop(self.sets.remove(name)),
        }
    }

    /// Sets each object's problems.
    pub(super) fn blame(&mut self, problems_of: impl Fn(&ObjectId) -> Vec<Problem>) {
        for (name, seen) in &mut self.clusters {
            seen.problems = problems_of(&ObjectId::Cluster(name.clone()));
        }
        for (name, seen) in &mut self.sets {
            seen.problems = problems_of(&ObjectId::Set(name.clone()));
        }
    }
}
