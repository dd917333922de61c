//! Pods that were injected before, and what became of them since.

use leasehold_injection::{apply, inject, injected, uninject};
use serde_json::{Value, json};

use super::shared::{after, check, pods, settings};

#[test]
fn new_settings_replace_the_old_injection_completely() {
    let mut newer = settings();
    newer.image = "leasehold/agent:2".into();
    newer.flags.insert("log-format".into(), "json".into());
    for (name, pod) in pods() {
        let (old, _) = check(&pod, &settings());
        let (new, _) = check(&pod, &newer);
        let edits = inject(&old, &newer).expect(name).edits;
        assert_eq!(after(&edits, &old), new, "{name}");
        assert_eq!(injected(&new).expect(name).image, "leasehold/agent:2");
        assert_ne!(injected(&new).expect(name).digest, injected(&old).expect(name).digest);
    }
}

#[test]
fn an_injected_pod_keeps_its_cluster() {
    let pod = json!({ "spec": { "containers": [{ "name": "w" }] } });
    let (out, _) = check(&pod, &settings());
    for cluster in [None, Some("another".to_owned())] {
        let mut with = settings();
        with.cluster = cluster;
        assert_eq!(inject(&out, &with).expect("the label says it").edits, []);
        with.image = "newer".into();
        let anew = after(&inject(&out, &with).expect("the label says it").edits, &out);
        assert_eq!(anew["metadata"]["labels"]["leasehold.dev/cluster"], "builds");
        assert_eq!(after(&uninject(&anew).expect("it can be"), &anew), pod);
    }
}

#[test]
fn defaults_of_the_api_server_need_no_new_injection() {
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "w" }] } });
    let (mut out, _) = check(&pod, &settings());
    let mount = json!({ "name": "kube-api-access-x", "mountPath": "/var/run/secrets/k" });
    let spec = &mut out["spec"];
    spec["volumes"].as_array_mut().expect("a list").push(json!({ "name": "kube-api-access-x" }));
    for list in ["initContainers", "containers"] {
        let container = &mut spec[list][0];
        container["terminationMessagePath"] = "/dev/termination-log".into();
        container["volumeMounts"].as_array_mut().expect("a list").push(mount.clone());
    }
    spec["initContainers"][0]["livenessProbe"]["successThreshold"] = 1.into();
    assert_eq!(inject(&out, &settings()).expect("it can be").edits, []);
    let back = after(&uninject(&out).expect("it can be"), &out);
    assert_eq!(
        back["spec"],
        json!({
            "containers": [{
                "name": "w",
                "terminationMessagePath": "/dev/termination-log",
                "volumeMounts": [mount]
            }],
            "volumes": [{ "name": "kube-api-access-x" }]
        })
    );
}

#[test]
fn restores_a_removed_part_of_the_injection() {
    let pod = json!({ "spec": { "containers": [{ "name": "w", "env": [{ "name": "A" }] }] } });
    let (whole, _) = check(&pod, &settings());
    for lost in [
        "/spec/initContainers/0",
        "/spec/volumes/1",
        "/spec/containers/0/env/0",
        "/spec/containers/0/volumeMounts/0",
        "/spec/containers/0/lifecycle/preStop",
    ] {
        let mut broken = whole.clone();
        let (parent, last) = lost.rsplit_once('/').expect("a path");
        match broken.pointer_mut(parent).expect(lost) {
            Value::Array(list) => drop(list.remove(last.parse().expect("a number"))),
            Value::Object(map) => drop(map.remove(last)),
            other => panic!("{other}"),
        }
        let edits = inject(&broken, &settings()).expect(lost).edits;
        assert_eq!(after(&edits, &broken), whole, "{lost}");
    }
}

#[test]
fn an_edit_for_another_tree_does_not_apply_silently() {
    let edits = inject(&pods()[0].1, &settings()).expect("it can be").edits;
    let applied = std::panic::catch_unwind(|| apply(&edits, &mut json!({ "spec": 3 })));
    assert!(applied.is_err());
}
