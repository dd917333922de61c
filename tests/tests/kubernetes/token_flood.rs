//! A flood of one false token: everybody who shows it is refused, the API server is asked about it
//! once, each refusal is counted, and the log has few lines about the address.

use std::time::{Duration, Instant};

use leasehold_proto::admin::v1::GetStatusRequest;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use tests::keda::{Authentication, channel};
use tests::kube::{Access, Operator, Replicas};
use tests::process::get;
use tokio::task::JoinSet;
use tonic::{Code, Request};

use crate::installed::ExclusiveControlPlane;

const NAMESPACE: &str = "flood";
/// Calls with the false token, all at once.
const CALLS: usize = 200;
/// Connections that they are made over: few streams of one are served at a time.
const CONNECTIONS: usize = 20;
/// How long a refusal is remembered.
const REMEMBERED: Duration = Duration::from_secs(5);
/// There is at most one log line about an address in this time.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// The reviews of tokens that the API server has counted.
pub(crate) fn reviews(access: &Access) -> u64 {
    let metrics = access.kubectl(&["get", "--raw", "/metrics"]);
    let of_reviews = metrics.lines().filter(|line| {
        line.starts_with("apiserver_request_total{") && line.contains("resource=\"tokenreviews\"")
    });
    of_reviews.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// The calls without a valid token that a replica has counted.
fn denials(replica: &Operator) -> u64 {
    let (_, metrics) = get(replica.http, "/metrics").expect("the metrics");
    let name = "leasehold_denials_total{reason=\"unauthenticated\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(name));
    count.expect("the counter").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_false_token_costs_one_review_however_often_it_is_shown() {
    let Some(turn) = ExclusiveControlPlane::for_failures(NAMESPACE) else { return };
    let access = turn.access();
    let mut replicas = Replicas::new(access, NAMESPACE, &[]);
    replicas.start();
    let authority = std::fs::read_to_string(replicas.authority()).expect("a certificate");
    let server_name = format!("leasehold-coordinator.{NAMESPACE}.svc");
    let leader = &replicas.running[replicas.leader()];
    let address = leader.grpc.to_string();
    let (authority, server_name) = (authority.as_str(), server_name.as_str());
    let authentication = Some(Authentication { authority, server_name, client: None });

    let (before, denied, begun) = (reviews(access), denials(leader), Instant::now());
    let mut calls = JoinSet::new();
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| channel(&address, authentication)).collect();
    for connection in connections.iter().cycle().take(CALLS) {
        let mut admin = AdminServiceClient::new(connection.clone());
        calls.spawn(async move {
            let mut request = Request::new(GetStatusRequest {});
            let token = "Bearer false.token.x".parse().expect("a value");
            request.metadata_mut().insert("authorization", token);
            admin.get_status(request).await.map(drop)
        });
    }
    for answer in calls.join_all().await {
        let status = answer.expect_err("a false token");
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        assert!(status.message().contains("rejects the token"), "{status}");
    }
    // However slow the machine is, a refusal is remembered for its time.
    let most = |per: Duration| 1 + begun.elapsed().as_secs() / per.as_secs();
    let made = reviews(access) - before;
    assert!((1..=most(REMEMBERED)).contains(&made), "{made} reviews of one token");
    assert_eq!(denials(leader) - denied, CALLS as u64);
    let log = leader.process.log();
    let lines = log.lines().filter(|line| line.contains("access denied")).count() as u64;
    assert!((1..=most(LOGGED_EVERY)).contains(&lines), "{lines} lines about one address:\n{log}");
}
