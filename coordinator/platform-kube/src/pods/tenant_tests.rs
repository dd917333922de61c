//! What somebody who may patch the pods of a namespace can write there, and what it costs.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::campaign::{EntryAttempt, EntryChange, EntryVersion};
use leasehold_coordinator_core::exposure::{AccountId, Entry, Exposure};
use leasehold_kube_api::names::{
    CLUSTER_LABEL, DRAIN_ANNOTATION, EXPOSURE_ANNOTATION, STREAMS_ANNOTATION,
};
use leasehold_types::{ClusterName, Epoch, Moment};
use serde_json::json;

use super::exposure_annotation::{self, ENTRIES_MAX};
use super::facts::{PodFacts, PodName};
use super::patch::{ObservedPod, PatchDecision, PodPatch};
use super::store::PodStore;

/// More than anybody needs, and less than the 256 KiB that a pod's annotations may have.
const MANY: usize = 2_000;

/// A running pod of cluster `label` with these annotations.
fn pod(version: usize, label: &str, annotations: &BTreeMap<&str, String>) -> PodFacts {
    let pod = json!({
        "metadata": {
            "namespace": "ci", "name": "w-0", "uid": "uid-1",
            "resourceVersion": version.to_string(),
            "labels": { CLUSTER_LABEL: label },
            "annotations": annotations,
        },
        "spec": { "nodeName": "n1", "containers": [] },
        "status": { "phase": "Running" },
    });
    PodFacts::new(&serde_json::from_value(pod).expect("a pod")).expect("a whole pod")
}

fn cluster(name: &str) -> ClusterName {
    ClusterName::in_namespace("ci", name).expect("a name")
}

fn entries(count: usize) -> BTreeMap<ClusterName, Entry> {
    let entry =
        Entry { epoch: Epoch(6), exposure: Exposure { jobs_max: 2, ..Exposure::default() } };
    (0..count).map(|number| (cluster(&format!("c-{number}")), entry.clone())).collect()
}

fn with_exposures(text: String) -> PodFacts {
    pod(1, "builds", &BTreeMap::from([(EXPOSURE_ANNOTATION, text)]))
}

#[test]
fn an_annotation_that_no_leader_writes_counts_for_the_cluster_of_the_pod() {
    let text = |count| exposure_annotation::text(&entries(count)).expect("entries");
    assert_eq!(with_exposures(text(ENTRIES_MAX)).exposures, entries(ENTRIES_MAX));
    let anything = BTreeMap::from([(cluster("builds"), Entry::unreadable())]);
    assert_eq!(with_exposures(text(ENTRIES_MAX + 1)).exposures, anything);
    assert_eq!(with_exposures(text(MANY)).exposures, anything);
    let zeros: Vec<_> = (0..MANY).map(|number| format!("\"ci/c-{number}\":0")).collect();
    assert_eq!(with_exposures(format!("{{{}}}", zeros.join(","))).exposures, anything);
    let padded = format!("{}{}", text(1), " ".repeat(100_000));
    assert_eq!(with_exposures(padded).exposures, anything);
}

#[test]
fn the_longest_names_fit_into_an_annotation_that_is_read() {
    let name = |number: usize| {
        ClusterName::in_namespace(&"n".repeat(63), &format!("{number}{}", "c".repeat(62)))
            .expect("a name")
    };
    let values = entries(ENTRIES_MAX).into_values();
    let written: BTreeMap<_, _> = (0..ENTRIES_MAX).map(name).zip(values).collect();
    let text = exposure_annotation::text(&written).expect("entries");
    let mut pod = json!({ "metadata": { "namespace": "n".repeat(63), "name": "w-0" } });
    pod["metadata"]["annotations"][EXPOSURE_ANNOTATION] = json!(text);
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(pod).expect("a pod");
    assert_eq!(exposure_annotation::read(&pod), written);
}

#[test]
fn a_leader_writes_no_more_entries_than_are_read() {
    let decide = |name: &str, count| {
        let pod = PodName { namespace: "ci".into(), name: "w-0".into() };
        let key = pod.key_in(&cluster(name)).expect("a worker");
        let exposure = Exposure { jobs_max: 3, ..Exposure::default() };
        let change = EntryChange::Register(key, AccountId(1), exposure);
        let attempt = EntryAttempt { change, confirmed: EntryVersion(0) };
        let base = ObservedPod {
            uid: "uid-1".into(),
            version: 1,
            exposures: entries(count),
            mark: with_exposures(String::new()).mark,
        };
        PodPatch::Entry(cluster(name), Epoch(7), attempt).decide(&base)
    };
    assert!(matches!(decide("builds", ENTRIES_MAX - 1), PatchDecision::Patch(..)));
    assert!(matches!(decide("builds", ENTRIES_MAX), PatchDecision::Full));
    assert!(matches!(decide("c-0", ENTRIES_MAX), PatchDecision::Patch(..)), "its own is replaced");
}

#[test]
fn a_pod_that_becomes_another_worker_again_and_again_costs_little() {
    let mut store = PodStore::default();
    for number in 0..MANY {
        let changed = pod(1 + number, &format!("c-{number}"), &BTreeMap::new());
        assert_eq!(store.apply(changed, Moment(0)), []);
    }
    let mut last = pod(1 + MANY, "builds", &BTreeMap::new());
    last.over = true;
    let gone: BTreeSet<_> = store.apply(last, Moment(0)).into_iter().collect();
    assert!(gone.len() < 50, "{} workers of one pod are remembered", gone.len());
    let clusters: BTreeSet<_> = gone.iter().map(|key| key.cluster.clone()).collect();
    assert!(clusters.contains(&cluster("builds")) && clusters.contains(&cluster("c-0")));
}

#[test]
fn long_texts_are_cut() {
    let long = "é".repeat(100_000);
    let annotations =
        BTreeMap::from([(DRAIN_ANNOTATION, long.clone()), (STREAMS_ANNOTATION, long)]);
    let facts = pod(1, "builds", &annotations);
    assert!(facts.drain.is_some_and(|reason| reason.len() <= 1_024));
    assert!(facts.streams.is_some_and(|digest| digest.len() <= 1_024));
}
