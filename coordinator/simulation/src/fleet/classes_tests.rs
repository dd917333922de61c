//! Whole simulations of a class whose workers serve a pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_manifest::proposal::{Scope, propose};

use super::ClusterRun;
use crate::load::{Load, LoadFile};
use crate::outcome::Side;
use crate::served_shares::PipelineFigures;
use crate::{ClassFigures, IdleTime, run};

/// A class whose workers take ten documents a second, and a pipeline of two nodes.
const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: blue}
spec: {capacity: 10, maxReplicas: 6, scaling: {targetUtilization: 100}, drain: {deadline: 10m}}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: first}
spec:
  documentsPerSecond: 8
  workers:
    read: {class: blue, next: [write]}
    write: {class: blue}
";

/// A load for this class and pipeline, with these events.
fn load(class: &str, pipelines: &str, events: &str) -> Load {
    let manifests = [("manifests.yaml".to_owned(), MANIFESTS.to_owned())].into();
    let reading = propose(&Arc::default(), &manifests, Scope::WholeFolder);
    assert!(reading.problems.is_empty(), "{:?}", reading.problems);
    let text = format!(
        "for: 5h\nclusters:\n- {{name: blue, {class}}}\npipelines: [{pipelines}]\n\
         events: [{events}]\n"
    );
    let read = LoadFile::read("load.yaml", &text);
    let desired = reading.desired.unwrap_or_default();
    let resolved = read.and_then(|file| file.resolve(&desired, &BTreeMap::new()));
    resolved.unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}

/// What became of the class and its pipeline.
struct ClassRun {
    cluster: ClusterRun,
    class: ClassFigures,
    pipeline: PipelineFigures,
}

fn run_with(load: &Load, idle_time: IdleTime) -> ClassRun {
    let mut fleet = run(load, Side::Leasehold, idle_time, 1).unwrap();
    let cluster = fleet.clusters.remove(0);
    let class = cluster.class.clone().unwrap();
    assert!(class.worker_load_max <= 1.0, "no worker has more than its capacity: {class:?}");
    ClassRun { cluster, class, pipeline: fleet.pipelines.remove(0) }
}

fn run_class(class: &str, pipelines: &str, events: &str) -> ClassRun {
    run_with(&load(class, pipelines, events), IdleTime::Skipped)
}

/// The workers at this minute, in a simulation of five hours.
fn workers_at(run: &ClassRun, minute: f64) -> u32 {
    let part = (minute * 60.0 / run.cluster.course.part_seconds) as usize;
    run.cluster.course.workers[part]
}

const STARTUP: &str = "startup: {constant: 30s}";
const RATES: &str = "{name: first, rate: {steps: [{at: \"00:00\", perSecond: 3}, \
                     {at: \"01:00\", perSecond: 8}, {at: \"02:00\", perSecond: 20}, \
                     {at: \"03:00\", perSecond: 3}]}}";
/// Some milliseconds until the first workers have their shares, and as many for each move.
const MOMENTS: f64 = 2.0;

#[test]
fn a_class_has_the_workers_that_the_rate_of_its_pipeline_needs() {
    let run = run_class(STARTUP, RATES, "");
    let workers = [30.0, 90.0, 150.0, 182.0, 240.0].map(|minute| workers_at(&run, minute));
    assert_eq!(workers, [1, 2, 4, 4, 1], "fewer once they have been enough for five minutes");
    assert_eq!(run.class.workers_wanted_max, 4);
    assert_eq!(run.class.workers_wanted[479], 1);
    assert_eq!(run.class.worker_load_max, 1.0, "20 documents fill two workers");
    let ClassRun { pipeline, class, .. } = run;
    assert_eq!(pipeline.documents, 3600 * (3 + 8 + 20 + 3 + 3));
    // The former load stays in force for the 30 s until there are workers enough.
    let beyond = 30 * (8 - 3) + 30 * (20 - 8);
    assert!(
        (beyond..beyond + 60).contains(&pipeline.documents_beyond_shares),
        "{pipeline:?} instead of {beyond}"
    );
    assert!(pipeline.unserved_seconds < MOMENTS, "{pipeline:?}");
    // Nearly all of 6 of 10, 16 of 20 and 40 of 40, for an hour each, and two hours of 6 of 10.
    assert!((0.7..0.9).contains(&class.utilization), "{class:?}");
}

