//! Incoming connections. Their number is limited, and each must send the first bytes of the port's
//! protocol and a valid request in time. A peer with another protocol costs one read and one log
//! line. Connections that wait for a place cost no memory of this process but their entry.

mod callers;
mod fair_queue;
pub(crate) mod handshake;
#[cfg(test)]
mod listener_tests;
mod peer;
mod places;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{FutureExt, Stream};
use leasehold_driver::log_limit::PeerLogLimit;
use leasehold_types::limits::SILENCE_MAX;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::transport::server::Connected;

pub(crate) use self::callers::{CallerLimit, TooManyConnections};
use self::fair_queue::FairQueue;
pub(crate) use self::peer::{AllowedCall, IDLE_MAX, Peer, WeakPeer};
use self::places::{Evicted, Place, Places};

/// How long a peer may take to send its first bytes.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// The most connections of a port that wait for a place.
pub(crate) const WAITING_MAX: usize = 4_096;
/// How long one waits; its peer has probably given up then.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a new connection to a port for HTTP keeps its place although one of another address
/// wants it: long enough for a handshake and a request on a busy machine. On the port of agents it
/// is as long as an agent waits: with less, agents that all dial at once would take each other's
/// places, and each would dial again.
const HTTP_PLACE_KEPT_FOR: Duration = Duration::from_secs(1);
/// The pause after the system had no file or memory left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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
    /// HTTP/1 or 2: any bytes.
    Any,
}

impl Preface {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Http2 => HTTP2_PREFACE,
            Self::Tls => TLS_PREFACE,
            Self::Any => b"",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http2 => "HTTP/2",
            Self::Tls => "TLS",
            Self::Any => "HTTP",
        }
    }
}

/// The most connections of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Of peers that have not proven who they are. More wait.
    pub(crate) unauthenticated: usize,
    /// Of those that wait for a place.
    pub(crate) waiting: usize,
    /// Of all peers that have a place or an allowed call.
    pub(crate) total: usize,
    /// Of those with calls of people, replicas and autoscalers.
    pub(crate) callers: usize,
    /// How long a connection may take until its peer is proven.
    pub(crate) unauthenticated_age: Duration,
}

/// A listening socket with its limits.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    preface: Preface,
    permits: Arc<Semaphore>,
    places: Arc<Places>,
    waiting: FairQueue<WaitingConnection>,
    unauthenticated_age: Duration,
    callers: CallerLimit,
    warnings: Arc<PeerLogLimit>,
}

/// An accepted connection without a place.
#[derive(Debug)]
struct WaitingConnection {
    stream: TcpStream,
    address: SocketAddr,
    since: Instant,
}

impl Listener {
    /// A port where all callers are one tenant; see [`Self::with_callers`].
    pub(crate) fn new(socket: TcpListener, preface: Preface, limits: ConnectionLimits) -> Self {
        let ConnectionLimits { unauthenticated, waiting, total, callers, unauthenticated_age } =
            limits;
        let kept_for = match preface {
            Preface::Any => HTTP_PLACE_KEPT_FOR,
            Preface::Http2 | Preface::Tls => SILENCE_MAX,
        };
        Self {
            socket,
            preface,
            permits: Arc::new(Semaphore::new(total)),
            places: Places::new(unauthenticated, kept_for),
            waiting: FairQueue::new(waiting),
            unauthenticated_age,
            callers: CallerLimit::new(callers, callers),
            warnings: Arc::default(),
        }
    }

    /// The same port with this limit of callers.
    pub(crate) fn with_callers(self, callers: CallerLimit) -> Self {
        Self { callers, ..self }
    }

