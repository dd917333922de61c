//! A port for HTTPS without client certificates, which API servers call.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use leasehold_driver::metrics::Metrics;
use tokio::net::TcpListener;

use crate::grpc::handshake::Handshakes;
use crate::grpc::incoming::{Listener, Preface};
use crate::tls::Certificates;

/// The most concurrent connections: each API server keeps a few open.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection may be idle; longer than the API server keeps one.
const IDLE_MAX: Duration = Duration::from_secs(120);

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
///
/// # Errors
/// If the socket fails.
pub async fn serve(
    https: Https,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let Https { socket, certificates, router } = https;
    let listener = Listener::new(socket, Preface::Any { idle: IDLE_MAX }, CONNECTIONS_MAX);
    let listener = Handshakes::of_https(listener, certificates);
    axum::serve(listener, router(metrics)).with_graceful_shutdown(stop).await?;
    Ok(())
}
