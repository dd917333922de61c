//! TLS handshakes: many at once, each with the newest certificate and a timeout. A peer that stalls
//! uses one connection of the limit and delays no other peer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use rustls::ServerConfig;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{Connection, Listener};
use crate::tls::{Certificates, ServerConfigs, names_in};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of a port for gRPC after their handshakes, as an endless stream.
pub(crate) fn for_grpc(
    listener: Listener,
    certificates: Certificates,
) -> impl Stream<Item = io::Result<TlsStream<Connection>>> {
    secured(listener, certificates, |serving| Arc::clone(&serving.config))
}

/// The same for HTTP of either version.
pub(crate) fn for_https(
    listener: Listener,
    certificates: Certificates,
) -> impl Stream<Item = io::Result<TlsStream<Connection>>> {
    secured(listener, certificates, |serving| Arc::clone(&serving.https))
}

fn secured(
    listener: Listener,
    certificates: Certificates,
    pick: fn(&ServerConfigs) -> Arc<ServerConfig>,
) -> impl Stream<Item = io::Result<TlsStream<Connection>>> {
    let handshakes = Handshakes { listener, certificates, pick, running: JoinSet::new() };
    futures_util::stream::unfold(handshakes, |mut handshakes| async move {
        let next = handshakes.next().await;
        Some((Ok(next), handshakes))
    })
}

/// A listener and the handshakes of its connections.
#[derive(Debug)]
struct Handshakes {
    listener: Listener,
    certificates: Certificates,
    /// Selects the configuration of the port.
    pick: fn(&ServerConfigs) -> Arc<ServerConfig>,
    /// At most as many as the listener's limit of connections.
    running: JoinSet<Option<TlsStream<Connection>>>,
}

impl Handshakes {
    async fn next(&mut self) -> TlsStream<Connection> {
        loop {
            tokio::select! {
                connection = self.listener.next() => {
                    let config = (self.pick)(&self.certificates.borrow());
                    // A task of its own, so that many at once are spread over the processors.
                    self.running.spawn(handshake(TlsAcceptor::from(config), connection));
                }
                Some(ended) = self.running.join_next() => {
                    if let Ok(Some(stream)) = ended {
                        return stream;
                    }
                }
            }
        }
    }
}

async fn handshake(acceptor: TlsAcceptor, connection: Connection) -> Option<TlsStream<Connection>> {
    let peer = connection.peer().address();
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(connection)).await {
        Ok(Ok(stream)) => {
            let (connection, session) = stream.get_ref();
            // The verifier of the configuration has checked its signature and its times.
            if let Some(certificate) = session.peer_certificates().and_then(<[_]>::first) {
                connection.peer().set_certificate(names_in(certificate));
            }
            Some(stream)
        }
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake took longer than {HANDSHAKE_TIMEOUT:?}");
            None
        }
    }
}
