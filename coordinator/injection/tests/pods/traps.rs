//! Pods that are written so that an injection could come to harm, or do some.

use leasehold_injection::{inject, uninject};
use serde_json::{Value, json};

use super::shared::{after, settings};

fn pod(metadata: Value) -> Value {
    json!({ "metadata": metadata, "spec": { "containers": [{ "name": "w" }] } })
}

#[test]
fn rejects_null_where_a_string_is_needed_and_names_the_field() {
    for (map, key) in [("annotations", "leasehold.dev/status"), ("labels", "leasehold.dev/cluster")]
    {
        let null = pod(json!({ map: { key: null } }));
        let said = inject(&null, &settings()).expect_err(key).to_string();
        assert_eq!(said, format!("metadata.{map}.{key} is not a string: it is null, remove it"));
        assert_eq!(uninject(&null), Ok(Vec::new()));
    }
}

#[test]
fn leaves_a_mirror_pod_unchanged() {
    let mirror = pod(json!({ "annotations": { "kubernetes.io/config.mirror": "4711" } }));
    let done = inject(&mirror, &settings()).expect("it is no error");
    assert_eq!((done.edits.len(), done.warnings.len()), (0, 1));
    assert!(done.warnings[0].contains("static pod"), "{:?}", done.warnings);
    assert_eq!(after(&done.edits, &mirror), mirror);
}

#[test]
fn a_variable_follows_the_own_variable_that_it_references() {
    let mut own = pod(json!({}));
    own["spec"]["containers"][0]["env"] =
        json!([{ "name": "A" }, { "name": "LEASEHOLD_NAMESPACE", "value": "n" }, { "name": "B" }]);
    let out = after(&inject(&own, &settings()).expect("it can be").edits, &own);
    let env = out["spec"]["containers"][0]["env"].as_array().expect("variables");
    let names: Vec<_> =
        env.iter().map(|variable| variable["name"].as_str().expect("a name")).collect();
    let (addr, worker) = ("LEASEHOLD_ADDR", "LEASEHOLD_WORKER");
    assert_eq!(names, [addr, worker, "A", "LEASEHOLD_NAMESPACE", "LEASEHOLD_CLUSTER", "B"]);
    assert_eq!(inject(&out, &settings()).expect("it can be").edits, []);
    assert_eq!(after(&uninject(&out).expect("it can be"), &out), own);
}

#[test]
fn a_defaulted_request_is_never_above_the_limit() {
    for (given, requested, limited) in [
        (json!({ "memory-limit": "8Mi" }), json!(null), "8Mi"),
        (json!({ "memory-limit": "1Gi" }), json!(null), "1Gi"),
        (json!({ "memory-request": "128Mi" }), json!("128Mi"), "128Mi"),
        (json!({ "memory-request": "32Mi" }), json!("32Mi"), "64Mi"),
        (json!({ "memory-request": "32Mi", "memory-limit": "1Gi" }), json!("32Mi"), "1Gi"),
    ] {
        let given = given.as_object().expect("settings").iter();
        let annotations: serde_json::Map<_, _> = given
            .map(|(key, setting)| (format!("config.leasehold.dev/{key}"), setting.clone()))
            .collect();
        let pod = pod(json!({ "annotations": annotations }));
        let out = after(&inject(&pod, &settings()).expect("it can be").edits, &pod);
        let resources = &out["spec"]["initContainers"][0]["resources"];
        assert_eq!(resources["requests"]["memory"], requested, "{resources}");
        assert_eq!(resources["limits"]["memory"], limited, "{resources}");
        assert_eq!(resources["requests"]["cpu"], "10m");
    }
}

#[test]
fn warns_about_a_pod_without_cluster_dns() {
    let is_warned = |spec: Value, coordinator: &str| {
        let mut pod = pod(json!({}));
        for (key, value) in spec.as_object().expect("a map") {
            pod["spec"][key] = value.clone();
        }
        let mut with = settings();
        with.coordinator = coordinator.into();
        let done = inject(&pod, &with).expect("it can be");
        done.warnings.iter().any(|warning| warning.contains("set ClusterFirstWithHostNet"))
    };
    let service = "leasehold-coordinator.leasehold-system.svc:7400";
    let host = |policy: &str| json!({ "hostNetwork": true, "dnsPolicy": policy });
    assert!(is_warned(json!({ "hostNetwork": true }), service));
    assert!(is_warned(host("ClusterFirst"), service));
    assert!(is_warned(json!({ "dnsPolicy": "Default" }), "c.n.svc.cluster.local:7400"));
    assert!(!is_warned(host("ClusterFirstWithHostNet"), service));
    assert!(!is_warned(host("ClusterFirst"), "10.0.0.1:7400"));
    assert!(!is_warned(json!({ "dnsPolicy": "ClusterFirst" }), service));
}
