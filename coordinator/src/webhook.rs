//! The webhook: the API server asks it what an opted-in pod gets, before it stores the pod. Every
//! replica answers, leading or not, from what is wanted as it knows it. A pod that asked for an
//! agent is never let through without one: what cannot be done is refused, and says what to mend.

mod injector;
mod patch;
mod review;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tower::limit::ConcurrencyLimitLayer;

pub use self::injector::{Cluster, Clusters, Injector};
use self::review::Review;
use crate::metrics::{Injection, Metrics};
use crate::server::handshake::Handshakes;
use crate::server::incoming::{Listener, Preface};
use crate::tls::Certificates;

/// Connections at once: API servers keep a few open each.
const CONNECTIONS_MAX: usize = 256;
/// Reviews at once.
const REVIEWS_MAX: usize = 64;
/// How long a connection may be idle; longer than the API server keeps one.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Bytes of a review: an object of the size that the API server stores, and what is said of it.
const REVIEW_BYTES_MAX: usize = 3 * 1024 * 1024;
/// How long a review may take to arrive; shorter than the API server waits for the answer.
const REVIEW_WITHIN: Duration = Duration::from_secs(4);
/// What is answered to any other path.
const PATHS: &str = "no such path; there is /inject, for the API server\n";

/// A webhook, bound and not served yet.
#[derive(Debug)]
pub struct Webhook {
    /// Its socket.
    pub socket: TcpListener,
    /// What it proves itself with.
    pub certificates: Certificates,
    /// What it answers from.
    pub injector: Injector,
}

#[derive(Clone)]
struct Desk {
    injector: Arc<Injector>,
    metrics: Arc<Metrics>,
}

/// Serves the port until `stop`.
///
/// # Errors
/// Where the socket fails.
pub(crate) async fn serve(
    webhook: Webhook,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let Webhook { socket, certificates, injector } = webhook;
    let listener = Listener::new(socket, Preface::Any { idle: IDLE_MAX }, CONNECTIONS_MAX);
    let listener = Handshakes::of_https(listener, certificates);
    let desk = Desk { injector: Arc::new(injector), metrics };
    let router = Router::new()
        .route("/inject", post(inject))
        .fallback(|| async { (StatusCode::NOT_FOUND, PATHS) })
        .with_state(desk)
        .layer(ConcurrencyLimitLayer::new(REVIEWS_MAX));
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    Ok(())
}

async fn inject(State(desk): State<Desk>, body: Body) -> Response {
    let body = match timeout(REVIEW_WITHIN, to_bytes(body, REVIEW_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            let text = format!("a review of at most {REVIEW_BYTES_MAX} bytes is wanted: {error}\n");
            return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
        }
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the review is late\n").into_response(),
    };
    let review = match Review::read(&body) {
        Ok(review) => review,
        Err(problem) => return (StatusCode::BAD_REQUEST, format!("{problem}\n")).into_response(),
    };
    let Some(clusters) = desk.injector.clusters() else {
        desk.metrics.reviewed(Injection::Unready);
        let text = "the WorkerClusters and WorkerClasses have not been read yet: try again\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let verdict = review.judge(&desk.injector, &clusters);
    desk.metrics.reviewed(verdict.kind());
    ([(header::CONTENT_TYPE, "application/json")], review.answer(verdict)).into_response()
}
