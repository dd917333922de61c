//! The objects of an API server over time. The rules of the [catalog](super::catalog) hold for
//! each: what is invalid, and what names a list that is missing or wrong, keeps the version in
//! force; an object goes only when it is gone. The API server remembers for all processes, so a
//! first reading builds on nothing: what is invalid then is absent, and reported. A set that is
//! absent for that reason is marked unread, so that no worker loses a stream. A pipeline may name a
//! class that does not exist: it waits for the class.
//!
//! Where two objects want one name, or a limit is reached, the object that was created first has
//! it, valid or not. So this does not depend on what a process remembers, and an edit takes a place
//! from nobody. Only a set that grows, and then lacks room, may take it from newer ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::{ClusterName, PipelineName, SetName, counted};
use serde_json::{Value, json};

use super::catalog::{PROBLEMS_MAX, Reading, bounded};
use super::check::{self, Document, ObjectId, Origin, Spec, ValidSpec};
use super::folder;
use super::manifest::{API_VERSION, ConfigMapKeyRef};
use super::places::{NoPlace, Places};
use super::precedence::Created;
use super::problem::Problem;
use super::resolve::{Candidate, MissingClass, Rules, StreamFiles, resolve};
use super::streams::{self, StreamList};
use super::tree::{self, Position};

/// ConfigMaps that are read.
pub const CONFIG_MAPS_MAX: usize = 1_000;

/// A ConfigMap, by namespace and name.
pub type ConfigMapName = (String, String);

/// The objects, and the ConfigMaps that they name.
#[derive(Debug, Default)]
pub struct Collection {
    share: NamespaceShare,
    objects: BTreeMap<ObjectId, StoredObject>,
    maps: BTreeMap<ConfigMapName, ConfigMapContent>,
    in_force: Arc<Desired>,
}

/// An object, checked by itself.
#[derive(Debug)]
struct StoredObject {
    created: Created,
    body: Option<ValidSpec>,
    problems: Vec<Problem>,
    keys: BTreeSet<(ConfigMapName, String)>,
}

/// A ConfigMap that sets name.
#[derive(Debug)]
struct NamedMap {
    keys: BTreeSet<String>,
    /// Why it is not read, if it is not.
    no_place: Option<NoPlace>,
}

/// The lists of a ConfigMap, by their names in problems.
type ConfigMapContent = BTreeMap<String, Result<Arc<StreamList>, Vec<Problem>>>;

/// The name of an object in problems.
pub fn called(id: &ObjectId) -> String {
    id.to_string()
}

/// The namespace of the object that has a problem.
fn namespace_of(problem: &Problem) -> &str {
    let name = problem.file.split_once(' ').map_or("", |(_, name)| name);
    name.split_once('/').map_or("", |(namespace, _)| namespace)
}

/// Checks an object of the API server by itself.
pub fn document(id: &ObjectId, spec: Value, problems: &mut Vec<Problem>) -> Document {
    let (namespace, name) = id.parts();
    let object = json!({
        "apiVersion": API_VERSION,
        "kind": id.kind(),
        "metadata": { "name": name },
        "spec": spec,
    });
    let home = Origin::Namespace(namespace.unwrap_or_default());
    check::document(&called(id), home, tree::from_json(object), problems)
}

impl Collection {
    /// No objects yet; each namespace may use this share of the limits.
    pub fn new(share: NamespaceShare) -> Self {
        Self { share, ..Self::default() }
    }

    /// Stores an object. Returns its specification as it is written, if it is valid by itself.
    pub fn put(&mut self, id: &ObjectId, created: Created, spec: Value) -> Option<Spec> {
        let mut problems = Vec::new();
        let Document { spec, body, .. } = document(id, spec, &mut problems);
        let keys = match &spec {
            Some(Spec::Set(set)) => {
                let namespace = id.parts().0.unwrap_or_default();
                let named = set.streams_from.iter().filter_map(|s| s.config_map_key_ref.as_ref());
                let key = |key: &ConfigMapKeyRef| {
                    ((namespace.to_owned(), key.name.clone()), key.key.clone())
                };
                named.map(key).collect()
            }
            _ => BTreeSet::new(),
        };
        let spec = spec.filter(|_| body.is_some());
        self.objects.insert(id.clone(), StoredObject { created, body, problems, keys });
        spec
    }

    /// Removes a deleted object.
    pub fn remove(&mut self, id: &ObjectId) {
        self.objects.remove(id);
    }

