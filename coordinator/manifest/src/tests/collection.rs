//! Objects of an API server as they come, change and go, with what is in force and what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::Created;
use super::super::check::ObjectId;
use super::super::collection::{Collection, ConfigMapName};

struct Cluster(Collection);

impl Cluster {
    fn new() -> Self {
        Self(Collection::default())
    }

    fn id(kind: &str, name: &str) -> ObjectId {
        let (namespace, name) = name.split_once('/').unwrap();
        Collection::id(kind, namespace, name).unwrap()
    }

    fn put(&mut self, kind: &str, name: &str, spec: Value) -> bool {
        let created = Created { seconds: 0, uid: format!("{kind} {name}") };
        self.0.put(&Self::id(kind, name), created, spec).is_some()
    }

    fn remove(&mut self, kind: &str, name: &str) {
        self.0.remove(&Self::id(kind, name));
    }

    fn list(&mut self, map: &str, keys: &[&str], data: &[(&str, &str)]) {
        let (namespace, name) = map.split_once('/').unwrap();
        let map: ConfigMapName = (namespace.into(), name.into());
        let keys: BTreeSet<String> = keys.iter().map(|key| (*key).into()).collect();
        let data: BTreeMap<String, String> =
            data.iter().map(|(key, text)| ((*key).into(), (*text).into())).collect();
        assert_eq!(self.0.named().get(&map), Some(&keys), "the keys that are named");
        self.0.put_map(&map, &keys, &data);
    }

    /// What is in force: clusters with their budgets, sets with their cluster and streams, and sets
    /// of which nothing is known.
    fn in_force(&mut self) -> (Vec<String>, Vec<String>) {
        let reading = self.0.read();
        let desired = reading.desired.unwrap();
        let clusters = desired.clusters.iter().map(|(name, c)| format!("{name} {}", c.jobs_max));
        let sets = desired.sets.iter().map(|(name, set)| {
            let streams: Vec<&str> = set.streams.iter().map(|s| s.name.as_str()).collect();
            format!("{name} on {}: {}", set.cluster, streams.join(" "))
        });
        let unread = desired.unread.iter().map(|name| format!("{name} is unread"));
        let problems = reading.problems.iter().map(ToString::to_string).collect();
        (clusters.chain(sets).chain(unread).collect(), problems)
    }
}

fn builds(jobs_max: u32) -> Value {
    json!({ "maxJobs": jobs_max, "maxJobsPerWorker": 3 })
}

fn from_map(key: &str) -> Value {
    let key = json!({ "name": "list", "key": key });
    json!({
        "cluster": "builds",
        "streams": [{ "name": "first" }],
        "streamsFrom": [{ "configMapKeyRef": key }],
    })
}

