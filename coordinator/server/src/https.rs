//! A port for HTTPS, which API servers call.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use leasehold_driver::metrics::Metrics;
use tokio::net::TcpListener;

use crate::connections::{Listener, Preface, handshake};
use crate::file_shares::FileShares;
use crate::request_places::{self, RequestPlaces};
use crate::tls::Certificates;
use crate::web;

/// The most requests that are read and answered at a time. Each may have the body of a review, at
/// most 3 MiB.
const REQUESTS_MAX: usize = 128;

/// A port that is bound and not served yet.
pub struct Https {
    /// Its socket.
    pub socket: TcpListener,
    /// The port's certificates.
    pub certificates: Certificates,
    /// Makes the router, which counts in these metrics.
    pub router: Box<dyn FnOnce(Arc<Metrics>) -> Router + Send>,
}

/// Serves the port until `stop`.
pub async fn serve(
    https: Https,
    files: FileShares,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send,
) {
    let Https { socket, certificates, router } = https;
    let listener = Listener::new(socket, Preface::Any, files.http());
    let connections = handshake::for_https(listener, certificates);
    let places = RequestPlaces::new(REQUESTS_MAX);
    let router = router(metrics).layer(from_fn_with_state(places, request_places::in_place));
    web::serve(connections, router, stop).await;
}
