//! Decisions on the API server's reviews of tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold_driver::access::Denied;
use leasehold_types::{ClusterName, WorkerName};
use serde_json::{Value, json};

use super::identity::*;
use super::key_set_tests::NOW_SECS;
use crate::pods::{PodFacts, PodLookupError};

const AUDIENCE: &str = "leasehold.dev";

fn status(patch: Value) -> k8s_openapi::api::authentication::v1::TokenReviewStatus {
    let mut status = json!({
        "authenticated": true,
        "audiences": [AUDIENCE],
        "user": {
            "username": "system:serviceaccount:ci:worker",
            "uid": "account-uid",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/pod-name": ["w-0"],
                "authentication.kubernetes.io/pod-uid": ["uid-1"],
            },
        },
    });
    merge(&mut status, patch);
    serde_json::from_value(status).expect("a status")
}

/// Puts the fields of a patch into a value.
pub(super) fn merge(onto: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) if onto.is_object() => {
            fields.into_iter().for_each(|(name, value)| merge(&mut onto[name], value));
        }
        other => *onto = other,
    }
}

fn worker(cluster: &str, name: &str) -> leasehold_types::WorkerKey {
    let cluster = ClusterName::new(cluster).expect("a name");
    leasehold_types::WorkerKey { cluster, worker: WorkerName::new(name).expect("a name") }
}

fn pod(patch: Value) -> PodFacts {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "ci", "name": "w-0", "uid": "uid-1",
            "labels": { "leasehold.dev/cluster": "builds" },
        },
        "status": { "phase": "Running" },
    });
    merge(&mut pod, patch);
    PodFacts::new(&serde_json::from_value(pod).expect("a pod")).expect("a whole pod")
}

fn bound(patch: Value, key: &leasehold_types::WorkerKey) -> Result<BoundPod, Denied> {
    identity_of(status(patch), AUDIENCE).map_err(Denied::Unauthenticated)?.pod_for(key)
}

#[test]
fn accepts_the_token_of_the_worker_pod() {
    let key = worker("ci/builds", "w-0");
    let bound = bound(json!({}), &key).expect("the token of the pod");
    assert_eq!(bound.uid, "uid-1");
    assert_eq!(check_pod(Ok(&pod(json!({}))), &bound, &key), Ok(()));
}

#[test]
fn rejects_an_unauthenticated_token_with_the_reason() {
    let key = worker("ci/builds", "w-0");
    for (patch, word) in [
        (json!({ "authenticated": false, "error": "token has expired" }), "token has expired"),
        (json!({ "authenticated": false }), "not valid"),
        (json!({ "authenticated": null }), "not valid"),
        (json!({ "audiences": ["https://kubernetes.default.svc"] }), "leasehold.dev"),
        (json!({ "audiences": null }), "leasehold.dev"),
    ] {
        match bound(patch.clone(), &key) {
            Err(Denied::Unauthenticated(why)) => assert!(why.contains(word), "{patch}: {why}"),
            other => panic!("{patch}: {other:?}"),
        }
    }
}

#[test]
fn rejects_the_token_of_another_pod_and_names_both() {
    let extra = |name: &str| {
        json!({ "user": { "extra": {
        "authentication.kubernetes.io/pod-name": [name]
    } } })
    };
    let user = |name: &str| json!({ "user": { "username": name } });
    for (patch, cluster, words) in [
        (extra("w-1"), "ci/builds", ["\"w-1\"", "\"w-0\""]),
        (json!({}), "other/builds", ["\"ci\"", "\"other\""]),
        (json!({}), "builds", ["NAMESPACE/NAME", "ci/builds"]),
        (user("system:admin"), "ci/builds", ["system:admin", "service account"]),
        (
            user("system:serviceaccount:x"),
            "ci/builds",
            ["serviceaccount:x", "not to a service account"],
        ),
        (json!({ "user": { "extra": null } }), "ci/builds", ["not bound to a pod", "ci:worker"]),
        (
            json!({ "user": { "extra": { "authentication.kubernetes.io/pod-uid": [] } } }),
            "ci/builds",
            ["not bound to a pod", "ci:worker"],
        ),
    ] {
        match bound(patch.clone(), &worker(cluster, "w-0")) {
            Err(Denied::Forbidden(why)) => {
                assert!(words.iter().all(|word| why.contains(word)), "{patch}: {why}");
            }
            other => panic!("{patch}: {other:?}"),
        }
    }
}

#[test]
fn rejects_a_pod_that_is_not_a_worker_of_the_cluster() {
    let key = worker("ci/builds", "w-0");
    let bound = bound(json!({}), &key).expect("the token of the pod");
    let label =
        |name: Value| json!({ "metadata": { "labels": { "leasehold.dev/cluster": name } } });
    let other = pod(label(json!("nightly")));
    let bare = pod(json!({ "metadata": { "labels": null } }));
    let over = pod(json!({ "status": { "phase": "Failed" } }));
    for (found, word) in [
        (Ok(&other), "nightly"),
        (Ok(&bare), "needs the label leasehold.dev/cluster=builds"),
        (Ok(&over), "has ended"),
        (Err(PodLookupError::NotFound), "leasehold.dev/cluster=builds"),
        (Err(PodLookupError::Deleted), "deleted"),
        (Err(PodLookupError::UidMismatch), "uid-1"),
    ] {
        match check_pod(found, &bound, &key) {
            Err(Denied::Forbidden(why)) => assert!(why.contains(word), "{why}"),
            other => panic!("{word}: {other:?}"),
        }
    }
    let retried = check_pod(Err(PodLookupError::PredecessorMayRun), &bound, &key);
    assert!(matches!(retried, Err(Denied::Unavailable(_))), "the agent may retry: {retried:?}");
}

#[test]
fn a_pod_outlives_its_deletion_a_minute_after_its_grace_period() {
    let running = pod(json!({}));
    let due = json!({ "metadata": { "deletionTimestamp": "2027-01-15T08:00:00Z" } });
    let terminating = pod(due);
    for (after, outlives) in [(0, false), (60, false), (61, true), (86_400, true)] {
        assert_eq!(outlives_deletion(&terminating, NOW_SECS + after), outlives, "{after}");
        assert!(!outlives_deletion(&running, NOW_SECS + after), "{after}");
    }
    assert!(!outlives_deletion(&terminating, NOW_SECS - 30), "within its grace period");
}

#[test]
fn reads_the_claims_of_a_token() {
    let token = |claims: Value| {
        let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
        TokenClaims::read(&format!("e30.{payload}.c2ln"))
    };
    let pod = json!({ "name": "w-0", "uid": "uid-1" });
    let bound = json!({
        "exp": 1_700_000_000, "kubernetes.io": { "namespace": "ci", "pod": pod }
    });
    let claims = token(bound).expect("claims");
    assert_eq!(claims.exp, 1_700_000_000);
    let found = claims.pod_of(&worker("ci/builds", "w-0")).expect("its pod");
    assert_eq!(found.uid, "uid-1");
    for (cluster, name) in [("ci/builds", "w-1"), ("cd/builds", "w-0"), ("builds", "w-0")] {
        assert_eq!(claims.pod_of(&worker(cluster, name)), None, "{cluster} {name}");
    }
    let unbound = token(json!({ "exp": 1 })).expect("claims");
    assert_eq!(unbound.pod_of(&worker("ci/builds", "w-0")), None);
    for none in ["", "opaque", "a.b.c", "e30.e30.c2ln", "e30.!!.c2ln"] {
        assert!(TokenClaims::read(none).is_none(), "{none:?}");
    }
}
