//! Settings, pods and looks at them that several tests use.

use leasehold_injection::{Edit, Sidecar, apply, inject, uninject};
use serde_json::{Value, json};

/// An installation's settings.
pub(crate) fn settings() -> Sidecar {
    Sidecar { cluster: Some("builds".into()), ..Sidecar::standard("leasehold/agent:1") }
}

/// A pod after edits.
pub(crate) fn after(edits: &[Edit], pod: &Value) -> Value {
    let mut pod = pod.clone();
    apply(edits, &mut pod);
    pod
}

/// Pods of many shapes.
pub(crate) fn pods() -> Vec<(&'static str, Value)> {
    let worker = || json!({ "name": "worker", "image": "w" });
    let with = |spec: Value| json!({ "metadata": { "name": "p" }, "spec": spec });
    let local = |volumes: &str| {
        let key = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
        json!({
            "metadata": { "annotations": { key: volumes } },
            "spec": { "containers": [worker()] }
        })
    };
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
        ("Istio's native sidecar", istio()),
        ("local volumes of its own", local("data, scratch")),
        ("no local volumes", local("")),
        ("the agent's local volumes", local("leasehold-bin,leasehold-state")),
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
        ("liveness probe", in_worker("livenessProbe", json!({ "httpGet": { "port": 8080 } }))),
        ("startup probe null", in_worker("startupProbe", json!(null))),
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

/// A pod as Istio's injector leaves it for the next one.
pub(crate) fn istio() -> Value {
    json!({
        "metadata": {
            "name": "worker",
            "labels": { "leasehold.dev/inject": "true" },
            "annotations": {
                "sidecar.istio.io/status":
                    r#"{"initContainers":["istio-validation","istio-proxy"],"containers":null}"#
            }
        },
        "spec": {
            "terminationGracePeriodSeconds": 8000,
            "initContainers": [
                { "name": "istio-validation", "args": ["istio-iptables", "--run-validation"] },
                {
                    "name": "istio-proxy",
                    "restartPolicy": "Always",
                    "startupProbe": { "httpGet": { "path": "/healthz/ready", "port": 15021 } }
                }
            ],
            "containers": [{ "name": "worker", "command": ["sleep", "infinity"] }]
        }
    })
}

/// Injects, and looks at what must hold for every pod.
pub(crate) fn check(pod: &Value, with: &Sidecar) -> (Value, Vec<String>) {
    let done = inject(pod, with).unwrap_or_else(|why| panic!("{why}\n{pod:#}"));
    let out = after(&done.edits, pod);
    let again = inject(&out, with).expect("it can be injected again");
    assert_eq!(again.edits, [], "injecting twice is injecting once: {out:#}");
    assert_eq!(again.warnings, done.warnings);
    let back = after(&uninject(&out).expect("it can be taken out"), &out);
    assert_eq!(&back, pod, "what was there comes back");
    (out, done.warnings)
}

pub(crate) fn refusal(pod: &Value, with: &Sidecar) -> String {
    inject(pod, with).expect_err("it is refused").to_string()
}

pub(crate) fn sidecar(pod: &Value) -> &Value {
    &pod["spec"]["initContainers"][0]
}

pub(crate) fn variable<'a>(container: &'a Value, name: &str) -> &'a Value {
    let all = container["env"].as_array().expect("variables");
    let mut found = all.iter().filter(|variable| variable["name"] == name);
    let variable = found.next().unwrap_or(&Value::Null);
    assert!(found.next().is_none(), "{name} is there once");
    variable
}
