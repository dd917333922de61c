//! TLS handshakes: many at once, each with the newest certificate and a timeout. A peer that stalls
//! uses one connection of the limit and delays no other peer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use rustls::ServerConfig;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::incoming::{Connection, Listener};
use crate::tls::{Certificates, ServerConfigs};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A listener's connections after their handshakes, as an endless stream.
pub(crate) fn secured(
    listener: Listener,
    certificates: Certificates,
) -> impl Stream<Item = io::Result<TlsStream<Connection>>> {
    let pick = |serving: &ServerConfigs| Arc::clone(&serving.config);
    let handshakes = Handshakes { listener, certificates, pick, running: JoinSet::new() };
    futures_util::stream::unfold(handshakes, |mut handshakes| async move {
        let next = handshakes.next().await;
        Some((Ok(next), handshakes))
    })
}

/// A listener that returns connections after their TLS handshake.
#[derive(Debug)]
pub(crate) struct Handshakes {
    listener: Listener,
    certificates: Certificates,
    /// Selects the configuration of the port.
    pick: fn(&ServerConfigs) -> Arc<ServerConfig>,
    /// At most as many as the listener's limit of connections.
    running: JoinSet<Option<TlsStream<Connection>>>,
}

impl Handshakes {
    /// For HTTP of either version.
    pub(crate) fn of_https(listener: Listener, certificates: Certificates) -> Self {
        let pick = |serving: &ServerConfigs| Arc::clone(&serving.https);
        Self { listener, certificates, pick, running: JoinSet::new() }
    }

    async fn next(&mut self) -> TlsStream<Connection> {
        loop {
            tokio::select! {
                (connection, peer) = self.listener.next() => {
                    let config = (self.pick)(&self.certificates.borrow());
                    // A task of its own, so that many at once are spread over the processors.
                    self.running.spawn(handshake(TlsAcceptor::from(config), connection, peer));
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

impl axum::serve::Listener for Handshakes {
    type Io = TlsStream<Connection>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TlsStream<Connection>, SocketAddr) {
        let stream = self.next().await;
        let peer = stream.get_ref().0.peer();
        (stream, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        axum::serve::Listener::local_addr(&self.listener)
    }
}

async fn handshake(
    acceptor: TlsAcceptor,
    connection: Connection,
    peer: SocketAddr,
) -> Option<TlsStream<Connection>> {
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(connection)).await {
        Ok(Ok(stream)) => Some(stream),
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
