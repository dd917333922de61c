//! What is wrong with a load beside manifests of several namespaces, and with the events of a load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Mode, Moves, Node, Pipeline, Policy, Rebalance, Spread, Stream,
    StreamSet,
};
use leasehold_manifest::Problem;
use leasehold_types::{
    ClusterName, Load as DocumentLoad, NodeName, PipelineName, SetName, StreamName,
};

use super::{Load, LoadFile};

/// `ci/builds` and `web/builds` with 8 jobs, 1 for each worker, and `web/feeds` without jobs.
fn desired() -> Desired {
    let clusters = [("ci/builds", 8), ("web/builds", 8), ("web/feeds", 0)];
    let clusters = clusters.map(|(name, jobs_max)| {
        let cluster = Cluster { jobs_max, jobs_per_worker_max: 1, ..Cluster::example() };
        let name: ClusterName = name.parse().unwrap();
        (name, Arc::new(cluster))
    });
    Desired { clusters: clusters.into(), ..Desired::default() }
}

fn resolve(text: &str, desired: &Desired) -> Result<Load, Vec<Problem>> {
    let file = LoadFile::read("load.yaml", text)?;
    file.resolve(desired, &BTreeMap::new())
}

/// What is wrong with a file beside the clusters above.
fn problems(text: &str) -> Vec<String> {
    let problems = resolve(text, &desired()).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

fn cluster(name: &str) -> String {
    format!("- name: {name}\n  arrivals: {{perHour: 6}}\n  durations: {{constant: 1m}}\n")
}

/// A load of both clusters with jobs, and these events.
fn load(events: &str) -> String {
    let clusters = cluster("ci/builds") + &cluster("web/builds");
    format!("for: 3h\nclusters:\n{clusters}events: [{events}]\n")
}

#[test]
fn an_event_names_one_cluster() {
    let event = |name: &str| problems(&load(&format!("{{at: 1h, rollout: {{cluster: {name}}}}}")));
    assert_eq!(event("web/builds"), Vec::<String>::new());
    assert_eq!(
        event("builds"),
        ["load.yaml:9:38: events[0].rollout.cluster: is builds, but there are ci/builds and \
          web/builds: name one of them"]
    );
    let alone = format!("for: 3h\nclusters:\n{}", cluster("ci/builds"));
    let alone = alone + "events: [{at: 1h, rollout: {cluster: builds}}]\n";
    assert_eq!(problems(&alone), Vec::<String>::new(), "only one has this name");
}

#[test]
fn names_that_are_not_known_are_answered_with_those_that_are() {
    let of_cluster = problems(&format!("for: 3h\nclusters:\n{}", cluster("media")));
    assert_eq!(
        of_cluster,
        ["load.yaml:3:9: clusters[0].name: is media, which no WorkerCluster or WorkerClass is \
          called: use one of: ci/builds, web/builds, web/feeds"]
    );
    let of_event = problems(&load("{at: 1h, rollout: {cluster: media}}"));
    assert_eq!(
        of_event,
        ["load.yaml:9:38: events[0].rollout.cluster: is media, which is not among clusters \
          above: add it, or use one of: ci/builds, web/builds"]
    );
    let without_manifests = resolve(&load(""), &Desired::default()).unwrap_err();
    let first = without_manifests[0].to_string();
    assert!(
        first.ends_with("the manifests define no WorkerCluster or WorkerClass: add it to them"),
        "{first}"
    );
}

#[test]
fn events_make_no_more_workers_than_one_coordinator_takes() {
    let of_budget = |jobs: u32| {
        let event = format!("{{at: 2h, budget: {{cluster: ci/builds, maxJobs: {jobs}}}}}");
        problems(&load(&format!(
            "{event}, {{at: 1h, scale: {{cluster: web/builds, workers: 5000}}}}"
        )))
    };
    assert_eq!(of_budget(15_000), Vec::<String>::new());
    assert_eq!(
        of_budget(15_001),
        ["load.yaml:9:57: events[0].budget.maxJobs: makes 20001 workers of all clusters \
          together, more than the 20000 that one coordinator takes: lower it"]
    );
    let scaled = "{at: 1h, scale: {cluster: web/builds, workers: 19999}}";
    let found = problems(&load(scaled));
    assert!(found[0].contains("events[0].scale.workers: makes 20007 workers"), "{found:?}");
    // A cluster that has been scaled keeps its workers.
    let both = "{at: 1h, scale: {cluster: ci/builds, workers: 3}}, \
                {at: 2h, budget: {cluster: ci/builds, maxJobs: 100000}}";
    assert_eq!(problems(&load(both)), Vec::<String>::new());
}

#[test]
fn an_event_with_a_budget_says_whether_the_cluster_or_the_number_is_wrong() {
    let feeds = "- name: feeds\n  workers: 2\n";
    let event = "events: [{at: 1h, budget: {cluster: feeds, maxJobs: 3}}]\n";
    assert_eq!(
        problems(&format!("for: 3h\nclusters:\n{feeds}{event}")),
        ["load.yaml:5:37: events[0].budget.cluster: names a WorkerCluster whose manifest has no \
          maxJobs, so that no job runs there: remove the event, or add maxJobs to the manifest"]
    );
    assert_eq!(
        problems(&load("{at: 1h, budget: {cluster: ci/builds, maxJobs: 10000001}}")),
        ["load.yaml:9:57: events[0].budget.maxJobs: is 10000001, but must be from 0 to 10000000"]
    );
}

#[test]
fn a_cluster_whose_workers_only_own_streams_has_workers_and_nothing_about_jobs() {
    let feeds = "for: 3h\nclusters:\n- name: feeds\n";
    assert_eq!(
        problems(feeds),
        ["load.yaml:3:3: clusters[0].workers: is missing, and the manifest has no maxJobs that \
          would say it: add the number of workers"]
    );
    let feeds = format!("{feeds}  workers: 2\n");
    assert_eq!(problems(&feeds), Vec::<String>::new());
    for (field, value) in [
        ("arrivals", "{perHour: 6}"),
        ("durations", "{constant: 1m}"),
        ("deployment", "{pool: 3}"),
        ("autoscaler", "{minReplicas: 2}"),
    ] {
        let found = problems(&format!("{feeds}  {field}: {value}\n"));
        let column = 5 + field.len();
        assert_eq!(
            found,
            [format!(
                "load.yaml:5:{column}: clusters[0].{field}: is given, but maxJobs of the manifest \
                 is 0, so that no job would ever run: remove it"
            )]
        );
    }
}

/// The classes `blue` and `green`, of which two workers take ten documents a second each, and a
/// pipeline over both.
fn classes() -> Desired {
    let load = |documents| DocumentLoad::per_second(documents).unwrap();
    let class = Class {
        capacity: load(10),
        workers_min: 1,
        workers_max: 2,
        utilization: 100,
        spread: Spread::Fewest,
        rebalance: Rebalance::Never,
        handover_deadline: Duration::from_secs(30),
    };
    let names: [ClusterName; 2] = ["blue", "green"].map(|name| name.parse().unwrap());
    let cluster = Cluster { jobs_max: 0, class: Some(class), ..Cluster::example() };
    let nodes = names.clone().map(|class| {
        let node = NodeName::new(class.as_str()).unwrap();
        (node, Node { class, next: [].into() })
    });
    let pipeline = Pipeline { load: load(5), nodes: nodes.into() };
    Desired {
        clusters: names.map(|name| (name, Arc::new(cluster.clone()))).into(),
        pipelines: [(PipelineName::new("first").unwrap(), Arc::new(pipeline))].into(),
        ..Desired::default()
    }
}

fn class_problems(text: &str) -> Vec<String> {
    let problems = resolve(&format!("for: 3h\n{text}"), &classes()).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_wrong_with_classes_and_the_rates_of_pipelines_is_named_with_what_to_do() {
    let both = "clusters: [{name: blue}, {name: green}]\n";
    assert_eq!(class_problems(both), Vec::<String>::new());
    for (text, problem) in [
        (
            "clusters: [{name: blue}]\n".to_owned(),
            "load.yaml:2:11: clusters: lacks class green, which pipeline first needs beside \
             others that are here: add it",
        ),
        (
            both.replace("{name: blue}", "{name: blue, workers: 3}"),
            "load.yaml:2:34: clusters[0].workers: is 3, above maxReplicas (2): lower it",
        ),
        (
            both.replace("{name: blue}", "{name: blue, durations: {constant: 1m}}"),
            "clusters[0].durations: is given for a WorkerClass, whose workers serve pipelines and \
             run no jobs: remove it",
        ),
        (
            format!("{both}pipelines: [{{name: firs, rate: {{perSecond: 1}}}}]\n"),
            "load.yaml:3:20: pipelines[0].name: is firs, which no Pipeline of the classes among \
             clusters is called; did you mean first?",
        ),
        (
            format!("{both}pipelines: [{{name: first, rate: {{perSecond: 21}}}}]\n"),
            "load.yaml:3:45: pipelines[0].rate.perSecond: is a rate that can never fit: class \
             blue: 1 node of 21 documents per second needs 3 workers of capacity 10, and \
             maxReplicas is 2",
        ),
        (
            format!(
                "{both}pipelines: [{{name: first, rate: {{steps: [{{at: \"01:00\", perSecond: 1}}, \
                 {{at: \"02:00\", perSecond: 21}}]}}}}]\n"
            ),
            "pipelines[0].rate.steps[1].perSecond: is a rate that can never fit: class blue",
        ),
        (
            format!("{both}pipelines: [{{name: first, rate: {{}}}}]\n"),
            "pipelines[0].rate: gives no rate: add perSecond, or steps as in",
        ),
        (
            format!("{both}pipelines: [{{name: first, rate: {{perSecond: -1}}}}]\n"),
            "load.yaml:3:45: pipelines[0].rate.perSecond: ",
        ),
        (
            format!(
                "{both}pipelines: [{{name: first, rate: {{steps: [{{at: \"02:00\", perSecond: 1}}, \
                 {{at: \"01:00\", perSecond: 2}}]}}}}]\n"
            ),
            "pipelines[0].rate.steps[1].at: is not after the step before: sort the steps",
        ),
        (
            format!(
                "{both}pipelines: [{{name: first, rate: {{perSecond: 1}}}}, \
                 {{name: first, rate: {{perSecond: 2}}}}]\n"
            ),
            "pipelines[1].name: is first again: give its rate once",
        ),
        (
            format!("{both}events: [{{at: 1h, scale: {{cluster: blue, workers: 3}}}}]\n"),
            "events[0].scale.workers: is 3, above maxReplicas (2): lower it",
        ),
        (
            format!("{both}events: [{{at: 1h, budget: {{cluster: blue, maxJobs: 3}}}}]\n"),
            "events[0].budget.cluster: names a WorkerClass, which has no budget: name a",
        ),
    ] {
        let found = class_problems(&text);
        assert!(found.iter().any(|one| one.contains(problem)), "{problem}\n{found:#?}\n{text}");
    }
    let of_cluster =
        problems("for: 3h\nclusters: [{name: feeds, workers: 2, stabilization: 1m}]\n");
    assert_eq!(
        of_cluster,
        ["load.yaml:2:53: clusters[0].stabilization: is given for a WorkerCluster, which its \
          budget scales: remove it"]
    );
}

#[test]
fn pipelines_have_the_rate_of_the_start_and_change_it_with_the_time_of_the_day() {
    let text = "for: 20h\nstart: \"20:00\"\nclusters: [{name: blue}, {name: green}]\n\
                pipelines: [{name: first, rate: {steps: [{at: \"08:00\", perSecond: 9}, \
                {at: \"18:00\", perSecond: \"2.5\"}]}}]\n";
    let load = resolve(text, &classes()).unwrap();
    let name = PipelineName::new("first").unwrap();
    assert_eq!(load.desired.pipelines[&name].load, DocumentLoad::from_milli(2_500).unwrap());
    let [change] = load.rate_changes.as_slice() else { panic!("{:?}", load.rate_changes) };
    assert_eq!(change.at.as_secs(), 12 * 3600);
    assert_eq!(change.rates, [(name, DocumentLoad::per_second(9).unwrap())].into());
}

#[test]
fn what_is_wrong_with_the_weights_of_streams_is_named_with_what_to_do() {
    let stream = |number| Stream {
        name: StreamName::new(&format!("stream-{number}")).unwrap(),
        weight: 1,
        dedicated: false,
    };
    let set = StreamSet {
        cluster: "web/feeds".parse().unwrap(),
        streams: Arc::new((0..2).map(stream).collect()),
        policy: Policy::Sticky,
        mode: Mode::Expiring,
        handover_deadline: Duration::from_secs(30),
        moves: Moves {
            per_round_max: usize::MAX,
            cooldown: Duration::from_secs(30),
            settle: Duration::from_secs(1),
        },
    };
    let sets = [(SetName::new("cars").unwrap(), Arc::new(set))].into();
    let desired = Desired { sets, ..desired() };
    let wrong = |streams: &str| {
        let clusters = "clusters: [{name: feeds, workers: 2}]";
        let text = format!("for: 3h\n{clusters}\nstreams: [{streams}]\n");
        resolve(&text, &desired).unwrap_err()[0].to_string()
    };
    let weights = "weights: [{at: \"00:00\", weight: 1}]";
    for (streams, problem) in [
        (
            format!("{{set: cras, names: [stream-0], {weights}}}"),
            "streams[0].set: is cras, which no StreamSet of the clusters is called",
        ),
        (
            format!("{{set: cars, names: [stream-x], {weights}}}"),
            "streams[0].names[0]: is stream-x, which cars does not have: name one of its streams",
        ),
        (format!("{{set: cars, names: [], {weights}}}"), "streams[0].names: is empty: name the"),
        (
            format!("{{set: cars, names: [stream-0, stream-0], {weights}}}"),
            "streams[0].names: has stream-0 again: give its weights once",
        ),
        (
            "{set: cars, names: [stream-0], weights: [{at: \"00:00\", weight: 0}]}".to_owned(),
            "streams[0].weights[0].weight: is 0, but must be from 1 to 1000000",
        ),
        (
            "{set: cars, names: [stream-0], weights: []}".to_owned(),
            "streams[0].weights: is empty: give at least one",
        ),
    ] {
        let found = wrong(&streams);
        assert!(found.contains(problem), "{problem}: {found}");
    }
}
