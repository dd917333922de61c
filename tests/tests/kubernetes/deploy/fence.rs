//! `components/fence`: who has the coordinator's token may do no more than the coordinator does.

use hyper::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tests::kube::Access;
use tests::process::{eventually, until_ok};

use super::super::installed::{ExclusiveControlPlane, Installed, folder};
use super::Applied;
use super::rights::{COORDINATOR, may};

/// Applies the policy, and waits until it is in force.
pub(super) fn fence(access: &Access) -> Applied<'_> {
    let applied = Applied::new(access, "deploy/components/fence/policy.yaml");
    let probe = ["create", "configmap", "probe", "--namespace=kube-system"];
    let probe = [&probe[..], &["--dry-run=server", "--as", COORDINATOR]].concat();
    eventually("the policy in force", || {
        let refused = access.try_kubectl(&probe).err()?;
        refused.contains("nothing in kube-system").then_some(())
    });
    applied
}

/// Sends a request as the coordinator; the API server's reason if it refuses it.
async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Result<(), String> {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let request = request.header("impersonate-user", COORDINATOR).body(body.to_string().into());
    let answer = client.request_text(request.expect("a request")).await;
    answer.map(drop).map_err(|error| error.to_string())
}

fn object(api: &str, kind: &str, name: &str, owner: Option<&str>, spec: Value) -> Value {
    let owners = owner.map(|kind| {
        json!([{ "apiVersion": "leasehold.dev/v1alpha1", "kind": kind, "name": "x", "uid": "x" }])
    });
    json!({
        "apiVersion": api, "kind": kind,
        "metadata": { "name": name, "ownerReferences": owners.unwrap_or(json!([])) },
        "spec": spec,
    })
}

fn deployment(name: &str, owner: Option<&str>) -> Value {
    object(
        "apps/v1",
        "Deployment",
        name,
        owner,
        json!({
            "replicas": 1, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": "example.invalid/theirs" }] },
            },
        }),
    )
}

fn pod(name: &str, labels: Value) -> Value {
    let mut pod = object(
        "v1",
        "Pod",
        name,
        None,
        json!({
            "containers": [{ "name": "main", "image": "example.invalid/theirs" }],
        }),
    );
    pod["metadata"]["labels"] = labels;
    pod
}

fn image(image: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "image": image }] } })
}

