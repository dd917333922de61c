//! Incoming connections. Their number is limited, and each must send the first bytes of the port's
//! protocol in time. A peer with another protocol costs one read and one log line.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How long a peer may take to send its first bytes.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after the system had no file or memory left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most warnings within [`WARNING_INTERVAL`], over all peers.
const WARNED_PEERS_MAX: usize = 64;
/// There is at most one warning about a peer in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// The first bytes of an HTTP/2 client (RFC 9113, 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first bytes of a TLS client: a handshake record of version 3 (RFC 8446, 5.1).
const TLS_PREFACE: &[u8] = &[0x16, 0x03];

/// The first bytes that a port expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preface {
    /// HTTP/2 without TLS.
    Http2,
    /// TLS.
    Tls,
    /// HTTP/1 or 2: any bytes in time, and then more before `idle` has passed.
    Any {
        /// How long a connection may be idle.
        idle: Duration,
    },
}

impl Preface {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Http2 => HTTP2_PREFACE,
            Self::Tls => TLS_PREFACE,
            Self::Any { .. } => b"",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http2 => "HTTP/2",
            Self::Tls => "TLS",
            Self::Any { .. } => "HTTP",
        }
    }
}

/// A listening socket with its limits.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    preface: Preface,
    permits: Arc<Semaphore>,
    warnings: Arc<PeerWarnings>,
}

impl Listener {
    pub(crate) fn new(socket: TcpListener, preface: Preface, connections_max: usize) -> Self {
        let permits = Arc::new(Semaphore::new(connections_max));
        Self { socket, preface, permits, warnings: Arc::default() }
    }

