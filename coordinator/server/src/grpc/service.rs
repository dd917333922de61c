//! The session service: opens the two sides of a session. Sessions that are not yet authenticated
//! have a limit of their own, so that a flood of them does not keep agents out.

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
    /// The limit of authenticated sessions.
    permits: Arc<Semaphore>,
    /// The limit of sessions that are not yet authenticated.
    unproven: Arc<UnprovenSessions>,
    /// The number of the next connection.
    next: AtomicU64,
}

impl SessionServer {
    pub(crate) fn new(port: SessionPort) -> Self {
        let permits = Arc::new(Semaphore::new(port.sessions_max));
        let unproven = UnprovenSessions::new(matches!(port.access, Access::Asked(_)));
        Self(Arc::new(Shared { port, permits, unproven, next: AtomicU64::new(1) }))
    }

    fn open(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Outbound>, Status> {
        let port = &self.0.port;
        let conn = ConnId(self.0.next.fetch_add(1, Ordering::Relaxed));
        let peer = request.remote_addr();
        let (slot, slot_out) = mpsc::channel(SLOT_MESSAGES_MAX);
        let (alive, gone) = oneshot::channel();
        let events = port.events.clone();
        let outbound = Outbound::new(conn, slot_out, events, Arc::clone(&port.gate), alive);
        let unproven = if port.health.is_stopping() {
            Err(refusal(RefusalReason::GoAway, "the coordinator is shutting down: dial again"))
        } else {
            self.0.unproven.open(peer.map(|peer| peer.ip())).ok_or_else(|| {
                let message = "too many sessions have not sent their hello yet: dial again";
                refusal(RefusalReason::Limit, message)
            })
        };
        let unproven = match unproven {
            Ok(unproven) => unproven,
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
        let permits = Arc::clone(&self.0.permits);
        let inbound = Inbound { conn, peer, token, port: port.clone(), permits };
        let span = tracing::debug_span!("session", conn = conn.0, ?peer);
        tokio::spawn(inbound.run(slot, unproven, request.into_inner(), gone).instrument(span));
        let mut response = Response::new(outbound);
        if ignored {
            let value = MetadataValue::from_static(TOKEN_IGNORED);
            response.metadata_mut().insert(TOKEN_METADATA, value);
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