const WORKLOADS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fence_refuses_what_the_coordinator_never_does() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _installed = Installed::new(access, &folder("overlays/ha"));
    let client = access.client().await;
    let create = ["create", "--namespace=default", "-f", "-"];
    let service = json!({ "selector": { "app": "theirs" }, "ports": [{ "port": 80 }] });
    access.kubectl(&["wait", "--for=create", "serviceaccount/default", "--timeout=60s"]);
    for object in [
        deployment("theirs", None),
        pod("theirs", json!({ "app": "theirs" })),
        pod("worker", json!({ "app": "theirs", "leasehold.dev/cluster": "builds" })),
        object("v1", "Service", "theirs", None, service.clone()),
    ] {
        access.try_kubectl_with(&create, &object.to_string()).expect("an object");
    }
    // With the rights alone it may do all of it.
    let [theirs, their_pod, worker] = ["theirs", "theirs", "worker"].map(|name| format!("/{name}"));
    let workload = format!("{WORKLOADS}{theirs}");
    let change_image = async |image_name: String| {
        let change = json!({ "spec": { "template": image(&image_name) } });
        send(&client, Method::PATCH, &workload, &change).await
    };
    change_image("example.invalid/evil:0".into()).await.expect("RBAC allows it");

    let _fence = fence(access);
    let refused = change_image("example.invalid/evil:1".into()).await.expect_err("fenced");
    assert!(refused.contains("changes only spec.replicas"), "{refused}");
    let system = "/apis/apps/v1/namespaces/kube-system/deployments";
    let ours = Some("WorkerCluster");
    for (method, path, body, why) in [
        (Method::POST, WORKLOADS, deployment("new", None), "changes only spec.replicas"),
        (Method::POST, system, deployment("new", ours), "nothing in kube-system"),
        (
            Method::PATCH,
            &format!("{PODS}{their_pod}"),
            json!({ "spec": { "activeDeadlineSeconds": 5 } }),
            "of a pod",
        ),
        (
            Method::PATCH,
            &format!("{PODS}{their_pod}"),
            json!({ "metadata": { "labels": { "app": "ours" } } }),
            "of a pod",
        ),
        (Method::DELETE, &format!("{PODS}{their_pod}"), json!({}), "of a pod"),
        (
            Method::PATCH,
            &format!("{SERVICES}{theirs}"),
            json!({ "spec": { "selector": { "app": "evil" } } }),
            "only objects that Leasehold owns",
        ),
        (
            Method::POST,
            "/api/v1/namespaces/leasehold-system/secrets",
            json!({ "metadata": { "name": "new" } }),
            "writes only leasehold-ca",
        ),
    ] {
        let refused = send(&client, method.clone(), path, &body).await.expect_err(path);
        assert!(refused.contains(why), "{method} {path}: {refused}");
    }
    // Nor does it make an object of others its own, to change it after that. An API server may
    // refuse that itself to those who may not delete the object.
    let role = ["create", "rolebinding", "too-much", "--clusterrole=edit", "--namespace=default"];
    access.kubectl(&[&role[..], &[&format!("--user={COORDINATOR}")]].concat());
    eventually("a right too much", || {
        may(access, COORDINATOR, "default", "delete deployments.apps").then_some(())
    });
    let (of_pod, of_workload) = ("of a pod", "changes only spec.replicas");
    let owners = object("v1", "Pod", "x", ours, json!({}))["metadata"]["ownerReferences"].take();
    let cluster = |of: Value| json!({ "labels": { "leasehold.dev/cluster": of } });
    for (path, why, metadata) in [
        (&workload, of_workload, json!({ "ownerReferences": owners })),
        (&workload, of_workload, json!({ "finalizers": ["leasehold.dev/kept"] })),
        (&format!("{PODS}{their_pod}"), of_pod, json!({ "ownerReferences": owners })),
        (&format!("{PODS}{their_pod}"), of_pod, json!({ "finalizers": ["leasehold.dev/kept"] })),
        (&format!("{PODS}{their_pod}"), of_pod, cluster(json!("builds"))),
        (&format!("{PODS}{worker}"), of_pod, cluster(json!("others"))),
        (&format!("{PODS}{worker}"), of_pod, cluster(Value::Null)),
    ] {
        let body = json!({ "metadata": metadata });
        let refused = send(&client, Method::PATCH, path, &body).await;
        let refused = refused.expect_err(&format!("{path}: {body}"));
        assert!(refused.contains(why), "{path}: {body}: {refused}");
    }
    for (method, path, body) in [
        (Method::PATCH, workload.as_str(), json!({ "spec": { "replicas": 2 } })),
        (Method::POST, WORKLOADS, deployment("ours", ours)),
        (
            Method::PATCH,
            &format!("{PODS}{worker}"),
            json!({ "metadata": {
                "labels": { "leasehold.dev/busy": "true" },
                "annotations": { "cluster-autoscaler.kubernetes.io/safe-to-evict": "false" },
            } }),
        ),
        (Method::DELETE, &format!("{PODS}{worker}"), json!({})),
        (Method::POST, SERVICES, object("v1", "Service", "ours", Some("Pipeline"), service)),
    ] {
        let done = send(&client, method.clone(), path, &body).await;
        assert_eq!(done, Ok(()), "{method} {path}");
    }
    access.kubectl(&["delete", "rolebinding", "too-much", "--namespace=default"]);
    until_ok("all objects gone", || {
        let kinds = "deployments,pods,services";
        let objects = ["theirs", "ours", "worker"];
        let delete = ["delete", kinds, "--namespace=default", "--ignore-not-found", "--now"];
        access.try_kubectl(&[&delete[..], &objects].concat())
    });
}