    /// Accepts the next connection within the limit.
    pub(crate) async fn next(&self) -> (Connection, SocketAddr) {
        loop {
            let (stream, peer) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    self.warnings.warn(
                        IpAddr::from([0, 0, 0, 0]),
                        "cannot accept connections",
                        &error,
                    );
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                let why = "the port has reached its limit of connections";
                self.warnings.warn(peer.ip(), "connection refused", &why);
                continue;
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
            }
            let connection = Connection {
                stream,
                peer,
                preface: self.preface,
                seen: 0,
                deadline: Some(Box::pin(sleep(FIRST_BYTES_TIMEOUT))),
                warnings: Arc::clone(&self.warnings),
                _permit: permit,
            };
            return (connection, peer);
        }
    }

    /// The connections as an endless stream.
    pub(crate) fn into_stream(self) -> impl Stream<Item = io::Result<Connection>> {
        futures_util::stream::unfold(self, |listener| async move {
            let (connection, _) = listener.next().await;
            Some((Ok(connection), listener))
        })
    }
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        self.next().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// One accepted connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    preface: Preface,
    /// Bytes of the preface seen so far.
    seen: usize,
    /// When the peer must have sent something.
    deadline: Option<Pin<Box<Sleep>>>,
    warnings: Arc<PeerWarnings>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// The peer's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Checks received bytes against the preface.
    fn check_preface(&mut self, read: &[u8]) -> io::Result<()> {
        let expected = &self.preface.bytes()[self.seen..];
        let together = expected.len().min(read.len());
        if expected[..together] != read[..together] {
            let protocol = self.preface.name();
            let why = format!("the peer does not speak {protocol}, which this port expects");
            self.warnings.warn(self.peer.ip(), "connection dropped", &why);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        self.seen += together;
        match self.preface {
            Preface::Http2 | Preface::Tls if self.seen < self.preface.bytes().len() => {}
            Preface::Http2 | Preface::Tls => self.deadline = None,
            Preface::Any { idle } => {
                if let Some(deadline) = &mut self.deadline {
                    deadline.as_mut().reset(Instant::now() + idle);
                }
            }
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) if self.deadline.is_some() && buf.filled().len() > before => {
                let checked = self.check_preface(&buf.filled()[before..]);
                if checked.is_err() {
                    buf.set_filled(before);
                }
                Poll::Ready(checked)
            }
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => {
                let Some(deadline) = &mut self.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(cx));
                tracing::debug!(peer = %self.peer, "connection dropped: no bytes in time");
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

/// The peers of recent warnings, so that a flood of connections does not flood the log.
#[derive(Debug, Default)]
struct PeerWarnings(Mutex<HashMap<IpAddr, Instant>>);

impl PeerWarnings {
    fn warn(&self, peer: IpAddr, what: &'static str, why: &dyn std::fmt::Display) {
        match self.should_warn(peer, Instant::now()) {
            true => tracing::warn!(%peer, %why, "{what}"),
            false => tracing::debug!(%peer, %why, "{what}"),
        }
    }

    fn should_warn(&self, peer: IpAddr, now: Instant) -> bool {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|_, warned| now.duration_since(*warned) < WARNING_INTERVAL);
        if peers.contains_key(&peer) || peers.len() >= WARNED_PEERS_MAX {
            return false;
        }
        peers.insert(peer, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn warnings_are_limited_per_peer_and_in_total() {
        let warnings = PeerWarnings::default();
        let start = Instant::now();
        let peer = |last: u8| IpAddr::from([127, 0, 0, last]);
        assert!(warnings.should_warn(peer(1), start));
        assert!(!warnings.should_warn(peer(1), start));
        let count = (2..200).filter(|last| warnings.should_warn(peer(*last), start)).count();
        assert_eq!(count, WARNED_PEERS_MAX - 1);
        assert!(warnings.should_warn(peer(1), start + WARNING_INTERVAL));
    }

    /// What the port reads from a peer that sends `bytes`.
    async fn read_from_peer(preface: Preface, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("an address");
        let listener = Listener::new(socket, preface, 1);
        let mut peer = TcpStream::connect(address).await.expect("a connection");
        let (mut connection, _) = listener.next().await;
        peer.write_all(bytes).await.expect("room");
        drop(peer);
        let mut read = Vec::new();
        connection.read_to_end(&mut read).await.map(|_| read)
    }

    #[tokio::test]
    async fn a_port_accepts_only_peers_with_the_expected_first_bytes() {
        let good = [HTTP2_PREFACE, b"more"].concat();
        assert_eq!(read_from_peer(Preface::Http2, &good).await.expect("good"), good);
        let hello = [0x16, 0x03, 0x01, 0x02];
        assert_eq!(read_from_peer(Preface::Tls, &hello).await.expect("good"), hello);
        let idle = FIRST_BYTES_TIMEOUT;
        assert_eq!(read_from_peer(Preface::Any { idle }, b"GET /").await.expect("good"), b"GET /");
        for (preface, bad) in [
            (Preface::Http2, b"GET / HTTP/1.1\r\n".as_slice()),
            (Preface::Http2, b"PRI * HTTP/1.1\r\n"),
            (Preface::Http2, &hello),
            (Preface::Tls, HTTP2_PREFACE),
            (Preface::Tls, &[0x16, 0x02]),
        ] {
            let error = read_from_peer(preface, bad).await.expect_err("taken");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{preface:?}: {bad:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_beyond_the_limit_is_closed_until_another_ends() {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("an address");
        let listener = Listener::new(socket, Preface::Http2, 1);
        let _first = TcpStream::connect(address).await.expect("a connection");
        let (first, _) = listener.next().await;
        let mut second = TcpStream::connect(address).await.expect("a connection");
        let closed = async {
            // The connection may also end by a reset.
            let _ = second.read_to_end(&mut Vec::new()).await;
        };
        tokio::select! {
            () = closed => {}
            _ = listener.next() => panic!("a second connection was taken"),
        }
        drop(first);
        let third = TcpStream::connect(address).await.expect("a connection");
        let (connection, _) = listener.next().await;
        assert_eq!(connection.peer, third.local_addr().expect("an address"));
    }
}
