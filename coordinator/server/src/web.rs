//! HTTP over a port's connections, for probes, scrapers and API servers. A connection must begin a
//! request in time, and the request must end in time; bytes alone keep no connection open.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use futures_util::{Stream, StreamExt};
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use leasehold_http_api::Caller;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

use crate::connections::{Connection, ConnectionLimits, IDLE_MAX, Peer, WAITING_MAX};

/// The most connections: each API server and each scraper keeps a few open.
const CONNECTIONS_MAX: usize = 256;
/// How long the headers of a connection's first request may take.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take from its headers until its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a request's headers.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes that a connection may have in flight, and each of its streams.
const WINDOW_BYTES: u32 = 64 * 1024;
/// The most streams of one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;

/// The limits of a port for HTTP. A peer is never proven, so all its connections have places that
/// others may take; those whose last request is the oldest go first.
pub(crate) const LIMITS: ConnectionLimits = ConnectionLimits {
    unauthenticated: CONNECTIONS_MAX,
    waiting: WAITING_MAX,
    // The connections that have just lost their places count until they are closed.
    total: 2 * CONNECTIONS_MAX,
    callers: 0,
    unauthenticated_age: HEADERS_TIMEOUT,
};

/// A connection whose peer is known.
pub(crate) trait HasPeer {
    fn peer(&self) -> &Peer;
}

impl HasPeer for Connection {
    fn peer(&self) -> &Peer {
        Self::peer(self)
    }
}

impl HasPeer for TlsStream<Connection> {
    fn peer(&self) -> &Peer {
        self.get_ref().0.peer()
    }
}

/// Serves `router` on these connections until `stop`, and then until their requests are answered.
pub(crate) async fn serve<C>(
    connections: impl Stream<Item = io::Result<C>> + Send,
    router: Router,
    stop: impl Future<Output = ()> + Send,
) where
    C: HasPeer + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = builder();
    let graceful = GracefulShutdown::new();
    tokio::pin!(connections, stop);
    loop {
        let connection = tokio::select! {
            () = &mut stop => break,
            Some(connection) = connections.next() => connection,
            else => break,
        };
        let Ok(connection) = connection else { continue };
        let (peer, router) = (connection.peer().clone(), router.clone());
        let service =
            tower::service_fn(move |request| answer(router.clone(), peer.clone(), request));
        let served = builder
            .serve_connection(TokioIo::new(connection), TowerToHyperService::new(service))
            .into_owned();
        let served = graceful.watch(served);
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    graceful.shutdown().await;
}

/// The peer as the API knows it: an answer that goes on keeps its connection open for as long as an
/// idle one.
fn caller(peer: &Peer) -> Caller {
    let (address, peer) = (peer.address(), peer.clone());
    Caller { address, keep_open: Arc::new(move || peer.end_after(IDLE_MAX)) }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    builder
}

async fn answer(
    router: Router,
    peer: Peer,
    request: Request<Incoming>,
) -> Result<axum::response::Response, std::convert::Infallible> {
    peer.end_after(REQUEST_TIMEOUT);
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer.clone());
    request.extensions_mut().insert(ConnectInfo(peer.address()));
    request.extensions_mut().insert(caller(&peer));
    let answer = router.oneshot(request).await;
    peer.end_after(IDLE_MAX);
    peer.keep_place(Duration::ZERO);
    answer
}
