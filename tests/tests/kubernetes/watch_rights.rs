//! A watch of changes on a real API server: it ends once its caller has lost the right to it.

use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::{WatchChangesRequest, WatchChangesResponse};
use serde_json::json;
use tests::keda::{Authentication, channel};
use tests::kube::{AUDIENCE, Cluster, Replicas, object, until_answer};
use tests::process::HANG;
use tokio::time::timeout;
use tonic::{Code, Request, Status, Streaming};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_once_its_callers_right_is_taken_away() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("watched");
    Replicas::define(cluster.access());
    let spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 2 });
    namespace.apply(&object("WorkerCluster", "builds", spec));
    let mut replicas = Replicas::new(cluster.access(), &namespace, &[]);
    replicas.start();
    namespace.kubectl(&["create", "serviceaccount", "looker"]);
    let resource = "--resource=workerclusters.leasehold.dev";
    namespace.kubectl(&["create", "role", "looker", "--verb=get", resource]);
    let account = format!("--serviceaccount={namespace}:looker");
    namespace.kubectl(&["create", "rolebinding", "look", "--role=looker", &account]);
    let token = namespace.kubectl(&["create", "token", "looker", "--audience", AUDIENCE]);
    let token = token.trim().to_owned();

    let authority = std::fs::read_to_string(replicas.authority()).expect("a certificate");
    let server_name = format!("leasehold-coordinator.{namespace}.svc");
    let address = replicas.running[replicas.leader()].grpc.to_string();
    let (authority, server_name) = (authority.as_str(), server_name.as_str());
    let authentication = Some(Authentication { authority, server_name, client: None });
    let admin = AdminServiceClient::new(channel(&address, authentication));
    let watch = async |cluster: &str| -> Result<Streaming<WatchChangesResponse>, Status> {
        let (cluster, replay) = (cluster.to_owned(), "0s".to_owned());
        let mut request = Request::new(WatchChangesRequest { cluster, replay, only_replay: false });
        let token = format!("Bearer {token}").parse().expect("a value");
        request.metadata_mut().insert("authorization", token);
        admin.clone().watch_changes(request).await.map(tonic::Response::into_inner)
    };
    let builds = format!("{namespace}/builds");
    // The coordinator may not have read the cluster yet.
    let mut changes = until_answer("a watch", async || watch(&builds).await).await;
    let everything = watch("").await.map(drop).expect_err("no right to all namespaces");
    assert_eq!(everything.code(), Code::PermissionDenied, "{everything}");

    namespace.kubectl(&["delete", "rolebinding", "look"]);
    let end = async {
        loop {
            match changes.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the watch has ended without a reason"),
                Err(status) => break status,
            }
        }
    };
    let status = timeout(HANG, end).await.expect("an end");
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().contains("may not get workerclusters"), "{status}");
}
