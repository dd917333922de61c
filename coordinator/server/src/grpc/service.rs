//! The session service: opens the two sides of a session. Sessions that are not yet authenticated
//! have a limit of their own, so that a flood of them does not keep agents out.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use leasehold_coordinator_core::event::ConnId;
use leasehold_driver::access::Access;
use leasehold_driver::keyed_limit::KeyedLimit;
use leasehold_driver::port::{SessionPort, UNAUTHENTICATED_MAX};
use leasehold_driver::replicas::Replicas;
use leasehold_proto::coordinator::v1::session_service_server::SERVICE_NAME;
use leasehold_proto::raw_codec::RawCodec;
use leasehold_proto::{CELL_METADATA, TOKEN_IGNORED, TOKEN_METADATA, WAITING_METADATA};
use leasehold_types::limits::{MESSAGE_BYTES_MAX, WAITING_INTERVAL};
use leasehold_types::message::{CoordinatorMessage, Refusal, RefusalReason};
use prost::bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataValue;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::agent_rate::AgentRates;
use super::credentials::credentials;
use super::delivery::{Deliveries, Delivery};
use super::inbound::Inbound;
use super::message_budget::{MessageBudget, SessionBudget};
use super::outbound::{Outbound, SLOT_MESSAGES_MAX};
use super::sent_body::SentBody;
use super::session_body::SessionBody;
use super::session_limits::SessionLimits;
use super::waiting::{Line, WaitingSession};
use crate::connections::Peer;
use crate::job_history::JobHistory;
use crate::other_cells::OtherCells;

/// The most sessions of one address that are not yet authenticated. Further agents behind it dial
/// again.
const UNAUTHENTICATED_PER_ADDRESS_MAX: usize = UNAUTHENTICATED_MAX / 4;

/// The one method of the service.
pub(super) const OPEN_SESSION: &str = "/leasehold.coordinator.v1.SessionService/OpenSession";

/// Opens sessions for one cell.
#[derive(Clone, Debug)]
pub(crate) struct SessionServer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    port: SessionPort,
    /// The limits of authenticated sessions.
    limits: Arc<SessionLimits>,
    /// The memory of long messages.
    budget: Arc<MessageBudget>,
    /// The limit of sessions that are not yet authenticated.
    unauthenticated: Arc<KeyedLimit<Option<IpAddr>>>,
    /// How fast agents may send.
    rates: Arc<AgentRates>,
    /// The run times of jobs.
    jobs: Arc<JobHistory>,
    /// The coordinators of other cells that agents have found.
    other_cells: Arc<OtherCells>,
    /// The replicas: each session is answered with their cell.
    replicas: Arc<Replicas>,
    /// The sessions that are not served yet.
    line: Arc<Line>,
    /// The streams to agents.
    deliveries: Arc<Deliveries>,
    /// The number of the next connection.
    next: AtomicU64,
}

/// The most unauthenticated peers of one address, if they must authenticate; if not, or if the
/// handshake did it, nobody is a stranger.
fn unauthenticated_per_address(access: &Access) -> usize {
    match access {
        Access::Asked(_) => UNAUTHENTICATED_PER_ADDRESS_MAX,
        Access::Open | Access::Certificates => UNAUTHENTICATED_MAX,
    }
}

impl SessionServer {
    pub(crate) fn new(
        port: SessionPort,
        jobs: Arc<JobHistory>,
        other_cells: Arc<OtherCells>,
        replicas: Arc<Replicas>,
    ) -> Self {
        let limits = Arc::new(SessionLimits::new(port.sessions_max, port.namespace_share));
        let budget = MessageBudget::new(port.namespace_share);
        let unauthenticated =
            KeyedLimit::new(UNAUTHENTICATED_MAX, unauthenticated_per_address(&port.access));
        let (rates, line, next) = (Arc::default(), Arc::default(), AtomicU64::new(1));
        Self(Arc::new(Shared {
            port,
            limits,
            budget,
            unauthenticated,
            rates,
            jobs,
            other_cells,
            replicas,
            line,
            deliveries: Deliveries::start(),
            next,
        }))
    }

