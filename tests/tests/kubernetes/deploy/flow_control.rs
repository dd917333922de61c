//! `components/flow-control`: the coordinator's requests have the places at the API server that it
//! says.

use std::time::Duration;

use hyper::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tests::process::eventually;

use super::super::installed::{ExclusiveControlPlane, Installed, folder};
use super::Applied;
use super::rights::COORDINATOR;

/// The header in which the API server says which FlowSchema a request has matched.
const SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";

/// The pause between two requests, and how long they may go on.
const PAUSE: Duration = Duration::from_millis(100);
const HANG: Duration = Duration::from_secs(60);

/// The UID of the FlowSchema that a request of the coordinator matches.
async fn schema_of(client: &Client, method: &Method, path: &str, body: &str) -> String {
    let request = Request::builder().method(method.clone()).uri(path);
    let request = request.header("impersonate-user", COORDINATOR);
    let request = request.header("content-type", "application/json");
    let body = Body::from(body.as_bytes().to_vec());
    let answer = client.send(request.body(body).expect("a request")).await.expect("an answer");
    let schema = answer.headers().get(SCHEMA).expect("the header");
    schema.to_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_reviews_and_pods_have_flows_of_their_own() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let _installed = Installed::new(access, &folder("overlays/ha"));
    let file = "deploy/components/flow-control/flow-schemas.yaml";
    let _flow_control = Applied::new(access, file);
    let client = access.client().await;
    let lease =
        "/apis/coordination.k8s.io/v1/namespaces/leasehold-system/leases/leasehold-coordinator";
    let token = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": "x" },
    });
    let token = token.to_string();
    for (schema, level, method, path, body) in [
        ("leasehold-leadership", "leader-election", Method::GET, lease, ""),
        (
            "leasehold-reviews",
            "leasehold-reviews",
            Method::POST,
            "/apis/authentication.k8s.io/v1/tokenreviews",
            token.as_str(),
        ),
        ("leasehold-pods", "workload-high", Method::GET, "/api/v1/pods?limit=1", ""),
        ("leasehold-pods", "workload-high", Method::GET, "/api/v1/namespaces/default/pods", ""),
    ] {
        let read = |field: &str| {
            let path = format!("--output=jsonpath={{.{field}}}");
            access.kubectl(&["get", "flowschema", schema, &path])
        };
        assert_eq!(read("spec.priorityLevelConfiguration.name"), level);
        let dangling = "status.conditions[?(@.type=='Dangling')].status";
        eventually("a level that exists", || (read(dangling) == "False").then_some(()));
        let wanted = read("metadata.uid");
        let matched = async {
            while schema_of(&client, &method, path, body).await != wanted {
                tokio::time::sleep(PAUSE).await;
            }
        };
        let in_time = tokio::time::timeout(HANG, matched).await;
        assert!(in_time.is_ok(), "{method} {path} does not match {schema}");
    }
}