    /// The id of an object; `None` if the kind or the name is not valid.
    pub fn id(kind: &str, namespace: &str, name: &str) -> Option<ObjectId> {
        match kind {
            "WorkerCluster" => {
                ClusterName::in_namespace(namespace, name).ok().map(ObjectId::Cluster)
            }
            "StreamSet" => SetName::in_namespace(namespace, name).ok().map(ObjectId::Set),
            "WorkerClass" => ClusterName::in_namespace(namespace, name).ok().map(ObjectId::Class),
            "Pipeline" => PipelineName::in_namespace(namespace, name).ok().map(ObjectId::Pipeline),
            _ => None,
        }
    }

    /// The ConfigMaps that sets name, and the keys of each; not more than are read.
    pub fn named(&self) -> BTreeMap<ConfigMapName, BTreeSet<String>> {
        let mut named = BTreeMap::new();
        for (map, NamedMap { keys, no_place }) in self.named_all() {
            if no_place.is_none() {
                named.insert(map, keys);
            }
        }
        named
    }

    /// All ConfigMaps that sets name. One takes its place with the oldest of these sets.
    fn named_all(&self) -> BTreeMap<ConfigMapName, NamedMap> {
        let mut sets: Vec<&StoredObject> =
            self.objects.values().filter(|kept| !kept.keys.is_empty()).collect();
        sets.sort_by(|one, other| one.created.cmp(&other.created));
        let mut places = Places::new("ConfigMaps", CONFIG_MAPS_MAX, self.share);
        let mut named: BTreeMap<ConfigMapName, NamedMap> = BTreeMap::new();
        for (map, key) in sets.into_iter().flat_map(|kept| &kept.keys) {
            let named = named.entry(map.clone()).or_insert_with(|| NamedMap {
                keys: BTreeSet::new(),
                no_place: places.take(Some(&map.0), 1).err(),
            });
            named.keys.insert(key.clone());
        }
        named
    }

    /// Stores the lists under these keys of a ConfigMap; `data` is empty if it does not exist.
    pub fn put_map(
        &mut self,
        map: &ConfigMapName,
        keys: &BTreeSet<String>,
        data: &BTreeMap<String, String>,
    ) {
        let (namespace, name) = map;
        let mut content = ConfigMapContent::new();
        for (key, text) in keys.iter().filter_map(|key| data.get_key_value(key)) {
            let reference = ConfigMapKeyRef { name: name.clone(), key: key.clone() };
            let file = check::config_map(namespace, &reference);
            let problem = |(at, field, message)| Problem::new(&file, at, field, message);
            let list = streams::read(text, folder::is_yaml(key)).map(Arc::new);
            let list = list.map_err(|faults| faults.into_iter().map(problem).collect());
            content.insert(file, list);
        }
        self.maps.insert(map.clone(), content);
    }

    /// Stores that these keys of a ConfigMap cannot be read, and why.
    pub fn refuse_map(&mut self, map: &ConfigMapName, keys: &BTreeSet<String>, problem: &str) {
        let (namespace, name) = map;
        let refused = |key: &String| {
            let reference = ConfigMapKeyRef { name: name.clone(), key: key.clone() };
            let file = check::config_map(namespace, &reference);
            let problem = Problem::whole(&file, problem);
            (file, Err(vec![problem]))
        };
        self.maps.insert(map.clone(), keys.iter().map(refused).collect());
    }

    /// Forgets the lists of a ConfigMap: it must be read again, or no object names it.
    pub fn forget_map(&mut self, map: &ConfigMapName) {
        self.maps.remove(map);
    }

    /// Resolves all objects to the desired state that is in force now, with all problems.
    pub fn read(&mut self) -> Reading {
        let mut problems = Vec::new();
        let lists = self.lists(&mut problems);
        let mut candidates = BTreeMap::new();
        for (id, kept) in &self.objects {
            problems.extend(kept.problems.iter().cloned());
            let (file, at, body) = (called(id), Position::default(), kept.body.clone());
            let created = Some(kept.created.clone());
            candidates.insert(id.clone(), Candidate { file, at, created, body });
        }
        let sets: Vec<SetName> = self.objects.keys().filter_map(ObjectId::set).cloned().collect();
        let rules = Rules { missing: MissingClass::Awaited, share: self.share };
        let mut desired = resolve(candidates, &lists, rules, &self.in_force, &mut problems);
        desired.unread = sets.into_iter().filter(|set| !desired.sets.contains_key(set)).collect();
        if *self.in_force != desired {
            self.in_force = Arc::new(desired);
        }
        problems.sort();
        problems.dedup();
        Reading { desired: Some(self.in_force.clone()), problems, ignored: Vec::new() }
    }

