//! Who has the places of a limit, and the names that two objects want: what one namespace has, and
//! what a process remembers, must not decide about the objects of others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_types::limits::{self, NamespaceShare};
use serde_json::{Value, json};

use super::super::admission::opinion;
use super::super::check::ObjectId;
use super::super::collection::{CONFIG_MAPS_MAX, Collection, ConfigMapName};
use super::super::{Catalog, Created};

/// An object as the API server has it.
#[derive(Clone)]
struct Object {
    kind: &'static str,
    name: String,
    created: Created,
    spec: Value,
}

impl Object {
    fn new(kind: &'static str, name: &str, seconds: i64, spec: Value) -> Self {
        let created = Created { seconds, uid: format!("{kind} {name}") };
        Self { kind, name: name.into(), created, spec }
    }

    fn cluster(name: &str, seconds: i64) -> Self {
        let spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
        Self::new("WorkerCluster", name, seconds, spec)
    }

    fn class(name: &str, seconds: i64) -> Self {
        Self::new("WorkerClass", name, seconds, json!({ "capacity": 10, "maxReplicas": 3 }))
    }

    fn pipeline(name: &str, seconds: i64, node: &str) -> Self {
        let workers = json!({ node: { "class": "blue" } });
        let spec = json!({ "documentsPerSecond": 1, "workers": workers });
        Self::new("Pipeline", name, seconds, spec)
    }

    fn set(name: &str, seconds: i64, cluster: &str, streams: usize) -> Self {
        let streams: Vec<Value> =
            (0..streams).map(|n| json!({ "name": format!("s{n}") })).collect();
        let spec = json!({ "cluster": cluster, "streams": streams });
        Self::new("StreamSet", name, seconds, spec)
    }

    /// A set of the streams under one key of each of these ConfigMaps.
    fn set_of_maps(name: &str, seconds: i64, maps: Range<usize>) -> Self {
        let key = |n| json!({ "configMapKeyRef": { "name": format!("m{n:04}"), "key": "k" } });
        let sources: Vec<Value> = maps.map(key).collect();
        let spec = json!({ "cluster": "jobs", "streamsFrom": sources });
        Self::new("StreamSet", name, seconds, spec)
    }

    fn id(&self) -> ObjectId {
        let (namespace, name) = self.name.split_once('/').unwrap();
        Collection::id(self.kind, namespace, name).unwrap()
    }

    fn put(&self, collection: &mut Collection) {
        let stored = collection.put(&self.id(), self.created.clone(), self.spec.clone());
        assert!(stored.is_some(), "{} {} is not valid", self.kind, self.name);
    }
}

fn share(percent: u32) -> NamespaceShare {
    NamespaceShare::of_percent(percent).unwrap()
}

/// A collection of these objects, as a process that starts reads them.
fn collection<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Collection {
    let mut collection = Collection::new(share(1));
    for object in objects {
        object.put(&mut collection);
    }
    collection
}

/// The names in force, by kind, and all problems.
fn read(collection: &mut Collection) -> (Arc<Desired>, Vec<String>) {
    let reading = collection.read();
    let problems = reading.problems.iter().map(ToString::to_string).collect();
    (reading.desired.unwrap(), problems)
}

fn keys<N: std::fmt::Display, T>(map: &BTreeMap<N, T>) -> Vec<String> {
    map.keys().map(ToString::to_string).collect()
}

#[test]
fn the_clusters_of_one_namespace_do_not_keep_out_those_of_another() {
    let mut many = Collection::default();
    for number in 0..limits::CLUSTERS_MAX as i64 {
        Object::cluster(&format!("crowd/c{number:04}"), number).put(&mut many);
    }
    read(&mut many);
    Object::cluster("other/later", 5_000).put(&mut many);
    Object::class("other/also-later", 5_001).put(&mut many);
    let (desired, problems) = read(&mut many);
    let names = keys(&desired.clusters);
    assert!(names.contains(&"other/later".to_owned()), "{:?}", problems.last());
    assert!(names.contains(&"other/also-later".to_owned()), "{:?}", problems.last());
    // The oldest 250 have the places of the namespace.
    let crowd: Vec<_> = names.iter().filter(|name| name.starts_with("crowd/")).collect();
    assert_eq!((crowd.len(), crowd[249].as_str()), (250, "crowd/c0249"));
    assert_eq!(problems.len(), 750);
    let words = "WorkerCluster crowd/c0250: metadata.name: is one more than 250 WorkerClusters and \
                 WorkerClasses, the most that namespace crowd may have: delete those that are not \
                 needed, or ask for a higher --namespace-share of the coordinators";
    assert_eq!(problems[0], words);
    // A deleted one makes room for the oldest that waits.
    many.remove(&Object::cluster("crowd/c0007", 7).id());
    let (desired, _) = read(&mut many);
    assert!(keys(&desired.clusters).contains(&"crowd/c0250".to_owned()));
}