    /// The next connection that has a place.
    pub(crate) async fn next(&mut self) -> Connection {
        loop {
            self.drop_outdated();
            let places = Arc::clone(&self.places);
            let is_waited_for = !self.waiting.is_empty();
            tokio::select! {
                // While each address waits with one connection, further ones wait in the kernel:
                // its queue costs no file, and a peer that is sent away dials again.
                accepted = self.socket.accept(), if self.waiting.takes_more() => match accepted {
                    Ok((stream, address)) => self.enqueue(stream, address),
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        warn(&self.warnings, None, "cannot accept connections", &error);
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                place = places.take(self.waiting.turns()), if is_waited_for => {
                    if let Some(waiting) = self.waiting.pop(place.0.address())
                        && let Some(connection) = self.open(waiting, place)
                    {
                        return connection;
                    }
                }
            }
        }
    }

    fn enqueue(&mut self, stream: TcpStream, address: SocketAddr) {
        let waiting = WaitingConnection { stream, address, since: Instant::now() };
        if let Some((dropped, _)) = self.waiting.push(address.ip(), waiting) {
            let why = "too many connections wait, and this address has the most";
            warn(&self.warnings, Some(dropped), "connection refused", &why);
        }
        if !self.waiting.takes_more() {
            let why = "as many wait for a place as may, each from an address of its own";
            warn(&self.warnings, None, "further connections wait in the kernel", &why);
        }
    }

    /// Drops the connections whose turn it is and whose peers do not wait any longer: none of them
    /// takes the place of another one.
    fn drop_outdated(&mut self) {
        while let Some((address, waiting)) = self.waiting.front() {
            if waiting.since.elapsed() > WAIT_MAX {
                let why = "the port had no place for it in time";
                warn(&self.warnings, Some(address), "connection refused", &why);
            } else if self.preface != Preface::Any && is_gone(&waiting.stream) {
                let peer = waiting.address;
                tracing::debug!(%peer, "connection dropped: its peer has given up");
            } else {
                return;
            }
            self.waiting.pop(address);
        }
    }

    fn open(&self, waiting: WaitingConnection, place: (Place, Evicted)) -> Option<Connection> {
        let WaitingConnection { stream, address, .. } = waiting;
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            let why = "the port has reached its limit of connections";
            warn(&self.warnings, Some(address.ip()), "connection refused", &why);
            return None;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %address, %error, "cannot set TCP_NODELAY");
        }
        Some(Connection {
            stream,
            peer: Peer::new(
                address,
                place,
                Instant::now() + FIRST_BYTES_TIMEOUT,
                self.callers.clone(),
            ),
            preface: self.preface,
            seen: Some(0),
            unauthenticated_age: self.unauthenticated_age,
            timer: None,
            warnings: Arc::clone(&self.warnings),
            _permit: permit,
        })
    }

    /// The connections as an endless stream.
    pub(crate) fn into_stream(self) -> impl Stream<Item = io::Result<Connection>> {
        futures_util::stream::unfold(self, |mut listener| async move {
            let connection = listener.next().await;
            Some((Ok(connection), listener))
        })
    }
}

/// Whether the peer has closed the connection. A client of HTTP/1 may close its half of a
/// connection and wait for the answer; one of HTTP/2 does not.
fn is_gone(stream: &TcpStream) -> bool {
    let ready = stream.ready(Interest::READABLE).now_or_never();
    ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// One accepted connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    peer: Peer,
    preface: Preface,
    /// Bytes of the preface seen so far; `None` once it is complete.
    seen: Option<usize>,
    unauthenticated_age: Duration,
    /// Fires at the peer's deadline.
    timer: Option<Pin<Box<Sleep>>>,
    warnings: Arc<PeerLogLimit>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// The other side.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Checks received bytes against the preface.
    fn check_preface(&mut self, read: &[u8]) -> io::Result<()> {
        let Some(seen) = self.seen else { return Ok(()) };
        let expected = &self.preface.bytes()[seen..];
        let together = expected.len().min(read.len());
        if expected[..together] != read[..together] {
            let protocol = self.preface.name();
            let why = format!("the peer does not speak {protocol}, which this port expects");
            warn(&self.warnings, Some(self.peer.address().ip()), "connection dropped", &why);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let complete = seen + together == self.preface.bytes().len();
        self.seen = (!complete).then_some(seen + together);
        if complete && self.preface != Preface::Any {
            self.peer.end_after(self.unauthenticated_age);
        }
        Ok(())
    }

    /// Why the connection must end, once it must. Called while its peer is waited for.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.peer.poll_evicted(cx).is_ready() {
            let peer = self.peer.address();
            tracing::debug!(%peer, "connection dropped: a new one took its place");
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        loop {
            let Some(deadline) = self.peer.deadline(cx) else {
                self.timer = None;
                return Poll::Pending;
            };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(cx));
            // The services may have moved it meanwhile.
            if self.peer.deadline(cx) == Some(deadline) {
                let peer = self.peer.address();
                tracing::debug!(%peer, "connection dropped: its deadline has passed");
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// What is polled, unless the connection must end before it is ready.
    fn or_end<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        match polled {
            Poll::Ready(ready) => Poll::Ready(ready),
            Poll::Pending => self.poll_end(cx).map(Err),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        ready!(self.or_end(read, cx))?;
        let checked = self.check_preface(&buf.filled()[before..]);
        if checked.is_err() {
            buf.set_filled(before);
        }
        Poll::Ready(checked)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.or_end(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.or_end(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.or_end(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Warns of a peer, if it has one, or writes the line for debugging if there were many.
fn warn(
    limit: &PeerLogLimit,
    peer: Option<IpAddr>,
    what: &'static str,
    why: &dyn std::fmt::Display,
) {
    let is_warned = limit.allows(peer);
    let peer = peer.map(tracing::field::display);
    if is_warned {
        tracing::warn!(peer, %why, "{what}");
    } else {
        tracing::debug!(peer, %why, "{what}");
    }
}
