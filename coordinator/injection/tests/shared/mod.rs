//! Settings and pods that several tests use.

use leasehold_injection::{Edit, Resources, Sidecar, apply};
use serde_json::{Value, json};

/// An installation's settings.
pub(crate) fn settings() -> Sidecar {
    Sidecar {
        image: "leasehold/agent:1".into(),
        coordinator: "leasehold-coordinator.leasehold-system.svc:7400".into(),
        server_name: "leasehold-coordinator.leasehold-system.svc".into(),
        audience: "leasehold.dev".into(),
        authority: "leasehold-ca".into(),
        cluster: Some("builds".into()),
        drain_deadline: None,
        flags: Default::default(),
        resources: Resources::standard(),
    }
}

/// A pod after edits.
pub(crate) fn after(edits: &[Edit], pod: &Value) -> Value {
    let mut pod = pod.clone();
    apply(edits, &mut pod);
    pod
}

/// Pods of many shapes.
#[allow(dead_code, reason = "not every test uses them")]
pub(crate) fn pods() -> Vec<(&'static str, Value)> {
    let worker = || json!({ "name": "worker", "image": "w" });
    let with = |spec: Value| json!({ "metadata": { "name": "p" }, "spec": spec });
    let in_worker = |field: &str, value: Value| {
        let mut container = worker();
        container[field] = value;
        with(json!({ "containers": [container] }))
    };
    vec![
        ("bare", json!({ "spec": { "containers": [worker()] } })),
        ("metadata null", json!({ "metadata": null, "spec": { "containers": [worker()] } })),
        (
            "labels and annotations null",
            json!({
                "metadata": { "labels": null, "annotations": null },
                "spec": { "containers": [worker()], "volumes": null, "initContainers": null }
            }),
        ),
        (
            "empty everything",
            json!({
                "metadata": { "labels": {}, "annotations": {} },
                "spec": { "containers": [worker()], "volumes": [], "initContainers": [] }
            }),
        ),
        (
            "labels of its own",
            json!({
                "metadata": {
                    "labels": { "app": "x", "leasehold.dev/cluster": "other" },
                    "annotations": { "a": "b" }
                },
                "spec": { "containers": [worker()] }
            }),
        ),
        (
            "init containers and a native sidecar of its own",
            with(json!({
                "initContainers": [
                    { "name": "mesh", "restartPolicy": "Always" }, { "name": "migrate" }
                ],
                "containers": [worker()],
                "volumes": [{ "name": "data", "emptyDir": {} }]
            })),
        ),
        ("env null", in_worker("env", json!(null))),
        ("env empty", in_worker("env", json!([]))),
        (
            "all variables of its own",
            in_worker(
                "env",
                json!([
                    { "name": "LEASEHOLD_ADDR" }, { "name": "LEASEHOLD_CLUSTER" },
                    { "name": "LEASEHOLD_WORKER" }, { "name": "LEASEHOLD_NAMESPACE" }
                ]),
            ),
        ),
        ("mounts null", in_worker("volumeMounts", json!(null))),
        ("lifecycle null", in_worker("lifecycle", json!(null))),
        ("lifecycle empty", in_worker("lifecycle", json!({}))),
        ("preStop null", in_worker("lifecycle", json!({ "preStop": null }))),
        (
            "hooks of its own",
            in_worker(
                "lifecycle",
                json!({
                    "postStart": { "exec": { "command": ["a"] } },
                    "preStop": { "exec": { "command": ["b", "c"] } }
                }),
            ),
        ),
        ("sleep", in_worker("lifecycle", json!({ "preStop": { "sleep": { "seconds": 1 } } }))),
        (
            "several containers, host network, group",
            with(json!({
                "hostNetwork": true,
                "securityContext": { "fsGroup": 2000 },
                "terminationGracePeriodSeconds": 7200,
                "containers": [worker(), { "name": "logs" }]
            })),
        ),
    ]
}