#[test]
fn each_limit_has_a_part_for_each_namespace() {
    let mut objects = vec![Object::cluster("a/jobs", 0), Object::class("a/blue", 0)];
    let (sets, pipelines) = (limits::SETS_MAX / 100, limits::PIPELINES_MAX / 100);
    for number in 0..sets + 1 {
        objects.push(Object::set(&format!("a/s{number}"), number as i64, "jobs", 1));
    }
    for number in 0..pipelines + 1 {
        objects.push(Object::pipeline(&format!("a/p{number}"), number as i64, "x"));
    }
    objects.push(Object::cluster("b/jobs", 9_000));
    objects.push(Object::set("b/s", 9_001, "jobs", 1));
    objects.push(Object::pipeline("b/p", 9_002, "x"));
    let (desired, problems) = read(&mut collection(&objects));
    assert_eq!(desired.sets.len(), sets + 1, "one of b, and all but one of a");
    assert_eq!(desired.pipelines.len(), pipelines + 1, "one of b, and all but one of a");
    let refused = [("Pipeline a/p1000", "1000 pipelines"), ("StreamSet a/s100", "100 stream sets")];
    assert_eq!(problems.len(), refused.len(), "{problems:?}");
    for (problem, (object, limit)) in problems.iter().zip(refused) {
        let words = format!(
            "{object}: metadata.name: is one more than {limit}, the most that namespace a may have"
        );
        assert!(problem.starts_with(&words), "{problem}");
    }
    // What has no place is not in force, but it exists: its workers keep their streams.
    assert_eq!(desired.unread.len(), 1);
}

#[test]
fn a_set_that_grows_beyond_its_namespace_keeps_its_version_and_harms_no_other() {
    let most = limits::STREAMS_MAX / 100;
    let objects = [
        Object::cluster("a/jobs", 0),
        Object::cluster("b/jobs", 0),
        Object::set("a/old", 1, "jobs", most - 10),
        Object::set("a/small", 2, "jobs", 10),
        Object::set("b/late", 3, "jobs", most),
    ];
    let mut api = collection(&objects);
    let (desired, problems) = read(&mut api);
    assert_eq!((desired.sets.len(), problems), (3, vec![]));
    let grown = Object::set("a/old", 1, "jobs", most + 1);
    grown.put(&mut api);
    let (desired, problems) = read(&mut api);
    let counts: Vec<usize> = desired.sets.values().map(|set| set.streams.len()).collect();
    assert_eq!(counts, [most - 10, 10, most]);
    let words = "StreamSet a/old: spec.streams: brings the sets of namespace a together to more \
                 than 10000 streams: delete those";
    assert!(problems.len() == 1 && problems[0].starts_with(words), "{problems:?}");
    // A process that starts remembers no version of it, and decides the same of the others.
    let mut objects = objects.to_vec();
    objects[2] = grown;
    let (after, same) = read(&mut collection(&objects));
    assert_eq!(keys(&after.sets), ["a/small", "b/late"]);
    assert_eq!(same, problems);
}

