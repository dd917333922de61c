//! The other side of a connection, as services see it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use leasehold_driver::access::certificate::CertificateNames;
use tokio::time::Instant;
use tonic::codegen::http::Extensions;
use tonic::transport::server::TlsConnectInfo;

use super::places::Place;

/// The peer of one connection, in the extensions of each of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Peer(Arc<PeerState>);

#[derive(Debug)]
struct PeerState {
    address: SocketAddr,
    /// The names in its certificate, once the handshake has checked one.
    certificate: OnceLock<Arc<CertificateNames>>,
    /// When the connection ends, unless this is changed before.
    deadline: Mutex<Option<Instant>>,
    /// Wakes the connection when its deadline has changed.
    connection: AtomicWaker,
    /// Its place among those that another connection may take.
    place: Mutex<Option<Place>>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr, place: Place, deadline: Instant) -> Self {
        let (deadline, place) = (Mutex::new(Some(deadline)), Mutex::new(Some(place)));
        let (certificate, connection) = (OnceLock::new(), AtomicWaker::new());
        Self(Arc::new(PeerState { address, certificate, deadline, connection, place }))
    }

    /// The peer of a request.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        let secured = || extensions.get::<TlsConnectInfo<Self>>().map(TlsConnectInfo::get_ref);
        extensions.get().or_else(secured)
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

    /// The peer may do what it asked for: its connection has no deadline any more, and no other
    /// connection takes its place.
    pub(crate) fn prove(&self) {
        self.set_deadline(None);
        drop(self.0.place.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Ends the connection after `time`, unless this is called again before.
    pub(crate) fn end_after(&self, time: Duration) {
        self.set_deadline(Some(Instant::now() + time));
    }

    /// Makes the connection the last that another one may take the place of, and for this time no
    /// other one does.
    pub(crate) fn keep_place(&self, time: Duration) {
        let place = self.0.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.iter().for_each(|place| place.keep(time));
    }

    /// Its deadline; the connection is woken when that changes.
    pub(super) fn deadline(&self, cx: &Context<'_>) -> Option<Instant> {
        self.0.connection.register(cx.waker());
        *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_deadline(&self, deadline: Option<Instant>) {
        *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
        self.0.connection.wake();
    }
}
