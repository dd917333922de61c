//! What pods are warned of, why they are refused, and which are left alone.

use leasehold_injection::names::STATUS;
use leasehold_injection::{inject, injected, uninject};
use serde_json::{Value, json};

use super::shared::{check, refusal, settings};

#[test]
fn skips_a_hand_written_sidecar_and_an_opted_out_pod() {
    let by_hand = json!({ "spec": {
        "initContainers": [{ "name": "leasehold-agent", "image": "x" }],
        "containers": [{ "name": "w" }]
    } });
    let done = inject(&by_hand, &settings()).expect("it is no error");
    assert_eq!(done.edits, []);
    assert!(done.warnings[0].contains("by hand"), "{:?}", done.warnings);
    let found = injected(&by_hand).expect("it has one");
    assert_eq!((found.image.as_str(), found.digest), ("x", None));
    assert_eq!(uninject(&by_hand), Ok(Vec::new()));

    let no = json!({
        "metadata": { "labels": { "leasehold.dev/inject": "false" } },
        "spec": { "containers": [{ "name": "w" }] }
    });
    let done = inject(&no, &settings()).expect("it is no error");
    assert_eq!((done.edits.len(), done.warnings.len()), (0, 1));
}

#[test]
fn warns_about_surprising_settings() {
    let mut with = settings();
    with.drain_deadline = Some(std::time::Duration::from_secs(600));
    let pod = |spec: Value| {
        let mut pod = json!({ "spec": { "containers": [
            { "name": "w" }, { "name": "x", "ports": [{ "containerPort": 7412 }] }
        ] } });
        for (key, value) in spec.as_object().expect("a map") {
            pod["spec"][key] = value.clone();
        }
        pod
    };
    let warned = |spec: Value, words: &str| {
        let (_, warnings) = check(&pod(spec), &with);
        warnings.iter().any(|warning| warning.contains(words))
    };
    assert!(warned(json!({}), "terminationGracePeriodSeconds is 30 (the default), and a drain"));
    assert!(warned(json!({ "terminationGracePeriodSeconds": 600 }), "Set it above 600"));
    assert!(!warned(json!({ "terminationGracePeriodSeconds": 601 }), "terminationGrace"));
    assert!(warned(json!({ "hostNetwork": true }), "7411 and 7412 are the node's"));
    assert!(warned(json!({ "hostNetwork": true }), "deploy/components/host-network"));
    assert!(!warned(json!({ "hostNetwork": false }), "hostNetwork"));
    assert!(warned(json!({}), "spec.containers[1] listens on port 7412"));
    with.drain_deadline = None;
    let (out, warnings) = check(&pod(json!({})), &with);
    assert!(warnings.iter().any(|warning| warning.contains("drain.deadline")), "{warnings:?}");
    let kept = out["metadata"]["annotations"][STATUS].as_str().expect("the annotation");
    assert_eq!(leasehold_injection::warnings(kept), warnings);
    assert_eq!(leasehold_injection::warnings("{}"), Vec::<String>::new());
}

#[test]
fn refusals_name_the_field_and_the_fix() {
    let mut nameless = settings();
    nameless.cluster = None;
    let plain = json!({ "spec": { "containers": [{ "name": "w" }] } });
    assert!(refusal(&plain, &nameless).starts_with("metadata.labels: leasehold.dev/cluster is"));
    let cases = [
        (json!({}), "spec is not a map"),
        (json!({ "spec": { "containers": [] } }), "spec.containers is empty"),
        (json!({ "spec": { "containers": null } }), "spec.containers is empty"),
        (json!({ "spec": { "containers": {} } }), "spec.containers is not a list"),
        (json!({ "spec": { "containers": [3] } }), "spec.containers[0] is not a map"),
        (json!({ "spec": { "containers": [{}] } }), "spec.containers[0].name is not set"),
        (json!({ "spec": [] }), "spec is not a map"),
        (json!([]), "the pod is not a map"),
        (
            json!({ "spec": { "containers": [{ "name": "w" }], "volumes": "x" } }),
            "spec.volumes is not a list",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "w" }, { "name": "leasehold-agent" }] } }),
            "spec.containers[1] is taken",
        ),
        (
            json!({ "spec": {
                "containers": [{ "name": "w" }], "volumes": [{ "name": "leasehold-bin" }]
            } }),
            "spec.volumes[0] is taken",
        ),
        (
            json!({ "spec": { "containers": [
                { "name": "w", "volumeMounts": [{ "name": "x", "mountPath": "/leasehold" }] }
            ] } }),
            "spec.containers[0].volumeMounts[0] is taken",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "w" }], "os": { "name": "windows" } } }),
            "spec.os.name is not linux",
        ),
        (
            json!({ "spec": {
                "containers": [{ "name": "w" }], "nodeSelector": { "kubernetes.io/os": "windows" }
            } }),
            "spec.nodeSelector.kubernetes.io/os is not linux",
        ),
        (
            json!({
                "metadata": { "annotations": { "leasehold.dev/status": "{}" } },
                "spec": { "containers": [{ "name": "w" }] }
            }),
            "metadata.annotations: cannot read leasehold.dev/status",
        ),
        (
            json!({
                "metadata": { "labels": { "leasehold.dev/cluster": "a/b" } },
                "spec": { "containers": [{ "name": "w" }] }
            }),
            "leasehold.dev/cluster",
        ),
    ];
    for (pod, start) in cases {
        let said = refusal(&pod, &settings());
        assert!(said.starts_with(start), "{said}");
    }
    for (annotation, value, words) in [
        ("imgae", json!("x"), "did you mean config.leasehold.dev/image?"),
        ("image", json!("a b"), "invalid image"),
        ("image", json!(3), "write it in quotes"),
        ("state-dir", json!("/x"), "cannot be set"),
        ("memory-limit", json!("64MB"), "invalid quantity"),
        ("cpu-request", json!("0"), "cannot run with 0"),
        ("drain-deadline", json!("soon"), "invalid duration"),
    ] {
        let key = format!("config.leasehold.dev/{annotation}");
        let pod = json!({
            "metadata": { "annotations": { key.as_str(): value } },
            "spec": { "containers": [{ "name": "w" }] }
        });
        let said = refusal(&pod, &settings());
        assert!(said.contains(words) && said.contains(&key), "{said}");
    }
}