#[test]
fn config_maps_have_places_by_the_age_of_the_sets_that_name_them() {
    let objects = [
        Object::cluster("a/jobs", 0),
        Object::cluster("z/jobs", 0),
        Object::set_of_maps("a/second", 2, 0..CONFIG_MAPS_MAX),
        Object::set_of_maps("a/first", 1, 500..505),
        Object::set_of_maps("z/last", 3, 0..3),
    ];
    let mut api = collection(&objects);
    let named: Vec<ConfigMapName> = api.named().into_keys().collect();
    let in_a: Vec<&str> =
        named.iter().filter(|map| map.0 == "a").map(|map| map.1.as_str()).collect();
    let first = ["m0500", "m0501", "m0502", "m0503", "m0504"];
    let second = ["m0000", "m0001", "m0002", "m0003", "m0004"];
    assert_eq!(in_a, [second, first].concat());
    assert_eq!(named.iter().filter(|map| map.0 == "z").count(), 3);
    let (_, problems) = read(&mut api);
    assert_eq!(problems.len(), CONFIG_MAPS_MAX - 10);
    let words = "ConfigMap a/m0005[k]: is one more than 10 ConfigMaps, the most that namespace a \
                 may have";
    assert!(problems[0].starts_with(words), "{:?}", problems[0]);
}

#[test]
fn a_coordinator_reads_as_many_config_maps_as_it_takes_and_no_other() {
    /// The most keys that a set may name, by its custom resource definition.
    const KEYS: usize = 100;
    let mut api = Collection::new(NamespaceShare::WHOLE);
    Object::cluster("a/jobs", 0).put(&mut api);
    for set in 0..CONFIG_MAPS_MAX / KEYS {
        let maps = KEYS * set..KEYS * (set + 1);
        Object::set_of_maps(&format!("a/s{set}"), 1, maps).put(&mut api);
    }
    let named = api.named();
    assert_eq!(named.len(), CONFIG_MAPS_MAX);
    for (map, keys) in &named {
        let data = BTreeMap::from([("k".to_owned(), format!("of {}\n", map.1))]);
        api.put_map(map, keys, &data);
    }
    let (desired, problems) = read(&mut api);
    assert!(problems.is_empty(), "{problems:?}");
    let counts: Vec<usize> = desired.sets.values().map(|set| set.streams.len()).collect();
    assert_eq!(counts, [KEYS; CONFIG_MAPS_MAX / KEYS]);
    let more = CONFIG_MAPS_MAX..CONFIG_MAPS_MAX + 1;
    Object::set_of_maps("a/late", 2, more).put(&mut api);
    let (_, problems) = read(&mut api);
    let words = "ConfigMap a/m1000[k]: is one more than 1000 ConfigMaps, the most that one \
                 coordinator takes";
    assert!(problems.iter().any(|problem| problem.starts_with(words)), "{problems:?}");
}

#[test]
fn the_older_of_two_objects_has_the_name_whatever_was_in_force() {
    let class = Object::class("a/blue", 1);
    let cluster = Object::cluster("a/blue", 2);
    let long = Object::pipeline("a/p-b", 4, "c");
    let short = Object::pipeline("a/p", 3, "b-c");
    let everything = [&class, &cluster, &long, &short];
    let mut newer_first = collection([&cluster, &long]);
    read(&mut newer_first);
    everything.iter().for_each(|object| object.put(&mut newer_first));
    let (desired, problems) = read(&mut newer_first);
    assert!(desired.clusters["a/blue"].class.is_some());
    assert_eq!(keys(&desired.pipelines), ["a/p"]);
    let words = [
        "Pipeline a/p-b: spec.workers.c: makes a binding called \"p-b-c\", and so does node \
         \"b-c\" of pipeline \"p\": rename one",
        "WorkerCluster a/blue: metadata.name: is the name of a WorkerClass too, which is older and \
         keeps it",
    ];
    assert_eq!(problems.len(), 2, "{problems:?}");
    for (problem, words) in problems.iter().zip(words) {
        assert!(problem.starts_with(words), "{problem}");
    }
    let (restarted, same) = read(&mut collection(everything));
    assert_eq!((restarted, same), (desired, problems));
}