#[test]
fn a_rollout_moves_each_share_once_and_the_pipeline_is_served() {
    for limits in ["maxSurge: 1, maxUnavailable: 0", "maxSurge: 0, maxUnavailable: 1"] {
        let rollout = format!("{{at: 1h, rollout: {{cluster: blue, {limits}}}}}");
        let run = run_class(&format!("{STARTUP}, workers: 2, streamRelease: 1s"), "", &rollout);
        let phase = &run.cluster.phases[1];
        assert_eq!((phase.moves, run.class.moves, run.pipeline.moves), (2, 2, 2), "{limits}");
        // Two workers after one another, each after its start.
        assert!(phase.last_worker_seconds.is_some_and(|last| last > 60.0), "{phase:?}");
        assert!(run.pipeline.unserved_seconds < MOMENTS, "{limits}: {:?}", run.pipeline);
        assert_eq!(workers_at(&run, 120.0), 2);
    }
}

/// No other worker has room: at the deadline of its drain each is asked for its share.
#[test]
fn a_worker_that_drains_serves_its_share_until_the_deadline() {
    let rollout = "{at: 1h, rollout: {cluster: blue, maxSurge: 0, maxUnavailable: 1}}";
    // A new worker has its share before the next one drains.
    let class = "startup: {constant: 30m}, minReady: 1m, workers: 2";
    let run = run_class(class, "", rollout);
    // From ten minutes after its end begins until another worker is ready, after thirty.
    let longest = run.pipeline.unserved_max_seconds;
    assert!((1195.0..1210.0).contains(&longest), "{:?}", run.pipeline);
    let all = run.pipeline.unserved_seconds;
    assert!((2390.0..2425.0).contains(&all), "both of them: {:?}", run.pipeline);
}

#[test]
fn a_pipeline_is_served_again_when_the_leases_of_a_lost_worker_have_ended() {
    let lose = "{at: 1h, lose: {cluster: blue, workers: 2}}";
    let spare = run_class(&format!("{STARTUP}, workers: 4"), "", lose);
    // A lease of 10 s has certainly ended after 10.6 s.
    let longest = spare.pipeline.unserved_max_seconds;
    assert!((8.0..14.0).contains(&longest), "{:?}", spare.pipeline);
    // Without a spare worker the scaling adds one: at its first look after 50 s, and it starts for
    // 30 s.
    let lose = "{at: 1h, lose: {cluster: blue, workers: 1}}";
    let scaled = run_class(STARTUP, "", lose);
    let longest = scaled.pipeline.unserved_max_seconds;
    assert!((79.0..100.0).contains(&longest), "{:?}", scaled.pipeline);
    assert_eq!(workers_at(&scaled, 240.0), 2, "one is removed when the lost one is replaced");
}

#[test]
fn a_worker_is_not_removed_while_its_shares_find_no_room() {
    let scale = "{at: 1h, scale: {cluster: blue, workers: 1}}";
    let run = run_class(&format!("{STARTUP}, workers: 3"), "", scale);
    let workers = [30.0, 240.0].map(|minute| workers_at(&run, minute));
    assert_eq!(workers, [3, 2], "each of two has 8 of 10");
    assert!(run.pipeline.unserved_seconds < MOMENTS, "{:?}", run.pipeline);
}

#[test]
fn no_share_moves_in_a_failover() {
    let workers = format!("{STARTUP}, workers: 3");
    let [without, with] =
        ["", "{at: 1h, failover: {after: 2s}}"].map(|events| run_class(&workers, "", events));
    assert_eq!(with.pipeline, without.pipeline);
    assert_eq!(with.pipeline.moves, 0);
}

/// Documents come at another rate, and nobody can change the manifests.
#[test]
fn the_loads_of_pipelines_follow_their_rates_when_an_outage_is_over() {
    let rates = RATES.replace("{at: \"02:00\", perSecond: 20}, ", "");
    let outage = "{at: 58m, outage: {for: 4m}}";
    let run = run_class(&format!("{STARTUP}, workers: 2"), &rates, outage);
    let beyond = run.pipeline.documents_beyond_shares;
    let expected = 120 * (8 - 3);
    assert!((expected..expected + 10).contains(&beyond), "{:?}", run.pipeline);
}

#[test]
fn idle_time_that_is_skipped_changes_neither_workers_nor_moves() {
    let events =
        "{at: 20m, rollout: {cluster: blue}}, {at: 80m, lose: {cluster: blue, workers: 1}}";
    let load = load(STARTUP, RATES, events);
    let [all, skipped] =
        [IdleTime::Simulated, IdleTime::Skipped].map(|idle_time| run_with(&load, idle_time));
    assert!(all.class.moves > 2, "{:?}", all.class);
    assert_eq!(all.class.moves, skipped.class.moves);
    assert_eq!(all.class.workers_wanted, skipped.class.workers_wanted);
    assert_eq!(all.cluster.course, skipped.cluster.course);
}
