//! Incoming connections: a bounded number at once, each of which must begin to speak the port's
//! protocol soon. What speaks another costs one read and one line in the log.

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

/// How long a peer may take until it has said its first bytes.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait where the system has no more files or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Peers that are remembered as warned about.
const WARNED_PEERS_MAX: usize = 64;
/// A peer is warned about once in so long, and all together [`WARNED_PEERS_MAX`] times.
const WARN_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// What an HTTP/2 client says first (RFC 9113, 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a TLS client says first: a handshake record of version 3 (RFC 8446, 5.1).
const TLS_PREFACE: &[u8] = &[0x16, 0x03];

/// What a port's peers must say first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preface {
    /// HTTP/2 without TLS.
    Http2,
    /// TLS.
    Tls,
    /// HTTP/1 or 2: something, soon, and again within the time given.
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
    places: Arc<Semaphore>,
    strangers: Arc<PeerWarnings>,
}

impl Listener {
    pub(crate) fn new(socket: TcpListener, preface: Preface, connections_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(connections_max));
        Self { socket, preface, places, strangers: Arc::default() }
    }

    /// The next connection for which there is a place.
    pub(crate) async fn next(&self) -> (Connection, SocketAddr) {
        loop {
            let (stream, peer) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    self.strangers.warn(
                        IpAddr::from([0, 0, 0, 0]),
                        "no connection accepted",
                        &error,
                    );
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                let why = "all connections are taken";
                self.strangers.warn(peer.ip(), "connection refused", &why);
                continue;
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%peer, %error, "no TCP_NODELAY");
            }
            let connection = Connection {
                stream,
                peer,
                preface: self.preface,
                seen: 0,
                deadline: Some(Box::pin(sleep(FIRST_BYTES_WITHIN))),
                strangers: Arc::clone(&self.strangers),
                _place: place,
            };
            return (connection, peer);
        }
    }

    /// The connections as a stream without an end.
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
    /// When the peer must have said something.
    deadline: Option<Pin<Box<Sleep>>>,
    strangers: Arc<PeerWarnings>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Where it comes from.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Looks at bytes that were read: the preface, or something else.
    fn look_at(&mut self, read: &[u8]) -> io::Result<()> {
        let wanted = &self.preface.bytes()[self.seen..];
        let together = wanted.len().min(read.len());
        if wanted[..together] != read[..together] {
            let wants = self.preface.name();
            let why = format!("peer does not speak {wants}, which this port wants");
            self.strangers.warn(self.peer.ip(), "connection dropped", &why);
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
                let looked = self.look_at(&buf.filled()[before..]);
                if looked.is_err() {
                    buf.set_filled(before);
                }
                Poll::Ready(looked)
            }
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => {
                let Some(deadline) = &mut self.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(cx));
                tracing::debug!(peer = %self.peer, "connection dropped: the peer is silent");
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

/// Peers that were warned about lately, so that a flood of them does not flood the log.
#[derive(Debug, Default)]
struct PeerWarnings(Mutex<HashMap<IpAddr, Instant>>);

impl PeerWarnings {
    fn warn(&self, peer: IpAddr, what: &'static str, why: &dyn std::fmt::Display) {
        match self.is_news(peer, Instant::now()) {
            true => tracing::warn!(%peer, %why, "{what}"),
            false => tracing::debug!(%peer, %why, "{what}"),
        }
    }

    fn is_news(&self, peer: IpAddr, now: Instant) -> bool {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|_, warned| now.duration_since(*warned) < WARN_AGAIN_AFTER);
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
    async fn a_peer_is_warned_about_once_in_a_while_and_a_crowd_not_at_all() {
        let strangers = PeerWarnings::default();
        let start = Instant::now();
        let peer = |last: u8| IpAddr::from([127, 0, 0, last]);
        assert!(strangers.is_news(peer(1), start));
        assert!(!strangers.is_news(peer(1), start));
        let news = (2..200).filter(|last| strangers.is_news(peer(*last), start)).count();
        assert_eq!(news, WARNED_PEERS_MAX - 1);
        assert!(strangers.is_news(peer(1), start + WARN_AGAIN_AFTER));
    }

    /// What the port reads of a peer that says `bytes`.
    async fn said(preface: Preface, bytes: &[u8]) -> io::Result<Vec<u8>> {
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
    async fn a_port_reads_what_begins_as_it_must_and_nothing_else() {
        let good = [HTTP2_PREFACE, b"more"].concat();
        assert_eq!(said(Preface::Http2, &good).await.expect("good"), good);
        let hello = [0x16, 0x03, 0x01, 0x02];
        assert_eq!(said(Preface::Tls, &hello).await.expect("good"), hello);
        let idle = FIRST_BYTES_WITHIN;
        assert_eq!(said(Preface::Any { idle }, b"GET /").await.expect("good"), b"GET /");
        for (preface, bad) in [
            (Preface::Http2, b"GET / HTTP/1.1\r\n".as_slice()),
            (Preface::Http2, b"PRI * HTTP/1.1\r\n"),
            (Preface::Http2, &hello),
            (Preface::Tls, HTTP2_PREFACE),
            (Preface::Tls, &[0x16, 0x02]),
        ] {
            let error = said(preface, bad).await.expect_err("taken");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{preface:?}: {bad:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_beyond_the_limit_is_closed_until_a_place_is_free() {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("an address");
        let listener = Listener::new(socket, Preface::Http2, 1);
        let _first = TcpStream::connect(address).await.expect("a connection");
        let (first, _) = listener.next().await;
        let mut second = TcpStream::connect(address).await.expect("a connection");
        let closed = async {
            // A reset is as good an end as any.
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