#[test]
fn what_is_in_force_depends_on_the_objects_alone() {
    let mut rng = fastrand::Rng::with_seed(13);
    for _ in 0..40 {
        let mut objects = Vec::new();
        for number in 0..60 {
            let namespace = if rng.bool() { "a" } else { "b" };
            let (name, seconds) = (rng.u8(0..12), rng.i64(0..8));
            let mut object = match rng.u8(0..6) {
                0 => Object::cluster(&format!("{namespace}/c{name}"), seconds),
                1 => Object::class(&format!("{namespace}/c{name}"), seconds),
                2 => Object::pipeline(&format!("{namespace}/p-b"), seconds, "c"),
                3 => Object::pipeline(&format!("{namespace}/p"), seconds, "b-c"),
                _ => {
                    let streams = rng.usize(1..7_000);
                    let cluster = format!("c{}", rng.u8(0..12));
                    Object::set(&format!("{namespace}/s{name}"), seconds, &cluster, streams)
                }
            };
            object.created.uid = format!("{}-{number}", rng.u32(..));
            objects.push(object);
        }
        let mut seen = BTreeSet::new();
        objects.retain(|object| seen.insert(object.id().to_string()));
        let mut lived = Collection::new(share(1));
        // Sets come last: a process keeps the cluster of a set in force.
        objects.sort_by_key(|object| object.kind == "StreamSet");
        let fleets = objects.iter().take_while(|object| object.kind != "StreamSet").count();
        rng.shuffle(&mut objects[..fleets]);
        rng.shuffle(&mut objects[fleets..]);
        for object in &objects {
            object.put(&mut lived);
            if rng.u8(0..4) == 0 {
                read(&mut lived);
            }
        }
        let found = read(&mut lived);
        rng.shuffle(&mut objects);
        let (desired, problems) = read(&mut collection(&objects));
        assert_eq!(found.1, problems);
        assert_eq!(found.0, desired);
    }
}

#[test]
fn the_problems_of_one_namespace_do_not_hide_those_of_another() {
    let mut api = Collection::default();
    let set = |name: &str| Object::set(name, 0, "missing", 1);
    for number in 0..2_000 {
        set(&format!("crowd/s{number}")).put(&mut api);
    }
    set("other/s").put(&mut api);
    let problems = api.read().problems;
    let reported = api.reported(&problems);
    assert_eq!((problems.len(), reported.len()), (2_001, 252));
    assert_eq!(reported[0].to_string(), "Namespace crowd: 1750 more problems: fix these first");
    assert!(reported[251].file.ends_with("other/s"), "{}", reported[251]);
}

#[test]
fn a_class_beyond_the_limit_of_its_namespace_is_refused_before_it_is_stored() {
    let classes: Vec<Object> =
        (0..10).map(|number| Object::class(&format!("a/c{number}"), number)).collect();
    let (in_force, _) = read(&mut collection(&classes));
    let asked =
        |object: &Object| opinion(&in_force, share(1), &object.id(), object.spec.clone()).problems;
    let problems = asked(&Object::class("a/one-more", 0));
    assert!(
        problems[0].message.starts_with("is one more than 10 WorkerClusters and WorkerClasses")
    );
    assert_eq!(asked(&Object::class("b/first", 0)), []);
    assert_eq!(asked(&classes[3]), [], "it has its place");
}

#[test]
fn in_files_what_is_in_force_stays() {
    let folder = tempfile::tempdir().unwrap();
    let write = |names: Range<usize>| {
        let text = names.map(|number| {
            format!(
                "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                 metadata: {{name: c{number:04}}}\nspec: {{maxJobs: 1, maxJobsPerWorker: 1}}\n---\n"
            )
        });
        std::fs::write(folder.path().join("all.yaml"), text.collect::<String>()).unwrap();
    };
    let mut catalog = Catalog::new(folder.path());
    write(1..limits::CLUSTERS_MAX + 1);
    assert_eq!(catalog.read().problems, []);
    write(0..limits::CLUSTERS_MAX + 1);
    let reading = catalog.read();
    let problems: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
    let words = "all.yaml:3:18: metadata.name: is one more than 1000 WorkerClusters and \
                 WorkerClasses, the most that one coordinator takes";
    assert!(problems.len() == 1 && problems[0].starts_with(words), "{problems:?}");
    let names = keys(&reading.desired.unwrap().clusters);
    assert!(!names.contains(&"c0000".to_owned()) && names.len() == limits::CLUSTERS_MAX);
}
