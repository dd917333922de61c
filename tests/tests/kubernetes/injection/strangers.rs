//! Peers that prove nothing at the webhook's port. Where they begin more reviews than it reads at a
//! time, the API server is answered beside them; where they send many, the log has few lines.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Request, StatusCode};
use serde_json::json;
use tests::process::soon;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use super::{InjectorFixture, agents, opted_in, worker_cluster};

/// Connections of the strangers, from an address that is not the API server's.
const CONNECTIONS: usize = 5;
const ADDRESS: [u8; 4] = [127, 0, 0, 2];
/// Reviews that they begin on each.
const REVIEWS: usize = 50;
const PODS: usize = 6;
/// Reviews of one stranger, one after the other, and the most log lines about it in a minute.
const FALSE_REVIEWS: usize = 300;
const LINES_MAX: u64 = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// A place was lost to another request, or the review did not come in time.
const REFUSALS: [StatusCode; 2] = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::REQUEST_TIMEOUT];

/// What has become of the strangers' reviews.
#[derive(Debug, Default)]
struct Counts {
    begun: AtomicUsize,
    refused: AtomicUsize,
}

async fn connect(webhook: SocketAddr, authority: &str, name: &str) -> Channel {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    let endpoint = Endpoint::from_shared(format!("https://{webhook}")).expect("an address");
    let endpoint = endpoint.tls_config(tls.domain_name(name)).expect("a certificate");
    endpoint.local_address(Some(IpAddr::from(ADDRESS))).connect().await.expect("a connection")
}

/// Begins reviews and completes none.
async fn begin_reviews(mut channel: Channel, counts: Arc<Counts>) {
    loop {
        // The body goes on for as long as its sender exists.
        let (rest, body) = mpsc::channel::<Result<_, Status>>(1);
        rest.send(Ok(Frame::data(Bytes::from("{")))).await.expect("room");
        let body = Body::new(StreamBody::new(ReceiverStream::new(body)));
        let request = Request::post("/inject").body(body).expect("a request");
        poll_fn(|cx| channel.poll_ready(cx)).await.expect("a connection");
        let answer = channel.call(request);
        counts.begun.fetch_add(1, Ordering::Relaxed);
        let status = answer.await.expect("an answer").status();
        assert!(REFUSALS.contains(&status), "{status}");
        counts.refused.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strangers_that_complete_no_review_keep_no_pod_out() {
    let Some(fixture) = InjectorFixture::set(&[]) else { return };
    fixture.apply(&worker_cluster("builds", json!({})));
    fixture.until_known("the cluster", &opted_in("probe", json!({})), |_| true);
    let replicas = &fixture.replicas;
    let authority = std::fs::read_to_string(replicas.authority()).expect("the authority");
    let name = format!("leasehold-coordinator.{}.svc", fixture.namespace);
    let counts = Arc::<Counts>::default();
    let mut strangers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let channel = connect(replicas.running[0].webhook, &authority, &name).await;
        for _ in 0..REVIEWS {
            strangers.spawn(begin_reviews(channel.clone(), Arc::clone(&counts)));
        }
    }
    let all = CONNECTIONS * REVIEWS;
    let begun = || (counts.begun.load(Ordering::Relaxed) >= all).then_some(());
    soon("the strangers' reviews", begun).await;
    for number in 0..PODS {
        let (stored, message) = fixture.create(&opted_in(&format!("w-{number}"), json!({})));
        assert_eq!(agents(&stored).len(), 1, "{stored:#}");
        assert_eq!(message, "");
    }
    let refused = || (counts.refused.load(Ordering::Relaxed) > 0).then_some(());
    soon("refusals of the strangers' reviews", refused).await;
    assert_eq!(strangers.len(), all, "a stranger has ended");
}

/// A review of something that the webhook is not asked about.
fn false_review() -> Body {
    let config_map = |plural: &str| json!({ "group": "", "version": "v1", plural: "configmaps" });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "x", "kind": config_map("kind"), "resource": config_map("resource"),
            "operation": "DELETE", "name": "x", "namespace": "default",
            "userInfo": { "username": "x" },
        },
    });
    Body::new(Full::from(review.to_string()).map_err(|never| match never {}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stranger_that_sends_reviews_writes_few_lines() {
    let Some(fixture) = InjectorFixture::set(&[]) else { return };
    fixture.apply(&worker_cluster("builds", json!({})));
    fixture.until_known("the cluster", &opted_in("probe", json!({})), |_| true);
    let replica = &fixture.replicas.running[0];
    let authority = std::fs::read_to_string(fixture.replicas.authority()).expect("the authority");
    let name = format!("leasehold-coordinator.{}.svc", fixture.namespace);
    let mut channel = connect(replica.webhook, &authority, &name).await;
    let begun = Instant::now();
    for path in ["/inject", "/validate", "/evict"].iter().cycle().take(FALSE_REVIEWS) {
        let request = Request::post(*path).body(false_review()).expect("a request");
        poll_fn(|cx| channel.poll_ready(cx)).await.expect("a connection");
        assert_eq!(channel.call(request).await.expect("an answer").status(), StatusCode::OK);
    }
    let most = LINES_MAX * (1 + begun.elapsed().as_secs() / MINUTE.as_secs());
    let log = replica.process.log();
    let about_it = ["not a new pod", "unexpected object", "not an eviction"];
    let lines = log.lines().filter(|line| about_it.iter().any(|words| line.contains(words)));
    let lines = lines.count() as u64;
    assert!((1..=most).contains(&lines), "{lines} lines about one address:\n{log}");
}
