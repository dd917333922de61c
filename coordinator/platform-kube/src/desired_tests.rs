//! The state after changes from the watches, in any order in which they may arrive.

use serde_json::{Value, json};

use super::*;

fn source(kind: &'static str) -> Source {
    Source::Objects { kind, namespace: None }
}

fn state() -> State {
    let mut state = State::default();
    for kind in KINDS {
        state.sources.insert(source(kind), SourceState::default());
    }
    state
}

fn object(name: &str, generation: i64, spec: Value, status: Value) -> Box<DynamicObject> {
    let (namespace, name) = name.split_once('/').unwrap();
    let metadata = json!({
        "name": name, "namespace": namespace, "generation": generation, "uid": "u",
    });
    let object = json!({ "metadata": metadata, "spec": spec, "status": status });
    Box::new(serde_json::from_value(object).unwrap())
}

fn cluster(name: &str, generation: i64, jobs_max: i64) -> Box<DynamicObject> {
    let spec = json!({ "maxJobs": jobs_max, "maxJobsPerWorker": 3 });
    object(name, generation, spec, Value::Null)
}

/// The budgets in force.
fn budgets(state: &mut State) -> Vec<(String, u32)> {
    let reading = state.collection.read();
    state.set_problems(&reading.problems);
    let desired = reading.desired.unwrap();
    desired.clusters.iter().map(|(name, cluster)| (name.to_string(), cluster.jobs_max)).collect()
}

fn named(name: &str) -> leasehold_types::ClusterName {
    leasehold_types::ClusterName::new(name).unwrap()
}

#[test]
fn a_relist_deletes_missing_objects_only_when_it_is_complete() {
    let mut state = state();
    let clusters = source(WorkerCluster::KIND);
    state.apply(&clusters, WatchChange::ListStarted);
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 1, 1)));
    state.apply(&clusters, WatchChange::Applied(cluster("a/two", 1, 2)));
    state.apply(&clusters, WatchChange::ListCompleted);
    assert!(state.sources[&clusters].synced);
    let both = [("a/one".to_owned(), 1), ("a/two".to_owned(), 2)];
    assert_eq!(budgets(&mut state), both);

    state.apply(&clusters, WatchChange::ListStarted);
    state.apply(&clusters, WatchChange::Applied(cluster("a/two", 1, 2)));
    assert_eq!(budgets(&mut state), both);
    state.apply(&clusters, WatchChange::ListCompleted);
    assert_eq!(budgets(&mut state), both[1..]);
    state.apply(&clusters, WatchChange::Deleted(cluster("a/two", 1, 2)));
    assert_eq!(budgets(&mut state), []);
    assert_eq!(state.objects, Objects::default());
}

#[test]
fn an_object_has_its_newest_status_and_newest_valid_spec() {
    let mut state = state();
    let clusters = source(WorkerCluster::KIND);
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 1, 8)));
    let spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
    let status = json!({ "maxJobs": 8, "jobs": { "running": 5 } });
    state.apply(&clusters, WatchChange::Applied(object("a/one", 1, spec, status)));
    budgets(&mut state);
    let seen = state.objects.clusters[&named("a/one")].clone();
    assert_eq!(seen.object.status.as_ref().unwrap().jobs.running, 5);
    assert_eq!((seen.generation, seen.problems.len()), (1, 0));

    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 2, -1)));
    assert_eq!(budgets(&mut state), [("a/one".to_owned(), 8)]);
    let seen = &state.objects.clusters[&named("a/one")];
    assert_eq!((seen.object.spec.0.max_jobs, seen.generation), (Some(8), 1));
    assert_eq!(seen.object.metadata.generation, Some(2));
    assert!(!seen.problems.is_empty());

    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 3, 9)));
    assert_eq!(budgets(&mut state), [("a/one".to_owned(), 9)]);
    let seen = &state.objects.clusters[&named("a/one")];
    assert_eq!((seen.object.spec.0.max_jobs, seen.generation), (Some(9), 3));
    assert!(seen.problems.is_empty(), "{:?}", seen.problems);
}

