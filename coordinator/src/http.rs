//! The HTTP port: probes and metrics. Probes never wait for the driver.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tower::limit::ConcurrencyLimitLayer;

use crate::clock;
use crate::driver::Handle;
use crate::health::Health;
use crate::metrics::Fleet;
use crate::server::incoming::{Listener, Preface};

/// Connections at once.
const CONNECTIONS_MAX: usize = 256;
/// Requests at once.
const REQUESTS_MAX: usize = 64;
/// How long a connection may be idle; longer than scrapers pause.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// How long a scrape waits for fresh figures before it takes the last ones.
const FIGURES_WITHIN: Duration = Duration::from_secs(1);
/// The Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// What is answered to any other path.
const PATHS: &str = "no such path; there are /livez, /readyz, /healthz and /metrics\n";

/// What the port answers from.
#[derive(Clone, Debug)]
pub(crate) struct HttpState {
    pub(crate) health: Arc<Health>,
    pub(crate) handle: Handle,
}

/// Serves the port until `stop`.
///
/// # Errors
/// Where the socket fails.
pub(crate) async fn serve(
    socket: TcpListener,
    state: HttpState,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let listener = Listener::new(socket, Preface::Any { idle: IDLE_MAX }, CONNECTIONS_MAX);
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/healthz", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(|| async { (StatusCode::NOT_FOUND, PATHS) })
        .with_state(state)
        .layer(ConcurrencyLimitLayer::new(REQUESTS_MAX));
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    Ok(())
}

async fn livez(State(state): State<HttpState>) -> Response {
    answer(state.health.alive(clock::now()))
}

async fn readyz(State(state): State<HttpState>) -> Response {
    answer(state.health.ready(clock::now()))
}

fn answer(health: Result<(), String>) -> Response {
    match health {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(state): State<HttpState>) -> Response {
    let metrics = &state.handle.metrics;
    let fleet = state.handle.ask(|core, now| Fleet::of(core, now));
    if let Ok(Ok(fleet)) = timeout(FIGURES_WITHIN, fleet).await {
        metrics.set_fleet(fleet);
    }
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            (StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n").into_response()
        }
    }
}