    /// The problems that are reported in one list, so that those of one namespace do not hide those
    /// of the others.
    pub fn reported(&self, problems: &[Problem]) -> Vec<Problem> {
        let max = self.share.of(PROBLEMS_MAX);
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        let mut reported = Vec::new();
        for problem in problems {
            let count = found.entry(namespace_of(problem)).or_default();
            *count += 1;
            if *count <= max {
                reported.push(problem.clone());
            }
        }
        for (namespace, count) in found.into_iter().filter(|(_, count)| *count > max) {
            let file = format!("Namespace {namespace}");
            let message = format!("{}: fix these first", counted(count - max, "more problem"));
            reported.push(Problem::whole(&file, message));
        }
        bounded(reported)
    }

    fn lists(&self, problems: &mut Vec<Problem>) -> StreamFiles {
        let mut lists = StreamFiles::new();
        for (map, NamedMap { keys, no_place }) in self.named_all() {
            let content = self.maps.get(&map);
            for key in keys {
                let reference = ConfigMapKeyRef { name: map.1.clone(), key };
                let file = check::config_map(&map.0, &reference);
                if let Some(no_place) = &no_place {
                    problems.push(Problem::whole(&file, no_place.of_one()));
                }
                let list = match content.map(|content| content.get(&file)) {
                    // Not read yet: not an error.
                    None => None,
                    // It does not exist: the set that names it reports that.
                    Some(None) => continue,
                    Some(Some(Ok(list))) => Some(list.clone()),
                    Some(Some(Err(wrong))) => {
                        problems.extend(wrong.iter().cloned());
                        None
                    }
                };
                lists.insert(file, list);
            }
        }
        lists
    }

    /// The names, in problems, of the lists that an object refers to.
    pub fn lists_of(&self, id: &ObjectId) -> impl Iterator<Item = String> {
        let keys = self.objects.get(id).into_iter().flat_map(|kept| &kept.keys);
        keys.map(|((namespace, name), key)| {
            let reference = ConfigMapKeyRef { name: name.clone(), key: key.clone() };
            check::config_map(namespace, &reference)
        })
    }
}

#[cfg(test)]
mod tests {
    use leasehold_coordinator_core::desired::Cluster;

    use super::*;

    /// The body of a cluster, as it is stored.
    fn stored<'a>(collection: &'a Collection, id: &ObjectId) -> &'a Arc<Cluster> {
        match &collection.objects[id].body {
            Some(ValidSpec::Cluster(cluster)) => cluster,
            other => panic!("not a cluster: {other:?}"),
        }
    }

    #[test]
    fn reading_after_one_change_copies_no_other_body() {
        let id = |name| Collection::id("WorkerCluster", "ci", name).unwrap();
        let spec = |jobs: u32| json!({ "maxJobs": jobs, "maxJobsPerWorker": 3 });
        let set_id = Collection::id("StreamSet", "ci", "cars").unwrap();
        let created = || Created { seconds: 0, uid: "u".into() };
        let mut collection = Collection::default();
        collection.put(&id("changed"), created(), spec(8));
        collection.put(&id("same"), created(), spec(8));
        let streams: Vec<Value> = (0..100).map(|n| json!({ "name": format!("s{n}") })).collect();
        collection.put(&set_id, created(), json!({ "cluster": "same", "streams": streams }));
        let first = collection.read().desired.unwrap();
        collection.put(&id("changed"), created(), spec(9));
        let second = collection.read().desired.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));

        let name = |id: &ObjectId| match id {
            ObjectId::Cluster(name) => name.clone(),
            other => panic!("not a cluster: {other}"),
        };
        for (desired, names) in [(&first, &["same"][..]), (&second, &["same", "changed"])] {
            for id in names.iter().map(|name| id(name)) {
                let in_force = &desired.clusters[&name(&id)];
                assert!(Arc::ptr_eq(in_force, stored(&collection, &id)), "{id} was copied");
            }
        }
        let Some(ValidSpec::Set(draft)) = &collection.objects[&set_id].body else { panic!() };
        for desired in [&first, &second] {
            let in_force = &desired.sets[set_id.set().unwrap()];
            assert!(Arc::ptr_eq(in_force, &draft.set), "{set_id} was copied");
        }
    }
}
