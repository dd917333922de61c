//! The worker API over HTTP/JSON.

mod query;

use std::convert::Infallible;
use std::error::Error;
use std::sync::atomic::Ordering::Relaxed;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use futures_util::StreamExt;
use leasehold_agent_core::LeaseKinds;
use leasehold_types::flag;
use serde::Deserialize;
use serde_json::json;

use super::{BODY_BYTES_MAX, grpc};
use crate::driver::DriverRequest;
use crate::worker::api::{Denial, WorkerApi};

/// The paths of the port for health.
const HEALTH_PATHS: &str = "GET /livez, GET /readyz, GET /healthz, GET /metrics";

const PATHS: &str = "GET /v1/lease, GET /v1/lease/watch, POST /v1/start, GET /v1/jobs, \
                     PUT /v1/jobs/{id}, DELETE /v1/jobs/{id}, PUT /v1/count, POST /v1/beat, \
                     DELETE /v1/streams/{set}/{stream}?token=T, \
                     DELETE /v1/bindings/{pipeline}/{node}/{index}?token=T, POST /v1/drain, \
                     GET /livez, GET /readyz, GET /healthz, GET /metrics";

/// The routes.
pub(super) fn router(api: WorkerApi) -> Router {
    Router::new()
        .route("/v1/lease", get(lease))
        .route("/v1/lease/watch", get(watch))
        .route("/v1/start", post(start))
        .route("/v1/jobs", get(jobs))
        .route("/v1/jobs/{id}", put(begin).delete(end))
        .route("/v1/count", put(count))
        .route("/v1/beat", post(beat))
        .route("/v1/streams/{set}/{stream}", delete(release))
        .route("/v1/bindings/{pipeline}/{node}/{index}", delete(release_binding))
        .route("/v1/drain", post(drain))
        .merge(health_routes())
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
}

/// The routes of the port for health: read-only, and without the worker's leases.
pub(super) fn health_router(api: WorkerApi) -> Router {
    let message = format!(
        "this is the port for health and metrics of a leasehold-agent (--health-listen): use one \
         of {HEALTH_PATHS}\n"
    );
    let unknown = async || (StatusCode::NOT_FOUND, message);
    health_routes().fallback(unknown).layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).with_state(api)
}

fn health_routes() -> Router<WorkerApi> {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/healthz", get(livez))
        .route("/metrics", get(metrics))
}

/// A refusal over HTTP.
#[derive(Debug)]
pub(super) struct Answer(pub(super) StatusCode, pub(super) Denial);

impl From<Denial> for Answer {
    fn from(denial: Denial) -> Self {
        let status = match denial.reason {
            "invalid" if !denial.is_state => StatusCode::BAD_REQUEST,
            "limit" => StatusCode::TOO_MANY_REQUESTS,
            "journal" | "stopping" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::CONFLICT,
        };
        Self(status, denial)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let Self(status, Denial { reason, message, .. }) = self;
        json_response(status, &json!({"error": {"reason": reason, "message": message}}))
    }
}

impl From<PathRejection> for Answer {
    fn from(rejection: PathRejection) -> Self {
        Self(StatusCode::BAD_REQUEST, Denial::invalid(format!("path: {rejection}")))
    }
}

impl From<QueryRejection> for Answer {
    fn from(rejection: QueryRejection) -> Self {
        // The source names the parameter; the rejection around it says how it was read.
        let why = rejection.source().map_or_else(|| rejection.body_text(), ToString::to_string);
        Self(StatusCode::BAD_REQUEST, Denial::invalid(format!("query: {why}")))
    }
}

impl From<BytesRejection> for Answer {
    fn from(rejection: BytesRejection) -> Self {
        let what = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => format!("longer than {BODY_BYTES_MAX} bytes"),
            _ => rejection.body_text(),
        };
        Self(rejection.status(), Denial::invalid(format!("body: {what}")))
    }
}

