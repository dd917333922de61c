//! The QoS class of a pod, which the agent does not change.

use serde_json::{Value, json};

use super::shared::{check, settings, sidecar};

fn bounded() -> Value {
    json!({
        "requests": { "cpu": "2", "memory": "4Gi" }, "limits": { "cpu": "2000m", "memory": "4Gi" }
    })
}

/// The agent's resources in a pod whose worker and first container have these.
fn agents(worker: Value, first: Value, annotations: Value) -> Value {
    let pod = json!({
        "metadata": { "annotations": annotations },
        "spec": {
            "initContainers": [{ "name": "first", "resources": first }],
            "containers": [{ "name": "worker", "resources": worker }]
        }
    });
    let (out, _) = check(&pod, &settings());
    sidecar(&out)["resources"].clone()
}

#[test]
fn a_pod_of_the_class_guaranteed_stays_one() {
    let amounts = json!({ "cpu": "100m", "memory": "64Mi" });
    let equal = json!({ "requests": amounts, "limits": amounts });
    let limits = json!({ "limits": { "cpu": 2, "memory": "4Gi" } });
    assert_eq!(agents(bounded(), bounded(), json!({})), equal);
    assert_eq!(agents(limits.clone(), bounded(), json!({})), equal, "a limit is a request too");

    let standard = json!({
        "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "memory": "64Mi" }
    });
    for other in [
        json!({}),
        json!(null),
        json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "memory": "1Gi" } }),
        json!({
            "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2", "memory": "1Gi" }
        }),
        json!({ "limits": { "cpu": "much", "memory": "1Gi" } }),
        json!({ "limits": { "cpu": "0", "memory": "1Gi" } }),
    ] {
        assert_eq!(agents(other.clone(), bounded(), json!({})), standard, "{other}");
        assert_eq!(agents(bounded(), other.clone(), json!({})), standard, "{other}");
    }
}

#[test]
fn resources_that_a_user_set_stay_in_a_pod_of_the_class_guaranteed() {
    let set = json!({
        "config.leasehold.dev/cpu-request": "50m", "config.leasehold.dev/memory-limit": "128Mi"
    });
    assert_eq!(
        agents(bounded(), bounded(), set),
        json!({ "requests": { "cpu": "50m" }, "limits": { "memory": "128Mi" } })
    );
}
