//! The admission webhooks: they inject the sidecar into opted-in pods, validate classes and
//! pipelines, and refuse evictions of pods that run jobs. Every replica answers, leading or not,
//! from its own copy of the desired state. A pod that asks for an agent is never admitted without
//! one: if injection fails, the webhook denies the pod with a message that names the fix.

mod admission;
mod caller_key;
mod evictions;
mod injector;
mod review_log;
mod validator;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Extension, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use leasehold_driver::metrics::{EvictionResult, InjectionResult, Metrics, ValidationResult};
use tokio::time::timeout;

use self::admission::{Admission, Decision};
pub use self::caller_key::{CallerKey, CallerKeyWriter};
pub use self::evictions::Evictions;
pub use self::injector::{Cluster, Clusters, Injector};
use self::review_log::ReviewLog;
pub use self::validator::Validator;

/// The most bytes of a review: two objects of the largest size that the API server stores, and the
/// request around them.
const REVIEW_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The timeout of reading a review; shorter than the API server's timeout of the call.
const REVIEW_WITHIN: Duration = Duration::from_secs(4);
/// The answer to any other path.
const PATHS: &str = "unknown path: the API server calls /inject, /validate and /evict\n";

#[derive(Clone)]
struct WebhookState {
    injector: Arc<Injector>,
    validator: Arc<Validator>,
    evictions: Arc<Evictions>,
    metrics: Arc<Metrics>,
    log: Arc<ReviewLog>,
}

/// The address of a request's connection, where the server says it.
type ReviewPeer = Option<Extension<ConnectInfo<SocketAddr>>>;

/// The routes that the API server calls: `/inject`, answered by `injector`, `/validate`, answered
/// by `validator`, and `/evict`, answered by `evictions`. A request has the address of its
/// connection as an extension, a [`ConnectInfo`].
pub fn router(
    injector: Injector,
    validator: Validator,
    evictions: Evictions,
    metrics: Arc<Metrics>,
) -> Router {
    let (injector, validator) = (Arc::new(injector), Arc::new(validator));
    let log = Arc::new(ReviewLog::new(evictions.callers_are_proven));
    let evictions = Arc::new(evictions);
    Router::new()
        .route("/inject", post(inject))
        .route("/validate", post(validate))
        // The manifests have no path: the leader adds one, see `caller_key`.
        .route("/", post(evict_without_key))
        .route("/evict", post(evict_without_key))
        .route("/evict/{key}", post(evict_with_key))
        .fallback(|| async { (StatusCode::NOT_FOUND, PATHS) })
        .with_state(WebhookState { injector, validator, evictions, metrics, log })
}

async fn inject(State(state): State<WebhookState>, peer: ReviewPeer, body: Body) -> Response {
    let admission = match read(&state, peer, body).await {
        Ok(admission) => admission,
        Err(response) => return response,
    };
    let Some(clusters) = state.injector.clusters() else {
        state.metrics.reviewed(InjectionResult::Unready);
        return unready("WorkerClusters and WorkerClasses");
    };
    let decision = admission.inject(&state.injector, &clusters);
    state.metrics.reviewed(decision.kind());
    json(admission.pod_response(decision))
}

async fn validate(State(state): State<WebhookState>, peer: ReviewPeer, body: Body) -> Response {
    let admission = match read(&state, peer, body).await {
        Ok(admission) => admission,
        Err(response) => return response,
    };
    let Some(decision) = state.validator.decide(admission.validation()).await else {
        state.metrics.validated(ValidationResult::Unready);
        return unready("classes and pipelines");
    };
    state.metrics.validated(decision.kind());
    json(admission.response(Decision::from(decision)))
}

async fn evict_without_key(
    State(state): State<WebhookState>,
    peer: ReviewPeer,
    body: Body,
) -> Response {
    evict(&state, None, peer, body).await
}

async fn evict_with_key(
    State(state): State<WebhookState>,
    Path(key): Path<String>,
    peer: ReviewPeer,
    body: Body,
) -> Response {
    evict(&state, Some(&key), peer, body).await
}

async fn evict(state: &WebhookState, key: Option<&str>, peer: ReviewPeer, body: Body) -> Response {
    let admission = match read(state, peer, body).await {
        Ok(admission) => admission,
        Err(response) => return response,
    };
    let Some(decision) = state.evictions.decide(admission.eviction(), key).await else {
        state.metrics.eviction_reviewed(EvictionResult::Unready);
        return unready("pods");
    };
    state.metrics.eviction_reviewed(decision.kind());
    json(admission.response(Decision::from(decision)))
}

async fn read(state: &WebhookState, peer: ReviewPeer, body: Body) -> Result<Admission, Response> {
    let body = match timeout(REVIEW_WITHIN, to_bytes(body, REVIEW_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            let text = format!(
                "invalid request body: expected an AdmissionReview of at most {REVIEW_BYTES_MAX} \
                 bytes: {error}\n"
            );
            return Err((StatusCode::PAYLOAD_TOO_LARGE, text).into_response());
        }
        Err(_) => {
            return Err(
                (StatusCode::REQUEST_TIMEOUT, "timeout while reading the review\n").into_response()
            );
        }
    };
    let peer = peer.map(|Extension(ConnectInfo(address))| address.ip());
    Admission::read(&body, peer, Arc::clone(&state.log)).map_err(|problem| {
        let text = format!("{problem}\n");
        (StatusCode::BAD_REQUEST, text).into_response()
    })
}

fn unready(what: &str) -> Response {
    let text = format!("the {what} have not been read yet: try again\n");
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
