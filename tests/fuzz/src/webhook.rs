//! The admission webhooks: an input is an AdmissionReview, sent to each of them, or requests (see
//! `request`). A pod in it is also injected twice and restored.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use leasehold_driver::metrics::Metrics;
use leasehold_injection::{Sidecar, apply, inject, uninject};
use leasehold_platform_kube::pods::{Pods, PodsSettings};
use leasehold_platform_kube::webhook::{
    CallerKeyWriter, Cluster, Clusters, Evictions, Injector, Validator, router,
};
use leasehold_types::TimeBounds;
use leasehold_types::limits::NamespaceShare;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use crate::answer::{Answer, ask};
use crate::fleet;
use crate::request::requests;

/// The paths that API servers call.
const PATHS: [&str; 4] = ["/inject", "/validate", "/evict", "/evict/key"];
/// Events that wait.
const EVENTS_MAX: usize = 64;

/// The port of all inputs.
static PORT: LazyLock<(Runtime, Router)> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let router = runtime.block_on(async { port(fleet::metrics()) });
    (runtime, router)
});

/// Sends an input.
pub fn run(input: &[u8]) {
    if !input.starts_with(b"{") {
        requests(input).into_iter().for_each(|request| {
            send(request);
        });
        return;
    }
    let review = serde_json::from_slice::<Value>(input).ok();
    for path in PATHS {
        let mut request = Request::new(Body::from(input.to_vec()));
        *request.method_mut() = axum::http::Method::POST;
        *request.uri_mut() = path.parse().expect("a path");
        let answer = send(request);
        let answer = answer.filter(|answer| answer.status.is_success());
        if let (Some(answer), Some(review)) = (answer, &review) {
            check_response(&answer, review);
        }
    }
    let pod = review.as_ref().and_then(|review| review.pointer("/request/object"));
    if let Some(Ok(pod)) = pod.cloned().map(serde_json::from_value::<Pod>) {
        is_restored(&serde_json::to_value(pod).expect("a pod is JSON"));
    }
}

fn send(request: Request<Body>) -> Option<Answer> {
    let (runtime, router) = &*PORT;
    let answer = runtime.block_on(ask(router.clone(), request));
    answer.inspect(Answer::check)
}

/// An API server takes only an answer to its own review, and shows people why it denies something.
fn check_response(answer: &Answer, review: &Value) {
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let response = &body["response"];
    assert_eq!(response["uid"], review["request"]["uid"], "{body}");
    match response["allowed"].as_bool() {
        Some(true) => {}
        Some(false) => {
            let why = response["status"]["message"].as_str().unwrap_or_default();
            assert!(!why.is_empty(), "{body}");
        }
        None => panic!("neither allowed nor denied: {body}"),
    }
}

/// What is injected again does not change, and what is removed leaves the pod as it was.
fn is_restored(pod: &Value) {
    let sidecar = Sidecar { cluster: Some("builds".into()), ..Sidecar::standard("agent:1") };
    let edits = match inject(pod, &sidecar) {
        Ok(injection) => injection.edits,
        Err(refusal) => return assert!(!refusal.to_string().is_empty()),
    };
    if edits.is_empty() {
        return;
    }
    let mut injected = pod.clone();
    apply(&edits, &mut injected);
    let again = inject(&injected, &sidecar).expect("it was injected before");
    assert_eq!(again.edits, [], "{injected}");
    let edits = uninject(&injected).expect("it was injected");
    apply(&edits, &mut injected);
    assert_eq!(&injected, pod);
}

fn port(metrics: Arc<Metrics>) -> Router {
    let mut clusters = Clusters::default();
    clusters.insert("ci", "builds", Cluster::default());
    let clusters = watch::channel(Some(Arc::new(clusters))).1;
    let installation = Sidecar::standard("agent:1");
    let injector = Injector { installation, served: Vec::new(), clusters };
    // Without a sender it does not wait for a change that would allow what it denies.
    let in_force = watch::channel(Some(fleet::desired())).1;
    let validator = Validator { served: Vec::new(), share: NamespaceShare::WHOLE, in_force };
    let settings = PodsSettings {
        client: api_server(),
        watched: Vec::new(),
        bounds: TimeBounds { drift_ppm: 0, margin: std::time::Duration::from_millis(2) },
        handle: watch::channel(None).1,
    };
    let pods = Pods::start(settings, mpsc::channel(EVENTS_MAX).0);
    let key = CallerKeyWriter::new(api_server(), "leasehold").1;
    let evictions = Evictions { pods, key, callers_are_proven: true };
    router(injector, validator, evictions, metrics)
}

/// An API server without pods, in which nothing happens.
fn api_server() -> Client {
    let answer = async |request: Request<kube::client::Body>| {
        if request.uri().query().is_some_and(|query| query.contains("watch=")) {
            std::future::pending::<()>().await;
        }
        let list = json!({
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "1"},
            "items": [],
        });
        let body = kube::client::Body::from(list.to_string().into_bytes());
        Ok::<_, std::convert::Infallible>(Response::new(body))
    };
    Client::new(tower::service_fn(answer), "ci")
}