#[test]
fn a_fleet_that_was_never_valid_exists() {
    let mut state = state();
    let clusters = source(WorkerCluster::KIND);
    let has_fleet = |state: &State| state.objects.has_fleet(&named("a/one"));
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 1, -1)));
    assert!(has_fleet(&state));
    assert!(state.objects.clusters.is_empty());
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 2, 8)));
    assert!(has_fleet(&state) && state.objects.never_valid.is_empty());
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 3, -1)));
    assert!(has_fleet(&state) && state.objects.never_valid.is_empty());
    state.apply(&clusters, WatchChange::Deleted(cluster("a/one", 3, -1)));
    assert!(!has_fleet(&state));
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 4, -1)));
    state.apply(&clusters, WatchChange::Deleted(cluster("a/one", 4, -1)));
    assert!(!has_fleet(&state));
}

/// ConfigMaps of the namespace `a`, each with a key.
fn maps(named: &[(&str, &str)]) -> NamedMaps {
    let mut maps = NamedMaps::new();
    for (name, key) in named {
        let keys = maps.entry(("a".to_owned(), (*name).to_owned())).or_default();
        keys.insert((*key).to_owned());
    }
    maps
}

/// A ConfigMap of the namespace `a` has this text at the key `k`.
fn config_map(name: &str, text: &str) -> WatchChange {
    let data = BTreeMap::from([("k".to_owned(), text.to_owned())]);
    WatchChange::ConfigMapApplied(("a".to_owned(), name.to_owned()), data)
}

#[test]
fn the_list_of_config_maps_starts_anew_for_another_one_and_never_before_it_is_complete() {
    let mut state = state();
    let lists = Source::StreamLists { namespace: None };
    assert!(matches!(state.want_maps(&lists, NamedMaps::new()), WantedMaps::AreRead));
    let read = |state: &mut State, wanted: NamedMaps| match state.want_maps(&lists, wanted) {
        WantedMaps::AreRead => "read",
        WantedMaps::None => "none",
        WantedMaps::Unread(maps) => {
            let source = SourceState { maps, ..SourceState::default() };
            state.sources.insert(lists.clone(), source);
            "unread"
        }
    };
    assert_eq!(read(&mut state, maps(&[("one", "k")])), "unread");
    // The list is running.
    assert_eq!(read(&mut state, maps(&[("one", "k"), ("two", "k")])), "read");
    state.apply(&lists, WatchChange::ListStarted);
    state.apply(&lists, config_map("two", "x"));
    state.apply(&lists, WatchChange::ListCompleted);
    assert_eq!(read(&mut state, maps(&[("one", "k"), ("two", "k")])), "unread");
    state.apply(&lists, WatchChange::ListCompleted);
    assert_eq!(read(&mut state, maps(&[("two", "k"), ("two", "l")])), "unread", "another key");
    state.apply(&lists, WatchChange::ListCompleted);
    assert_eq!(read(&mut state, maps(&[("two", "k")])), "read", "fewer need no list");
    assert_eq!(read(&mut state, NamedMaps::new()), "none");
    assert!(!state.sources.contains_key(&lists));
}

#[test]
fn a_config_map_that_nobody_names_is_dropped() {
    let mut state = state();
    let lists = Source::StreamLists { namespace: None };
    let maps = maps(&[("named", "k")]);
    state.sources.insert(lists.clone(), SourceState { maps, ..SourceState::default() });
    state.apply(&lists, config_map("other", "x"));
    assert!(state.sources[&lists].listed_maps.is_empty());
    assert!(!state.is_spec_changed);
    state.apply(&lists, config_map("named", "x"));
    assert!(state.is_spec_changed);
}