    fn open(
        &self,
        request: Request<Streaming<Bytes>>,
        bytes: SessionBudget,
    ) -> Result<Response<Outbound>, Status> {
        let port = &self.0.port;
        let conn = ConnId(self.0.next.fetch_add(1, Ordering::Relaxed));
        let peer = Peer::of(request.extensions()).cloned();
        let address = peer.as_ref().map(Peer::address);
        let (slot, slot_out) = mpsc::channel(SLOT_MESSAGES_MAX);
        let (alive, gone) = oneshot::channel();
        let sent = Arc::clone(&port.sent);
        let asks = request.metadata().contains_key(WAITING_METADATA);
        let interval = asks.then_some(WAITING_INTERVAL);
        let waiting = WaitingSession::new(self.0.line.join(), interval);
        let term_guard = Arc::clone(&port.term_guard);
        let outbound = Outbound::new(conn, slot_out, sent, term_guard, waiting, alive);
        let (progress, slot_of_delivery) = (outbound.progress(), slot.downgrade());
        self.0.deliveries.add(Delivery {
            progress,
            slot: slot_of_delivery,
            peer: peer.as_ref().map(Peer::downgrade),
        });
        let unauthenticated = if port.health.is_stopping() {
            Err(refusal(RefusalReason::GoAway, "the coordinator is shutting down: dial again"))
        } else {
            self.0.unauthenticated.take(address.map(|address| address.ip())).ok_or_else(|| {
                let message = "too many sessions have not sent their hello yet: dial again";
                refusal(RefusalReason::Limit, message)
            })
        };
        let unauthenticated = match unauthenticated {
            Ok(unauthenticated) => unauthenticated,
            Err(refusal) => {
                tracing::debug!(peer = ?address, why = refusal.message, "session refused");
                port.metrics.refused(&refusal.reason);
                let message = Box::new(CoordinatorMessage::Refusal(refusal));
                slot.try_send(message).expect("a new slot is empty");
                return Ok(self.answer(outbound));
            }
        };
        let shown = credentials(request.metadata(), peer.as_ref());
        let is_ignored = shown.token.is_some() && !matches!(port.access, Access::Asked(_));
        let limits = Arc::clone(&self.0.limits);
        let (rates, jobs) = (Arc::clone(&self.0.rates), Arc::clone(&self.0.jobs));
        let (port, other_cells) = (port.clone(), Arc::clone(&self.0.other_cells));
        let inbound = Inbound { conn, peer, shown, port, limits, bytes, rates, jobs, other_cells };
        let span = tracing::debug_span!("session", conn = conn.0, peer = ?address);
        let receive = inbound.run(slot, unauthenticated, request.into_inner(), gone);
        tokio::spawn(receive.instrument(span));
        let mut response = self.answer(outbound);
        if is_ignored {
            let value = MetadataValue::from_static(TOKEN_IGNORED);
            response.metadata_mut().insert(TOKEN_METADATA, value);
        }
        Ok(response)
    }

    /// The answer to a session, which says of which cell this coordinator is.
    fn answer(&self, outbound: Outbound) -> Response<Outbound> {
        let mut response = Response::new(outbound);
        let cell = self.0.replicas.cell().map(|cell| cell.id.to_string().parse());
        if let Some(Ok(cell)) = cell {
            response.metadata_mut().insert(CELL_METADATA, cell);
        }
        response
    }
}

fn refusal(reason: RefusalReason, message: &str) -> Refusal {
    Refusal { reason, message: message.into() }
}

/// One call of the service.
struct SessionCall {
    server: SessionServer,
    bytes: SessionBudget,
}

impl StreamingService<Bytes> for SessionCall {
    type Response = Bytes;
    type ResponseStream = Outbound;
    type Future = Ready<Result<Response<Outbound>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        ready(self.server.open(request, self.bytes.clone()))
    }
}

impl Service<http::Request<Body>> for SessionServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            if request.uri().path() != OPEN_SESSION {
                return Ok(Status::unimplemented("SessionService has no such method").into_http());
            }
            let limit = Some(MESSAGE_BYTES_MAX);
            let mut grpc = Grpc::new(RawCodec).apply_max_message_size_config(limit, limit);
            let bytes = this.0.budget.session();
            let request = request.map(|body| SessionBody::new(body, bytes.clone()));
            let response = grpc.streaming(SessionCall { server: this, bytes }, request).await;
            Ok(response.map(|body| Body::new(SentBody::new(body))))
        })
    }
}

impl NamedService for SessionServer {
    const NAME: &'static str = SERVICE_NAME;
}
