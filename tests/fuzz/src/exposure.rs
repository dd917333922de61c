//! The annotations and labels of a pod, as the Kubernetes platform reads them: anyone who may patch
//! a pod may write anything there. An input is a whole pod as JSON, or the text of the exposure's
//! annotation of a pod that has all else.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_kube_api::names::{CLUSTER_LABEL, EXPOSURE_ANNOTATION};
use leasehold_platform::exposure_record::ExposureRecord;
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::ClusterName;
use leasehold_types::limits::{JOBS_PER_WORKER_MAX, TTL_MAX};
use serde_json::{Value, json};

/// The most entries of an annotation that are read.
const ENTRIES_MAX: usize = 8;
/// The longest text of a pod that is kept.
const TEXT_BYTES_MAX: usize = 1024;

/// Reads an input as a pod.
pub fn run(input: &[u8]) {
    if let Ok(exposure) = serde_json::from_slice::<ExposureRecord>(input) {
        survives(&Exposure::from(exposure));
    }
    match serde_json::from_slice::<Pod>(input) {
        Ok(pod) => facts_of(&pod),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    let metadata = json!({
        "name": "builds-0",
        "namespace": "ci",
        "uid": "1",
        "resourceVersion": "7",
        "labels": {CLUSTER_LABEL: "builds"},
        "annotations": {EXPOSURE_ANNOTATION: text},
    });
    let pod: Pod = serde_json::from_value(json!({"metadata": metadata})).expect("a pod");
    let facts = PodFacts::new(&pod).expect("a pod with a name");
    check(&facts.exposures);
    let written = serde_json::from_str::<BTreeMap<String, Value>>(text);
    let own = written.map(|written| written.keys().any(|name| name.starts_with("ci/")));
    match own {
        // It counts as everything, and never as nothing.
        Err(_) => assert!(facts.exposures.values().any(Entry::is_unreadable)),
        Ok(true) => assert!(!facts.exposures.is_empty()),
        Ok(false) => {}
    }
}

fn facts_of(pod: &Pod) {
    let Some(facts) = PodFacts::new(pod) else { return };
    check(&facts.exposures);
    for text in
        [&facts.drain, &facts.streams, &facts.node, &facts.agent_image].into_iter().flatten()
    {
        assert!(text.len() <= TEXT_BYTES_MAX, "{} bytes are kept of a pod", text.len());
    }
}

fn check(exposures: &BTreeMap<ClusterName, Entry>) {
    assert!(exposures.len() <= ENTRIES_MAX, "{} entries were read", exposures.len());
    for entry in exposures.values() {
        survives(&entry.exposure);
    }
}

/// What was read is within the limits, and is the same once it is written and read again.
fn survives(exposure: &Exposure) {
    assert!(exposure.ttl <= TTL_MAX && exposure.jobs_max <= JOBS_PER_WORKER_MAX, "{exposure:?}");
    let text = serde_json::to_string(&ExposureRecord::from(exposure)).expect("JSON");
    let again: ExposureRecord = serde_json::from_str(&text).expect("it was just written");
    assert_eq!(&Exposure::from(again), exposure, "{text}");
}