type Answered = Result<Response, Answer>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseQuery {
    #[serde(default, deserialize_with = "query::version")]
    after_version: Option<u64>,
    #[serde(default, deserialize_with = "query::wait_ms")]
    wait_ms: u32,
    #[serde(default, deserialize_with = "query::boolean")]
    without_streams: bool,
    #[serde(default, deserialize_with = "query::boolean")]
    without_bindings: bool,
    #[serde(default, deserialize_with = "query::boolean")]
    peek: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchQuery {
    #[serde(default, deserialize_with = "query::boolean")]
    without_streams: bool,
    #[serde(default, deserialize_with = "query::boolean")]
    without_bindings: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BeginQuery {
    #[serde(default, deserialize_with = "query::wait_ms")]
    wait_ms: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BeatQuery {
    #[serde(default, deserialize_with = "query::within_ms")]
    within_ms: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseQuery {
    token: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainQuery {
    #[serde(default, deserialize_with = "query::boolean")]
    wait: bool,
    #[serde(default, deserialize_with = "query::boolean")]
    container: bool,
    #[serde(default, deserialize_with = "query::boolean")]
    hold: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartBody {
    start_id: String,
    #[serde(default)]
    running: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CountBody {
    running: u32,
    pool_size: u32,
}

async fn lease(
    State(api): State<WorkerApi>,
    query: Result<Query<LeaseQuery>, QueryRejection>,
) -> Answered {
    let Query(query) = query?;
    let kinds = LeaseKinds { streams: !query.without_streams, bindings: !query.without_bindings };
    let lease = api.lease(kinds, query.after_version, query.wait_ms, query.peek).await?;
    Ok(json_response(StatusCode::OK, &lease))
}

async fn jobs(State(api): State<WorkerApi>) -> Answered {
    Ok(json_response(StatusCode::OK, &api.jobs().await?))
}

async fn watch(
    State(api): State<WorkerApi>,
    query: Result<Query<WatchQuery>, QueryRejection>,
) -> Answered {
    let Query(WatchQuery { without_streams, without_bindings }) = query?;
    let kinds = LeaseKinds { streams: !without_streams, bindings: !without_bindings };
    let lines = api.watch(kinds).await?.map(|lease| {
        let mut line = serde_json::to_vec(&lease).expect("a lease has only plain fields");
        line.push(b'\n');
        Ok::<_, Infallible>(Bytes::from(line))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

async fn start(State(api): State<WorkerApi>, body: Result<Bytes, BytesRejection>) -> Answered {
    let StartBody { start_id, running } = parse(&body?, r#"{"start_id": "1", "running": 0}"#)?;
    api.start(&start_id, running).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

async fn begin(
    State(api): State<WorkerApi>,
    job: Result<Path<String>, PathRejection>,
    query: Result<Query<BeginQuery>, QueryRejection>,
) -> Answered {
    let (Path(job), Query(query)) = (job?, query?);
    let token = api.begin(&job, query.wait_ms).await?;
    Ok(json_response(StatusCode::OK, &json!({"token": token})))
}

async fn end(State(api): State<WorkerApi>, job: Result<Path<String>, PathRejection>) -> Answered {
    api.end(&job?.0).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

async fn count(State(api): State<WorkerApi>, body: Result<Bytes, BytesRejection>) -> Answered {
    let CountBody { running, pool_size } = parse(&body?, r#"{"running": 3, "pool_size": 4}"#)?;
    api.count(running, pool_size).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

async fn beat(
    State(api): State<WorkerApi>,
    query: Result<Query<BeatQuery>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    let Query(BeatQuery { within_ms }) = query?;
    if !body?.is_empty() {
        let message = "body: expected none: the promise belongs into the query, as in \
                       /v1/beat?within_ms=10000";
        return Err(Denial::invalid(message).into());
    }
    api.beat(within_ms).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

async fn release(
    State(api): State<WorkerApi>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<ReleaseQuery>, QueryRejection>,
) -> Answered {
    let (Path((set, stream)), Query(query)) = (path?, query?);
    api.release(&set, &stream, &query.token).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

async fn release_binding(
    State(api): State<WorkerApi>,
    path: Result<Path<(String, String, u32)>, PathRejection>,
    query: Result<Query<ReleaseQuery>, QueryRejection>,
) -> Answered {
    let (Path((pipeline, node, index)), Query(query)) = (path?, query?);
    api.release_binding(&pipeline, &node, index, &query.token).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

async fn drain(
    State(api): State<WorkerApi>,
    query: Result<Query<DrainQuery>, QueryRejection>,
) -> Answered {
    let Query(DrainQuery { wait, container, hold }) = query?;
    if hold {
        api.hold_drain().await?;
        return Ok(json_response(StatusCode::OK, &json!({})));
    }
    let jobs_left = api.drain(wait).await?;
    if container {
        api.expect_hold();
    }
    Ok(json_response(StatusCode::OK, &json!({"jobs_left": jobs_left})))
}

async fn livez(State(api): State<WorkerApi>) -> (StatusCode, &'static str) {
    if api.driver().is_open() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the driver has stopped\n")
    }
}

async fn readyz(State(api): State<WorkerApi>) -> (StatusCode, String) {
    if !api.driver().is_open() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the driver has stopped\n".into());
    }
    if let Some(why) = api.driver().metrics().unready() {
        return (StatusCode::SERVICE_UNAVAILABLE, why + "\n");
    }
    // The first line is for probes, a second one for people.
    match api.driver().ask(|reply| DriverRequest::Outstanding { reply }).await {
        Ok(None) => (StatusCode::OK, "ok\n".into()),
        Ok(Some(what)) => (StatusCode::OK, format!("ok\n{what}\n")),
        Err(gone) => (StatusCode::SERVICE_UNAVAILABLE, format!("{gone}\n")),
    }
}

async fn metrics(State(api): State<WorkerApi>) -> Response {
    let metrics = api.driver().metrics();
    if let Ok(lease) = api.driver().peek().await {
        metrics.connected.store(lease.connected, Relaxed);
        metrics.pool_size.store(lease.pool.size, Relaxed);
        metrics.running.store(lease.pool.running, Relaxed);
        metrics.streams.store(lease.streams.len() as u64, Relaxed);
        metrics.bindings.store(lease.bindings.len() as u64, Relaxed);
        metrics.draining.store(lease.draining, Relaxed);
    }
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, metrics.render()).into_response()
}

async fn unknown_path(request: Request) -> Response {
    if grpc::is_grpc(request.headers()) {
        return grpc::unknown_method();
    }
    let path = request.uri().path();
    let message = format!("unknown path {path}: use one of {PATHS}");
    Answer(StatusCode::NOT_FOUND, Denial::invalid(message)).into_response()
}

async fn wrong_method(request: Request) -> Response {
    let message =
        format!("method {} is not allowed on this path: use one of {PATHS}", request.method());
    Answer(StatusCode::METHOD_NOT_ALLOWED, Denial::invalid(message)).into_response()
}

/// Reads a body like the `example`.
fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], example: &str) -> Result<T, Denial> {
    if body.trim_ascii().is_empty() {
        return Err(Denial::invalid(flag::empty_body(example)));
    }
    serde_json::from_slice(body).map_err(|error| Denial::invalid(format!("body: {error}")))
}

fn json_response(status: StatusCode, value: &impl serde::Serialize) -> Response {
    let mut text = serde_json::to_vec(value).expect("an answer has only plain fields");
    text.push(b'\n');
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}
