//! Invalid manifests with the problems that are reported, and valid ones with their desired state.
//! `UPDATE_EXPECT=1` writes the expectations anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, RolloutOrder, StreamSet,
};

use super::{Catalog, Reading};

mod collection;
mod last_good;
mod pipelines;
mod tenants;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/manifests").join(name)
}

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to.join(from.file_name().unwrap())).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            copy(&path, &to.join(path.file_name().unwrap()));
        } else {
            copy(&path, to);
        }
    }
}

fn reported(case: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    copy(case, folder.path());
    let problems = Catalog::new(folder.path()).read().problems;
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

#[test]
fn every_problem_is_reported_with_file_line_column_and_field() {
    let mut cases: Vec<PathBuf> = fs::read_dir(testdata("bad"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "expect"))
        .collect();
    cases.sort();
    assert!(cases.len() >= 35, "only {} cases found", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let expect = case.with_extension("expect");
        let reported = reported(&case);
        assert!(!reported.is_empty(), "{} has no problem", case.display());
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&expect, &reported).unwrap();
        }
        let expected = fs::read_to_string(&expect).unwrap_or_default();
        if reported != expected {
            wrong.push(format!("{}:\n{reported}expected:\n{expected}", case.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn read_good(name: &str) -> Desired {
    let folder = tempfile::tempdir().unwrap();
    copy(&testdata("good").join(name), folder.path());
    let reading = Catalog::new(folder.path()).read();
    assert_eq!(reading.problems, []);
    (*reading.desired.unwrap()).clone()
}

fn only<K, V: Clone>(map: &std::collections::BTreeMap<K, std::sync::Arc<V>>) -> V {
    assert_eq!(map.len(), 1);
    (**map.values().next().unwrap()).clone()
}

fn names(set: &StreamSet) -> Vec<(&str, u32, bool)> {
    set.streams.iter().map(|s| (s.name.as_str(), s.weight, s.dedicated)).collect()
}

#[test]
fn what_has_no_effect_in_a_file_is_named() {
    let said = |name: &str| {
        let ignored = Catalog::new(&testdata("ignored").join(name)).read().ignored;
        ignored.iter().map(|notice| format!("{notice}\n")).collect::<String>()
    };
    for name in ["clusters", "classes"] {
        let expect = testdata("ignored").join(name).with_extension("expect");
        let said = said(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&expect, &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(&expect).unwrap_or_default(), "{name}");
    }
}

#[test]
fn a_list_that_is_read_by_its_changes_gives_what_a_new_reading_gives() {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    let manifests = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                     metadata: {name: a}\nspec: {maxJobs: 1, maxJobsPerWorker: 1}\n---\n\
                     apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {name: s}\n\
                     spec: {cluster: a, streamsFrom: [{file: one.txt}, {file: two.txt}]}\n";
    write("a.yaml", manifests);
    let range = |numbers: std::ops::Range<u32>| numbers.map(|number| format!("s{number}"));
    let mut lists: [Vec<String>; 2] = [range(0..10).collect(), range(10..20).collect()];
    let mut rng = fastrand::Rng::with_seed(1);
    let mut catalog = Catalog::new(folder.path());
    let (mut valid, mut invalid) = (0, 0);
    for round in 0..500 {
        let before = lists.clone();
        for _ in 0..rng.usize(0..4) {
            let list = &mut lists[rng.usize(0..2)];
            let line = match rng.u8(0..12) {
                0 => "bad\u{7}".to_owned(),
                1 => "# s1".to_owned(),
                _ => format!("s{}", rng.u32(0..100)),
            };
            match (rng.u8(0..4), rng.usize(0..=list.len())) {
                (0 | 1, at) => list.insert(at, line),
                (2, at) if at < list.len() => _ = list.remove(at),
                (_, at) if at < list.len() => list[at] = line,
                _ => {}
            }
        }
        write("one.txt", &lists[0].join("\n"));
        write("two.txt", &lists[1].join("\n"));
        let mut other = Catalog::new(folder.path());
        if let Some(last_good) = catalog.last_good() {
            other.restore(last_good);
        }
        let (changed, anew) = (catalog.read(), other.read());
        assert_eq!(changed.problems, anew.problems, "round {round}");
        assert_eq!(changed.desired, anew.desired, "round {round}");
        if anew.problems.is_empty() {
            let all = lists.iter().flatten().filter(|line| !line.starts_with('#'));
            let all: Vec<_> = all.map(|name| (name.as_str(), 1, false)).collect();
            assert_eq!(names(&only(&anew.desired.unwrap().sets)), all, "round {round}");
            valid += 1;
        } else {
            lists = before;
            invalid += 1;
        }
    }
    assert!(valid > 100 && invalid > 50, "{valid} valid lists and {invalid} invalid ones");
}

#[test]
fn a_cluster_without_jobs_is_one_whose_workers_only_own_streams() {
    let cluster = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                   metadata: {name: swarm}\nspec: {}\n";
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("swarm.yaml"), cluster).unwrap();
    let Reading { desired, problems, .. } = Catalog::new(folder.path()).read();
    assert_eq!(problems, []);
    let cluster = only(&desired.unwrap().clusters);
    assert_eq!((cluster.jobs_max, cluster.jobs_per_worker_max), (0, 1));
}

#[test]
fn the_smallest_and_the_largest_values_are_taken_and_none_beyond_them() {
    const JOBS: &str = "maxJobs: 1, maxJobsPerWorker: 1";
    let object = |kind: &str, spec: &str| {
        format!(
            "apiVersion: leasehold.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: a}}\n\
             spec: {{{spec}}}\n---\n"
        )
    };
    let cluster = |spec: &str| object("WorkerCluster", spec);
    let lease = |ttl: &str| cluster(&format!("{JOBS}, lease: {{ttl: {ttl}}}"));
    let set = |weight: u32| {
        let spec = format!("cluster: a, streams: [{{name: x, weight: {weight}}}]");
        cluster(JOBS) + &object("StreamSet", &spec)
    };
    for (text, refused) in [
        (cluster("maxJobs: 10000000, maxJobsPerWorker: 10000"), None),
        (cluster("maxJobs: 10000001, maxJobsPerWorker: 10000"), Some("spec.maxJobs: ")),
        (cluster("maxJobs: 10000000, maxJobsPerWorker: 10001"), Some("spec.maxJobsPerWorker: ")),
        (lease("200ms"), None),
        (lease("199ms"), Some("spec.lease.ttl: must be from 200ms to 10m")),
        (lease("10m"), None),
        (lease("601s"), Some("spec.lease.ttl: must be from 200ms to 10m")),
        (set(1_000_000), None),
        (set(1_000_001), Some("spec.streams[0].weight: ")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.yaml"), &text).unwrap();
        let problems = Catalog::new(folder.path()).read().problems;
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let is_as_wanted = match refused {
            None => problems.is_empty(),
            Some(words) => problems.iter().any(|problem| problem.contains(words)),
        };
        assert!(is_as_wanted, "{text}: {problems:?}");
    }
}

#[test]
fn omitted_fields_have_the_documented_defaults() {
    let desired = read_good("defaults");
    let cluster = Cluster {
        jobs_max: 8,
        jobs_per_worker_max: 3,
        drain_deadline: Duration::from_secs(7200),
        ttl: Duration::from_secs(10),
        floor: 0,
        lost_after: None,
        rollout_order: RolloutOrder::Newest,
        ..Cluster::example()
    };
    assert_eq!(only(&desired.clusters), cluster);
    let set = only(&desired.sets);
    assert_eq!((set.policy, set.mode), (Policy::Sticky, Mode::Expiring));
    assert_eq!(set.handover_deadline, Duration::from_secs(30));
    let (cooldown, settle) = (Duration::from_secs(30), Duration::from_millis(200));
    assert_eq!(set.moves, Moves { per_round_max: usize::MAX, cooldown, settle });
    assert_eq!(names(&set), [("a", 1, false), ("b c", 5, true)]);
}

#[test]
fn every_field_and_every_form_of_a_streams_file_is_read() {
    let desired = read_good("everything");
    let cluster = Cluster {
        jobs_max: 0,
        jobs_per_worker_max: 1,
        drain_deadline: Duration::from_secs(90),
        ttl: Duration::from_millis(500),
        floor: 1,
        lost_after: Some(Duration::from_secs(3600)),
        rollout_order: RolloutOrder::Fair,
        ..Cluster::example()
    };
    assert_eq!(only(&desired.clusters), cluster);
    let set = only(&desired.sets);
    assert_eq!((set.policy, set.mode), (Policy::Contiguous, Mode::Pinned));
    assert_eq!(set.handover_deadline, Duration::from_secs(1));
    let (cooldown, settle) = (Duration::ZERO, Duration::from_millis(50));
    assert_eq!(set.moves, Moves { per_round_max: 7, cooldown, settle });
    let wanted = ["cars:new", "cars:updated", "no:1", "stream:a", "stream:b", "stream:c"];
    let mut wanted: Vec<_> = wanted.iter().map(|name| (*name, 1, false)).collect();
    wanted.push(("stream:d", 2, false));
    assert_eq!(names(&set), wanted);
}
