//! The session service: it opens a session's two sides. Sessions that have yet to say who they are
//! are counted apart: a flood of them takes no place of those that have.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use leasehold_coordinator_core::event::ConnId;
use leasehold_driver::access::Access;
use leasehold_driver::port::SessionPort;
use leasehold_proto::coordinator::v1::session_service_server::SERVICE_NAME;
use leasehold_proto::{TOKEN_IGNORED, TOKEN_METADATA};
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use leasehold_types::message::{CoordinatorMessage, Refusal, RefusalReason};
use prost::bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tonic::codegen::{Body, Service, StdError, http};
use tonic::metadata::MetadataValue;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::bearer::bearer;
use super::codec::RawCodec;
use super::inbound::Inbound;
use super::outbound::{Outbound, SLOT_MESSAGES_MAX};
use super::unproven::UnprovenSessions;

/// The one method of the service.
const OPEN_SESSION: &str = "/leasehold.coordinator.v1.SessionService/OpenSession";

/// Opens sessions for one cell.
#[derive(Clone, Debug)]
pub(crate) struct SessionServer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    port: SessionPort,
    places: Arc<Semaphore>,
    /// Room for sessions that have no place yet: who has not said hello and proven itself takes
    /// nobody's place.
    doors: Arc<UnprovenSessions>,
    /// The number of the next connection.
    next: AtomicU64,
}

impl SessionServer {
    pub(crate) fn new(port: SessionPort) -> Self {
        let places = Arc::new(Semaphore::new(port.sessions_max));
        let doors = UnprovenSessions::new(matches!(port.access, Access::Asked(_)));
        Self(Arc::new(Shared { port, places, doors, next: AtomicU64::new(1) }))
    }

    fn open(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Outbound>, Status> {
        let port = &self.0.port;
        let conn = ConnId(self.0.next.fetch_add(1, Ordering::Relaxed));
        let peer = request.remote_addr();
        let (slot, slot_out) = mpsc::channel(SLOT_MESSAGES_MAX);
        let (alive, gone) = oneshot::channel();
        let events = port.events.clone();
        let outbound = Outbound::new(conn, slot_out, events, Arc::clone(&port.gate), alive);
        let door = if port.health.is_stopping() {
            Err(refusal(RefusalReason::GoAway, "the coordinator shuts down"))
        } else {
            self.0.doors.open(peer.map(|peer| peer.ip())).ok_or_else(|| {
                let message = "too many others have yet to say who they are: dial again";
                refusal(RefusalReason::Limit, message)
            })
        };
        let door = match door {
            Ok(door) => door,
            Err(refusal) => {
                tracing::debug!(?peer, why = refusal.message, "session refused");
                port.metrics.refused(&refusal.reason);
                let message = Box::new(CoordinatorMessage::Refusal(refusal));
                slot.try_send(message).expect("a new slot is empty");
                return Ok(Response::new(outbound));
            }
        };
        let token = bearer(request.metadata());
        let ignored = token.is_some() && matches!(port.access, Access::Open);
        let places = Arc::clone(&self.0.places);
        let inbound = Inbound { conn, peer, token, port: port.clone(), places };
        let span = tracing::debug_span!("session", conn = conn.0, ?peer);
        tokio::spawn(inbound.run(slot, door, request.into_inner(), gone).instrument(span));
        let mut response = Response::new(outbound);
        if ignored {
            let word = MetadataValue::from_static(TOKEN_IGNORED);
            response.metadata_mut().insert(TOKEN_METADATA, word);
        }
        Ok(response)
    }
}

fn refusal(reason: RefusalReason, message: &str) -> Refusal {
    Refusal { reason, message: message.into() }
}

impl StreamingService<Bytes> for SessionServer {
    type Response = Bytes;
    type ResponseStream = Outbound;
    type Future = Ready<Result<Response<Outbound>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        ready(self.open(request))
    }
}

impl<B> Service<http::Request<B>> for SessionServer
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            if request.uri().path() != OPEN_SESSION {
                return Ok(Status::unimplemented("SessionService has no such method").into_http());
            }
            let limit = Some(MESSAGE_BYTES_MAX);
            let mut grpc = Grpc::new(RawCodec).apply_max_message_size_config(limit, limit);
            Ok(grpc.streaming(this, request).await)
        })
    }
}

impl NamedService for SessionServer {
    const NAME: &'static str = SERVICE_NAME;
}