#[test]
fn an_invalid_list_is_a_problem_of_the_sets_that_name_it() {
    let mut state = state();
    state.apply(&source(WorkerCluster::KIND), WatchChange::Applied(cluster("a/one", 1, 8)));
    let key = json!({ "name": "list", "key": "k" });
    let spec = json!({ "cluster": "one", "streamsFrom": [{ "configMapKeyRef": key }] });
    let sets = source(StreamSet::KIND);
    state.apply(&sets, WatchChange::Applied(object("a/cars", 1, spec, Value::Null)));
    let map = Source::StreamLists { namespace: None };
    let maps = maps(&[("list", "k")]);
    state.sources.insert(map.clone(), SourceState { maps, ..SourceState::default() });
    let streams = |state: &mut State| {
        let reading = state.collection.read();
        state.set_problems(&reading.problems);
        let (name, seen) = state.objects.sets.first_key_value().unwrap();
        let set = reading.desired.unwrap().sets.get(name).cloned();
        (set.map(|set| set.streams.len()), seen.problems.len())
    };
    assert_eq!(streams(&mut state), (None, 0));
    state.apply(&map, WatchChange::Forbidden("it says no".into()));
    assert_eq!(streams(&mut state), (None, 1));
    assert!(state.sources[&map].synced, "the other objects do not wait for it");
    let problem = state.objects.sets.first_key_value().unwrap().1.problem().unwrap();
    assert!(problem.contains("components/stream-lists"), "{problem}");
    state.apply(&map, WatchChange::ListStarted);
    state.apply(&map, WatchChange::ListCompleted);
    assert_eq!(streams(&mut state), (None, 1));
    let there = |text: &str| config_map("list", text);
    state.apply(&map, there("x\ny"));
    assert_eq!(streams(&mut state), (Some(2), 0));
    state.apply(&map, there("x\nx"));
    assert_eq!(streams(&mut state), (Some(2), 1));
    state.apply(&map, WatchChange::ConfigMapDeleted(("a".to_owned(), "list".to_owned())));
    assert_eq!(streams(&mut state), (Some(2), 1));
    state.apply(&map, there("x\ny\nz"));
    assert_eq!(streams(&mut state), (Some(3), 0));
}

#[test]
fn a_status_change_parses_no_spec_and_a_repeat_publishes_nothing() {
    let mut state = state();
    let clusters = source(WorkerCluster::KIND);
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 1, 8)));
    state.apply(&clusters, WatchChange::Applied(cluster("a/two", 1, 8)));
    assert!(state.read().is_some());
    assert!(std::mem::take(&mut state.is_object_changed));
    let other = Arc::clone(&state.objects.clusters[&named("a/two")].object);

    let spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
    for running in [5, 5, 6, 6] {
        let status = json!({ "maxJobs": 8, "jobs": { "running": running } });
        let is_new = state.objects.clusters[&named("a/one")]
            .object
            .status
            .as_ref()
            .is_none_or(|status| status.jobs.running != running);
        let object = object("a/one", 1, spec.clone(), status);
        state.apply(&clusters, WatchChange::Applied(object));
        assert_eq!(state.read().map(|reading| reading.problems), None);
        assert_eq!(std::mem::take(&mut state.is_object_changed), is_new, "{running} running");
    }
    assert_eq!(state.readings, 1);
    let kept = &state.objects.clusters[&named("a/two")].object;
    assert!(Arc::ptr_eq(&other, kept), "the other object is shared");

    // A spec that is not valid is parsed once, too.
    let invalid = || cluster("a/one", 2, -1);
    state.apply(&clusters, WatchChange::Applied(invalid()));
    assert!(state.read().is_some());
    state.apply(&clusters, WatchChange::Applied(invalid()));
    assert!(state.read().is_none());
    state.apply(&clusters, WatchChange::Applied(cluster("a/one", 3, 9)));
    assert!(state.read().is_some());
    assert_eq!(state.readings, 3);
}
