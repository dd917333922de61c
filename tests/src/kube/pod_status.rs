//! What a kubelet writes into a pod's status.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// All containers run.
pub(super) fn running(pod: &Pod, address: IpAddr, ready: bool) -> Value {
    let state = json!({ "running": { "startedAt": now() } });
    let init = json!({ "terminated": terminated(0) });
    let conditions = [
        ("PodReadyToStartContainers", true),
        ("Initialized", true),
        ("ContainersReady", ready),
        ("Ready", ready),
    ];
    json!({
        "phase": "Running",
        "startTime": now(),
        "podIP": address,
        "podIPs": [{ "ip": address }],
        "conditions": conditions.map(|(kind, holds)| condition(kind, holds)),
        "containerStatuses": regular(pod, &state, ready),
        "initContainerStatuses": initial(pod, &state, &init, ready),
    })
}

/// All containers have ended, with this exit code.
pub(super) fn ended(pod: &Pod, exit_code: i32) -> Value {
    let state = json!({ "terminated": terminated(exit_code) });
    let conditions = ["ContainersReady", "Ready"];
    json!({
        "phase": if exit_code == 0 { "Succeeded" } else { "Failed" },
        "conditions": conditions.map(|kind| condition(kind, false)),
        "containerStatuses": regular(pod, &state, false),
        "initContainerStatuses": initial(pod, &state, &state, false),
    })
}

fn regular(pod: &Pod, state: &Value, ready: bool) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.map(|container| status(pod, container, state, ready)).collect()
}

/// Sidecars run as long as the pod; other init containers have ended before it was Ready.
fn initial(pod: &Pod, sidecar: &Value, other: &Value, ready: bool) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let one = |container: &Container| match container.restart_policy.as_deref() {
        Some("Always") => status(pod, container, sidecar, ready),
        _ => status(pod, container, other, true),
    };
    containers.map(one).collect()
}

fn status(pod: &Pod, container: &Container, state: &Value, ready: bool) -> Value {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    json!({
        "name": container.name,
        "image": container.image,
        "imageID": container.image,
        "containerID": format!("played://{uid}/{}", container.name),
        "ready": ready,
        "started": state.get("running").is_some(),
        "restartCount": 0,
        "state": state,
    })
}

fn terminated(exit_code: i32) -> Value {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    json!({ "exitCode": exit_code, "reason": reason, "finishedAt": now() })
}

fn condition(kind: &str, holds: bool) -> Value {
    let status = if holds { "True" } else { "False" };
    json!({ "type": kind, "status": status, "lastTransitionTime": now() })
}

fn now() -> Time {
    Time(Timestamp::now())
}
