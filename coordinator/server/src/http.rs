//! The HTTP port: probes, metrics, the admin API as JSON, and the page that shows the fleet. Probes
//! never wait for the driver.

mod accept;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use leasehold_driver::access::Access;
use leasehold_driver::clock;
use leasehold_driver::health::Health;
use leasehold_driver::metrics::{Exposition, FleetSnapshot};
use leasehold_driver::port::Handle;
use leasehold_driver::replicas::Replicas;
use leasehold_http_api::{Api, Callers, Page, READY_BUT};
use leasehold_proto::HTTP_PORT_MESSAGE;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Status;
use tower::util::BoxCloneSyncService;

use crate::connections::{Listener, Preface};
use crate::file_shares::FileShares;
use crate::grpc::AdminCalls;
use crate::web;

/// The most concurrent scrapes. Probes have no limit: they are answered at once.
const SCRAPES_MAX: usize = 8;
/// How long a scrape waits for fresh values before it uses the last ones.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);
/// The answer for any other path.
const PATHS: &str = "no such path: use /livez, /readyz, /healthz, /metrics, or what / names\n";

/// The state of the port.
#[derive(Clone, Debug)]
pub struct HttpState {
    /// Answers the probes.
    pub health: Arc<Health>,
    /// The driver's handle, by the queue for people: nobody proves who scrapes.
    pub handle: Handle,
    /// The address of the gRPC port.
    pub grpc: SocketAddr,
    /// The metrics, as Prometheus scrapes them.
    pub exposition: Arc<Exposition>,
    /// The admin service.
    pub admin: AdminCalls,
    /// How callers of the admin service are authorized.
    pub access: Access,
    /// The replicas, whose pages may go on here.
    pub replicas: Arc<Replicas>,
}

/// Serves the port until `stop`.
pub async fn serve(
    socket: TcpListener,
    files: FileShares,
    state: HttpState,
    stop: impl Future<Output = ()> + Send,
) {
    let listener = Listener::new(socket, Preface::Any, files.http());
    web::serve(listener.into_stream(), router(state), stop).await;
}

/// The routes of the port.
pub fn router(state: HttpState) -> Router {
    let api = api(&state).router();
    Router::new()
        .route("/livez", get(livez))
        .route("/healthz", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .with_state(state)
        .merge(api)
}

/// The admin API over HTTP. A browser shows no credentials, so the page is served where none are
/// asked for.
fn api(state: &HttpState) -> Api {
    let calls = BoxCloneSyncService::new(state.admin.clone());
    let callers = match state.access {
        Access::Open | Access::Certificates => Callers::Any,
        Access::Asked(_) => Callers::Loopback,
    };
    let replicas = Arc::clone(&state.replicas);
    let page = match state.access {
        Access::Open => Page::WithReplicas(Arc::new(move || replicas.http_ports())),
        Access::Certificates | Access::Asked(_) => Page::Elsewhere,
    };
    Api { calls, callers, page }
}

/// Answers unknown paths; a gRPC client that dialled the wrong port gets a gRPC status.
async fn unknown(State(state): State<HttpState>, headers: HeaderMap) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("application/grpc")) {
        return (StatusCode::NOT_FOUND, PATHS).into_response();
    }
    let port = state.grpc.port();
    Status::unavailable(format!(
        "{HTTP_PORT_MESSAGE} (--http-listen); gRPC is served on port {port} (--listen)"
    ))
    .into_http::<Body>()
}

async fn livez(State(state): State<HttpState>) -> Response {
    answer(state.health.alive(clock::now()))
}

async fn readyz(State(state): State<HttpState>) -> Response {
    let now = clock::now();
    match (state.health.ready(now), state.handle.view.stale(now)) {
        // Agents keep their leases, and people see why an edit has no effect.
        (Ok(()), Some(why)) => format!("{READY_BUT}{why}\n").into_response(),
        (ready, _) => answer(ready),
    }
}

fn answer(health: Result<(), String>) -> Response {
    match health {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(state): State<HttpState>, headers: HeaderMap) -> Response {
    static SCRAPES: Semaphore = Semaphore::const_new(SCRAPES_MAX);
    let Ok(_permit) = SCRAPES.try_acquire() else {
        let text = format!("too many scrapes: at most {SCRAPES_MAX} at once; try again later\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let metrics = &state.handle.metrics;
    let fleet = state.handle.ask(FleetSnapshot::of);
    if let Ok(Ok(fleet)) = timeout(REFRESH_TIMEOUT, fleet).await {
        metrics.set_fleet(fleet);
    }
    let format = accept::format(&headers);
    match state.exposition.encode(format) {
        Ok(body) => ([(header::CONTENT_TYPE, format.content_type())], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot write the metrics");
            (StatusCode::INTERNAL_SERVER_ERROR, "cannot write the metrics\n").into_response()
        }
    }
}
