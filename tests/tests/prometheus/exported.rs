//! What both programs export, held against their tables of metrics, and the document of these.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::metric::{Metric, markdown};
use tests::answers::{lease, metric};
use tests::process::{Agent, Coordinator, eventually, free_address, get};
use tests::toolbox;

use super::dashboards::MANIFESTS;

const DOCUMENT: &str = "docs/METRICS.md";

/// Metrics without a series in a fleet to which nothing has happened: TLS, Kubernetes, and what a
/// worker or a pipeline does for the first time.
pub(super) const EMPTY_IN_HEALTH: [&str; 5] = [
    "leasehold_certificate_expiry_timestamp_seconds",
    "leasehold_unreadable_namespaces",
    "leasehold_pipeline_heal_duration_seconds",
    "leasehold_handover_duration_seconds",
    "leasehold_drain_duration_seconds",
];

/// Every metric of both programs.
pub(super) fn metrics() -> impl Iterator<Item = &'static Metric> {
    leasehold_driver::metrics::METRICS.iter().chain(leasehold_agent::metrics::METRICS).copied()
}

#[test]
fn the_document_lists_every_metric() {
    let expected = format!(
        "# Metrics\n\n\
         Written by `make generate` from the tables in the code, which also create the metrics.\n\
         Where and how they are exported: [OPERATIONS](OPERATIONS.md#metrics). Units are those of\n\
         UCUM: `s` is seconds, `1` a truth or a number without a unit, and braces say what is\n\
         counted. The coordinator's histograms have classic buckets in every format, exemplars in\n\
         OpenMetrics and protobuf, and native buckets in protobuf only. A scrape has one format:\n\
         [how to turn them on](OPERATIONS.md#native-histograms-and-exemplars).\n\n\
         ## The coordinator\n\n{}\n## The agent\n\n{}",
        markdown(leasehold_driver::metrics::METRICS),
        markdown(leasehold_agent::metrics::METRICS)
    );
    let path = toolbox::root().join(DOCUMENT);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &expected).expect("the document is written");
    }
    let document = std::fs::read_to_string(&path).expect("the document");
    assert!(document == expected, "{DOCUMENT} is stale: make generate");
}

/// Names have no double, and say what Prometheus' rules ask for.
#[test]
fn names_follow_the_rules_of_prometheus() {
    let mut names = BTreeSet::new();
    for metric in metrics() {
        let Metric { name, kind, unit, meaning, .. } = metric;
        assert!(names.insert(name), "{name} twice");
        let is_counter = kind.word() == "counter";
        assert_eq!(name.ends_with("_total"), is_counter, "{name}: {kind:?}");
        assert_eq!(name.ends_with("_seconds"), *unit == "s", "{name}: {unit}");
        assert!(meaning.ends_with('.') && !meaning.contains('\n'), "{name}: {meaning}");
    }
}

#[test]
fn the_programs_export_what_their_tables_say() {
    let coordinator = Coordinator::start(&[("fleet.yaml", MANIFESTS)]);
    let health = free_address();
    let _worker = coordinator.agent("builds", "w-0", &["--health-listen", &health.to_string()]);
    let _server = coordinator.agent("extract", "e-0", &[]);
    let known: BTreeMap<&str, &Metric> = metrics().map(|metric| (metric.name, metric)).collect();
    let missing = |exported: &BTreeMap<String, Exported>| -> Vec<&str> {
        let names = known.keys().copied().filter(|name| !EMPTY_IN_HEALTH.contains(name));
        names.filter(|name| exported.get(*name).is_none_or(|one| one.labels.is_empty())).collect()
    };
    let exported = eventually("a series of every metric", || {
        let exported = exported(&[coordinator.http, health].map(|address| {
            let (_, text) = get(address, "/metrics")?;
            Some(text)
        }))?;
        let missing = missing(&exported);
        if !missing.is_empty() {
            eprintln!("without a series: {missing:?}");
        }
        missing.is_empty().then_some(exported)
    });
    for (name, Exported { kind, help, labels }) in &exported {
        let metric = known.get(name.as_str()).unwrap_or_else(|| panic!("{name} is in no table"));
        assert_eq!(kind, metric.kind.word(), "{name}");
        assert_eq!(help, metric.meaning, "{name}");
        let expected: BTreeSet<&str> = metric.labels.iter().copied().collect();
        for labels in labels {
            let labels: BTreeSet<&str> = labels.iter().map(String::as_str).collect();
            assert_eq!(labels, expected, "{name}");
        }
    }
}

/// How long handovers and drains take is known once there were some.
#[test]
fn a_drain_and_its_handovers_are_measured() {
    let coordinator = Coordinator::start(&[("fleet.yaml", MANIFESTS)]);
    let mut leaver = coordinator.agent("builds", "w-0", &[]);
    eventually("both streams", || (held(&leaver)? == 2).then_some(()));
    let count =
        |of: &str| metric(coordinator.http, &format!("leasehold_{of}_duration_seconds_count"));
    assert_eq!([count("handover"), count("drain")], [None, None]);
    let heir = coordinator.agent("builds", "w-1", &[]);
    leaver.process.signal(rustix::process::Signal::TERM);
    assert!(leaver.process.wait().success(), "{}", leaver.process.log());
    eventually("the streams at their next owner", || (held(&heir)? == 2).then_some(()));
    eventually("the end of the drain", || (count("drain")? == 1.0).then_some(()));
    assert!(
        count("handover").is_some_and(|handovers| handovers >= 1.0),
        "{}",
        coordinator.process.log()
    );
    assert!(count("push").is_some_and(|pushes| pushes >= 2.0), "grants to two agents");
}

/// The streams that the agent holds.
fn held(agent: &Agent) -> Option<usize> {
    lease(agent.api)?["streams"].as_array().map(Vec::len)
}

/// A metric as a program exports it.
#[derive(Default)]
struct Exported {
    kind: String,
    help: String,
    /// The names of the labels of each series, without a histogram's own.
    labels: BTreeSet<BTreeSet<String>>,
}

/// What these texts export, by name; `None` if one is missing.
fn exported(texts: &[Option<String>]) -> Option<BTreeMap<String, Exported>> {
    let mut exported: BTreeMap<String, Exported> = BTreeMap::new();
    for text in texts {
        for line in text.as_ref()?.lines() {
            if let Some(head) = line.strip_prefix("# HELP ") {
                let (name, help) = head.split_once(' ').expect("a name and a help");
                exported.entry(name.to_owned()).or_default().help = help.to_owned();
            } else if let Some(head) = line.strip_prefix("# TYPE ") {
                let (name, kind) = head.split_once(' ').expect("a name and a type");
                exported.entry(name.to_owned()).or_default().kind = kind.to_owned();
            } else {
                let (series, _) = line.rsplit_once(' ').expect("a series and a value");
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let of_histogram = ["_bucket", "_sum", "_count"];
                let name = of_histogram
                    .iter()
                    .filter_map(|part| name.strip_suffix(part))
                    .find(|name| exported.get(*name).is_some_and(|one| one.kind == "histogram"))
                    .unwrap_or(name)
                    .to_owned();
                let labels = labels.strip_suffix('}').expect("the end of the labels");
                let labels = labels.split(',').filter_map(|label| label.split_once('='));
                let labels =
                    labels.map(|(label, _)| label.to_owned()).filter(|label| label != "le");
                exported.entry(name).or_default().labels.insert(labels.collect());
            }
        }
    }
    Some(exported)
}