#[test]
fn references_are_resolved_within_the_namespace() {
    let mut api = Cluster::new();
    api.put("WorkerCluster", "ci/builds", builds(8));
    api.put("WorkerCluster", "prod/builds", builds(9));
    let set = json!({ "cluster": "builds", "streams": [{ "name": "a" }] });
    api.put("StreamSet", "prod/cars", set.clone());
    api.put("StreamSet", "dev/cars", set);
    let (in_force, problems) = api.in_force();
    let there = ["ci/builds 8", "prod/builds 9", "prod/cars on prod/builds: a"];
    assert_eq!(in_force[..3], there);
    assert_eq!(in_force[3..], ["dev/cars is unread"]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    let words = "StreamSet dev/cars: spec.cluster: cluster \"dev/builds\" is not defined";
    assert!(problems[0].starts_with(words), "{problems:?}");
}

#[test]
fn an_invalid_object_keeps_its_version_and_a_deleted_one_is_removed() {
    let mut api = Cluster::new();
    assert!(api.put("WorkerCluster", "ci/builds", builds(8)));
    assert!(!api.put("WorkerCluster", "ci/never", json!({ "maxJobs": 8 })));
    assert_eq!(api.in_force().0, ["ci/builds 8"]);
    let negative = json!({ "maxJobs": -1, "maxJobsPerWorker": 3 });
    assert!(!api.put("WorkerCluster", "ci/builds", negative));
    let (in_force, problems) = api.in_force();
    assert_eq!(in_force, ["ci/builds 8"]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("WorkerCluster ci/builds: spec.maxJobs: "), "{problems:?}");
    assert!(api.put("WorkerCluster", "ci/builds", builds(9)));
    assert_eq!(api.in_force().0, ["ci/builds 9"]);
    api.remove("WorkerCluster", "ci/builds");
    api.remove("WorkerCluster", "ci/never");
    assert_eq!(api.in_force(), (vec![], vec![]));
}

#[test]
fn unknown_fields_of_a_newer_version_are_ignored() {
    let mut api = Cluster::new();
    let newer = json!({
        "maxJobs": 8,
        "maxJobsPerWorker": 3,
        "newer": { "a": 1 },
        "lease": { "ttl": "10s", "grace": "1s" },
    });
    assert!(api.put("WorkerCluster", "ci/builds", newer));
    let streams: Vec<Value> =
        (0..100).map(|n| json!({ "name": format!("s{n}"), "newer": true })).collect();
    let set = json!({ "cluster": "builds", "streams": streams });
    assert!(api.put("StreamSet", "ci/cars", set));
    let (in_force, problems) = api.in_force();
    assert_eq!((in_force.len(), problems), (2, vec![]));
}

#[test]
fn a_set_waits_for_its_lists_and_keeps_its_version_while_one_is_wrong() {
    let mut api = Cluster::new();
    api.put("WorkerCluster", "ci/builds", builds(8));
    api.put("StreamSet", "ci/cars", from_map("a.txt"));
    // The list is not read yet: that is not a problem, and no worker loses streams.
    let unread = vec!["ci/builds 8".to_owned(), "ci/cars is unread".to_owned()];
    assert_eq!(api.in_force(), (unread, vec![]));
    api.list("ci/list", &["a.txt"], &[("a.txt", "x\ny\n")]);
    let set = "ci/cars on ci/builds: first x y";
    assert_eq!(api.in_force(), (vec!["ci/builds 8".to_owned(), set.to_owned()], vec![]));

    let wrong: [(&[(&str, &str)], &str); 3] = [
        (
            &[],
            "StreamSet ci/cars: spec.streamsFrom[0].configMapKeyRef: names ConfigMap \
             ci/list[a.txt], which is not there: create it, with the label \
             leasehold.dev/stream-list=true",
        ),
        (
            &[("a.txt", "x\nfirst\n")],
            "ConfigMap ci/list[a.txt]:2:1: stream \"first\" is there already, in StreamSet \
             ci/cars: remove one of them",
        ),
        (&[("a.txt", "")], "ConfigMap ci/list[a.txt]: names no stream: add one"),
    ];
    for (data, words) in wrong {
        api.list("ci/list", &["a.txt"], data);
        let (in_force, problems) = api.in_force();
        assert_eq!(in_force[1], set);
        assert!(problems.len() == 1 && problems[0].starts_with(words), "{problems:?}");
    }
    // Another key: its list is unknown until the ConfigMap is read again.
    api.put("StreamSet", "ci/cars", from_map("b.yaml"));
    api.0.forget_map(&("ci".into(), "list".into()));
    assert_eq!(api.in_force(), (vec!["ci/builds 8".to_owned(), set.to_owned()], vec![]));
    api.list("ci/list", &["b.yaml"], &[("b.yaml", "jobs: [z]\n")]);
    assert_eq!(api.in_force().0[1], "ci/cars on ci/builds: first z");
}

#[test]
fn a_cluster_stays_while_a_set_runs_on_it() {
    let mut api = Cluster::new();
    api.put("WorkerCluster", "ci/builds", builds(8));
    let set = json!({ "cluster": "builds", "streams": [{ "name": "a" }] });
    api.put("StreamSet", "ci/cars", set);
    api.in_force();
    api.remove("WorkerCluster", "ci/builds");
    let (in_force, problems) = api.in_force();
    assert_eq!(in_force, ["ci/builds 8", "ci/cars on ci/builds: a"]);
    assert!(problems[0].contains("is no longer defined"), "{problems:?}");
    api.remove("StreamSet", "ci/cars");
    assert_eq!(api.in_force(), (vec![], vec![]));
}
