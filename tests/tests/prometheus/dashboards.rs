//! The shipped dashboards: each query is asked of a real Prometheus that scrapes a small fleet.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tests::process::{Coordinator, eventually, free_address};
use tests::prometheus::{Prometheus, Target};
use tests::toolbox;

use super::exported::{EMPTY_IN_HEALTH, metrics};

/// A cluster with streams and jobs, and a pipeline on a class.
pub(super) const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2, lease: {ttl: 2s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec: {cluster: builds, streams: [{name: 'cars:new'}, {name: 'cars:sold'}]}
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: extract}
spec: {capacity: 30, maxReplicas: 4}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: news}
spec:
  documentsPerSecond: 10
  workers: {fetch: {class: extract}}
";

/// A metric that is asked for a share of what has happened: nothing has.
const SHARE_OF_NOTHING: &str = "leasehold_freed_total";

/// A query of a dashboard, and where it stands.
struct Query {
    place: String,
    expression: String,
}

#[test]
fn every_query_of_the_dashboards_finds_what_the_programs_export() {
    let coordinator = Coordinator::start(&[("fleet.yaml", MANIFESTS)]);
    let [builds, extract] = [free_address(), free_address()];
    let health = |address: &std::net::SocketAddr| address.to_string();
    let _agents = [
        coordinator.agent("builds", "w-0", &["--health-listen", &health(&builds)]),
        coordinator.agent("extract", "e-0", &["--health-listen", &health(&extract)]),
    ];
    let targets = [
        Target { pod: "coordinator-0", address: coordinator.http },
        Target { pod: "w-0", address: builds },
        Target { pod: "e-0", address: extract },
    ];
    let Some(prometheus) = Prometheus::start("the test of the dashboards", &targets) else {
        return;
    };
    let known = known_metrics();
    for Query { place, expression } in queries() {
        for metric in metrics_in(&expression) {
            assert!(known.contains(&metric), "{place}: {metric} is in no table");
        }
        let refused = prometheus.query(&expression).err();
        assert_eq!(refused, None, "{place}: {expression}");
        let empty = EMPTY_IN_HEALTH.iter().chain([&SHARE_OF_NOTHING]);
        if !empty.into_iter().any(|metric| expression.contains(metric)) {
            eventually(&format!("{place}: {expression}"), || {
                let found = prometheus.query(&expression).expect("an answer");
                let value = &found.first()?["value"][1];
                println!("{place}: {expression} = {value} ({} series)", found.len());
                Some(())
            });
        }
    }
}

#[test]
fn a_query_of_a_metric_that_does_not_exist_is_found() {
    let known = known_metrics();
    let planted = metrics_in("sum by (x) (rate(leasehold_leases_total{job=\"$job\"}[5m]))");
    assert_eq!(planted, ["leasehold_leases_total"]);
    assert!(!known.contains(&planted[0]));
}

/// Each dashboard has an identity of its own, and each panel says what it shows.
#[test]
fn every_panel_says_what_it_shows() {
    let mut identities = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        let identity = dashboard["uid"].as_str().expect("a uid").to_owned();
        assert!(identities.insert(identity.clone()), "{file}: {identity} twice");
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap_or_default();
            let says = panel["description"].as_str().unwrap_or_default();
            assert!(!title.is_empty() && says.ends_with('.'), "{file}: {title}: {says}");
        }
    }
    assert_eq!(identities.len(), 4);
}

/// What the queries ask, with the variables as a person leaves them.
fn queries() -> Vec<Query> {
    let mut queries = Vec::new();
    for (file, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap_or_default();
            for target in panel["targets"].as_array().into_iter().flatten() {
                let mut expression = target["expr"].as_str().expect("a query").to_owned();
                let values = [
                    ("$__rate_interval", "10s"),
                    ("$__range", "1m"),
                    ("$job", "leasehold"),
                    ("$cluster", ".*"),
                    ("$namespace", ".*"),
                    ("$class", ".*"),
                ];
                for (variable, value) in values {
                    expression = expression.replace(variable, value);
                }
                assert!(!expression.contains('$'), "{file}: {title}: {expression}");
                queries.push(Query { place: format!("{file}: {title}"), expression });
            }
        }
    }
    queries
}

/// The panels with queries: rows and texts have none.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    panels.filter(|panel| panel["targets"].is_array())
}

fn dashboards() -> Vec<(String, Value)> {
    let folder = toolbox::root().join("deploy/grafana");
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("a dashboard");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let entries = std::fs::read_dir(folder).expect("dashboards");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .map(|path| (path.file_name().expect("a name").display().to_string(), read(&path)))
        .collect()
}

/// The metrics that an expression names, as the documents do: without the parts of a histogram.
fn metrics_in(expression: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = expression.split(|c| !is_name(c));
    let names = names.filter(|name| {
        ["leasehold_", "workerclass_request", "workerclass_workers"]
            .iter()
            .any(|start| name.starts_with(start))
    });
    names.map(|name| name.trim_end_matches("_bucket").to_owned()).collect()
}

fn known_metrics() -> BTreeSet<String> {
    metrics().map(|metric| metric.name.to_owned()).collect()
}
