//! The other side of a connection, as services see it.
//!
//! Invariant: a connection without an allowed call has a deadline and a place that another
//! connection may take.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use leasehold_driver::access::certificate::CertificateNames;
use leasehold_driver::keyed_limit::KeyedPermit;
use tokio::time::Instant;
use tonic::codegen::http::Extensions;
use tonic::transport::server::TlsConnectInfo;

use super::callers::{CallerLimit, TooManyConnections};
use super::places::{Evicted, Place, Places};

/// How long a connection may be idle after its last allowed call; longer than scrapers and API
/// servers pause.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(120);
/// How long it may be idle if all places are kept for others. Its last answer is on its way.
const IDLE_WITHOUT_PLACE_MAX: Duration = Duration::from_secs(1);

/// The peer of one connection, in the extensions of each of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Arc<PeerState>);

/// A peer whose connection may have ended.
#[derive(Clone, Debug)]
pub(crate) struct WeakPeer(Weak<PeerState>);

#[derive(Debug)]
struct PeerState {
    address: SocketAddr,
    /// The names in its certificate, once the handshake has checked one.
    certificate: OnceLock<Arc<CertificateNames>>,
    /// Wakes the connection when its standing has changed.
    connection: AtomicWaker,
    /// The places of its port.
    places: Arc<Places>,
    /// The limit of its port's connections with calls of people, replicas and autoscalers.
    callers: CallerLimit,
    standing: Mutex<Standing>,
}

#[derive(Debug)]
struct Standing {
    /// When the connection ends, unless this is changed before.
    deadline: Option<Instant>,
    /// The allowed calls that have not ended.
    calls: usize,
    /// Its place among those that another connection may take; none while such a call lasts.
    place: Option<(Place, Evicted)>,
    /// The part of the callers' limit that it has.
    of_caller: Option<KeyedPermit<Option<String>>>,
}

/// A call that is allowed; the connection is kept open until this is dropped.
#[derive(Debug)]
#[must_use = "the connection is kept open only until this is dropped"]
pub(crate) struct AllowedCall(Peer);

impl Peer {
    pub(super) fn new(
        address: SocketAddr,
        place: (Place, Evicted),
        deadline: Instant,
        callers: CallerLimit,
    ) -> Self {
        let places = place.0.places();
        let standing =
            Standing { deadline: Some(deadline), calls: 0, place: Some(place), of_caller: None };
        Self(Arc::new(PeerState {
            address,
            certificate: OnceLock::new(),
            connection: AtomicWaker::new(),
            places,
            callers,
            standing: Mutex::new(standing),
        }))
    }

    /// The peer of a request.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        let secured = || extensions.get::<TlsConnectInfo<Self>>().map(TlsConnectInfo::get_ref);
        extensions.get().or_else(secured)
    }

    /// The same peer, without keeping what its connection has.
    pub(crate) fn downgrade(&self) -> WeakPeer {
        WeakPeer(Arc::downgrade(&self.0))
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The names in its certificate, if it has shown one that is trusted.
    pub(crate) fn certificate(&self) -> Option<Arc<CertificateNames>> {
        self.0.certificate.get().cloned()
    }

    /// Notes the names in the certificate that the handshake has checked.
    pub(super) fn set_certificate(&self, names: CertificateNames) {
        // A connection has one handshake.
        let _ = self.0.certificate.set(Arc::new(names));
    }

    /// Begins an agent's session, which the limits of sessions count: while it lasts the connection
    /// has no deadline, and no other connection takes its place.
    pub(crate) fn begin_session(&self) -> AllowedCall {
        self.begin(&mut self.standing())
    }

    /// Begins a call that this caller may make; `tenant` is none for a caller without a name. While
    /// it lasts the connection has no deadline, and no other connection takes its place.
    ///
    /// # Errors
    /// If the caller has as many connections as one may have.
    pub(crate) fn begin_call(
        &self,
        tenant: Option<String>,
    ) -> Result<AllowedCall, TooManyConnections> {
        let mut standing = self.standing();
        if standing.of_caller.is_none() {
            standing.of_caller = Some(self.0.callers.take(tenant)?);
        }
        Ok(self.begin(&mut standing))
    }

    fn begin(&self, standing: &mut Standing) -> AllowedCall {
        standing.calls += 1;
        if standing.calls == 1 {
            (standing.deadline, standing.place) = (None, None);
            self.0.connection.wake();
        }
        AllowedCall(self.clone())
    }

    /// Ends the connection after `time`, unless this is called again before.
    pub(crate) fn end_after(&self, time: Duration) {
        self.standing().deadline = Some(Instant::now() + time);
        self.0.connection.wake();
    }

    /// Makes the connection the last that another one may take the place of, and for this time no
    /// other one does.
    pub(crate) fn keep_place(&self, time: Duration) {
        self.standing().place.iter().for_each(|(place, _)| place.keep(time));
    }

    /// Its deadline; the connection is woken when that changes.
    pub(super) fn deadline(&self, cx: &Context<'_>) -> Option<Instant> {
        self.0.connection.register(cx.waker());
        self.standing().deadline
    }

    /// Ready once another connection has its place.
    pub(super) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.connection.register(cx.waker());
        let place = &mut self.standing().place;
        let evicted = place.as_mut().map(|(_, evicted)| Pin::new(evicted).poll(cx));
        match evicted {
            Some(Poll::Ready(_)) => {
                *place = None;
                Poll::Ready(())
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.0.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WeakPeer {
    /// The peer, unless its connection has ended.
    pub(crate) fn upgrade(&self) -> Option<Peer> {
        self.0.upgrade().map(Peer)
    }
}

impl Drop for AllowedCall {
    fn drop(&mut self) {
        let Self(peer) = self;
        let mut standing = peer.standing();
        standing.calls -= 1;
        if standing.calls > 0 {
            return;
        }
        standing.of_caller = None;
        let now = Instant::now();
        standing.place = peer.0.places.take_back(peer.0.address.ip(), now);
        let idle_max = if standing.place.is_some() { IDLE_MAX } else { IDLE_WITHOUT_PLACE_MAX };
        let deadline = now + idle_max;
        // A connection that was to end before that still does.
        standing.deadline = Some(standing.deadline.map_or(deadline, |set| set.min(deadline)));
        peer.0.connection.wake();
    }
}
