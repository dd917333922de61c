//! The gRPC port: sessions, admin, health and reflection. Every resource that a peer uses is
//! limited.

mod agent_rate;
pub(crate) mod credentials;
mod delivery;
mod forward;
mod inbound;
pub(crate) mod intake;
mod leader;
mod message_budget;
mod outbound;
mod peer;
mod sent_body;
mod service;
mod session_body;
mod session_limits;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_driver::access::Access;
use leasehold_driver::port::{Handle, SessionPort};
use leasehold_driver::replicas::Replicas;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

pub use self::forward::{AdminCalls, PeerTransport};
use self::intake::IntakeLayer;
use self::leader::LeaderServer;
use self::peer::PeerServer;
use self::service::SessionServer;
use crate::connections::handshake;
use crate::connections::{CallerLimit, Listener, Preface};
use crate::file_shares::FileShares;
use crate::job_history::JobHistory;
use crate::other_cells::OtherCells;
use crate::scaler::Scaler;
use crate::tls::Certificates;

/// The most streams of one connection. An agent has one; a proxy that serves many agents opens
/// another connection. More are refused before anything of them is kept.
const STREAMS_PER_CONNECTION_MAX: u32 = 16;
/// Bytes of a request's headers.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes that one stream may have in flight to this replica.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes that one connection may have in flight to this replica. A peer may send them before it
/// has proven anything.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024;
/// How long a connection may take until a call of it is allowed.
const UNAUTHENTICATED_AGE: Duration = Duration::from_secs(30);
/// After how long without traffic a connection gets a keepalive ping, and how long the answer may
/// take.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The parts of the port.
#[derive(Debug)]
pub struct GrpcPort {
    /// The replicas, for this one's followers.
    pub replicas: Arc<Replicas>,
    /// Its socket.
    pub socket: TcpListener,
    /// The files that this process may open.
    pub files: FileShares,
    /// The port's certificates; plain text without them.
    pub tls: Option<Certificates>,
    /// The driver's port for sessions.
    pub sessions: SessionPort,
    /// The run times of jobs.
    pub jobs: Arc<JobHistory>,
    /// The coordinators of other cells that agents have found.
    pub other_cells: Arc<OtherCells>,
    /// The admin service.
    pub admin: AdminCalls,
    /// The driver's port for people.
    pub handle: Handle,
}

/// Serves the port until `stop`, and then until its streams have ended.
///
/// # Errors
/// If the services cannot be set up.
pub async fn serve(port: GrpcPort, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let preface = match port.tls {
        Some(_) => Preface::Tls,
        None => Preface::Http2,
    };
    let limits = port.files.grpc(port.sessions.sessions_max, UNAUTHENTICATED_AGE);
    let per_tenant = match port.sessions.access {
        Access::Asked(_) => port.sessions.namespace_share.of(limits.callers),
        // Callers have no names, or people share one.
        Access::Open | Access::Certificates => limits.callers,
    };
    let callers = CallerLimit::new(limits.callers, per_tenant);
    let listener = Listener::new(port.socket, preface, limits).with_callers(callers);
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .layer(IntakeLayer::new());
    let (access, metrics) = (port.sessions.access.clone(), Arc::clone(&port.sessions.metrics));
    let peer = PeerServer::service(Arc::clone(&port.replicas), port.sessions.clone());
    let (jobs, other_cells) = (port.jobs, port.other_cells);
    let watches_max = port.files.leader_watches(port.sessions.sessions_max);
    let replicas = Arc::clone(&port.replicas);
    let leader = LeaderServer::service(replicas, port.sessions.clone(), watches_max);
    let sessions = SessionServer::new(port.sessions, jobs, other_cells, port.replicas);
    let scaler = Scaler::service(Arc::clone(&port.handle.view), access, metrics);
    let (reporter, health) = tonic_health::server::health_reporter();
    set_health(&reporter, ServingStatus::Serving).await;
    let stop = async move {
        stop.await;
        set_health(&reporter, ServingStatus::NotServing).await;
    };
    let server = server
        .add_service(sessions)
        .add_service(leader)
        .add_service(port.admin)
        .add_service(peer)
        .add_service(scaler)
        .add_service(health)
        .add_service(reflection("grpc.reflection.v1.ServerReflection").build_v1()?)
        .add_service(reflection("grpc.reflection.v1alpha.ServerReflection").build_v1alpha()?);
    match port.tls {
        None => server.serve_with_incoming_shutdown(listener.into_stream(), stop).await?,
        Some(tls) => {
            let connections = handshake::for_grpc(listener, tls);
            server.serve_with_incoming_shutdown(connections, stop).await?;
        }
    }
    Ok(())
}

/// The services for agents, people and autoscalers.
const SERVICES: [&str; 4] = [
    leasehold_proto::admin::v1::admin_service_server::SERVICE_NAME,
    leasehold_proto::coordinator::v1::leader_service_server::SERVICE_NAME,
    leasehold_proto::coordinator::v1::session_service_server::SERVICE_NAME,
    leasehold_proto::externalscaler::external_scaler_server::SERVICE_NAME,
];

/// Lists what others may call here: not what replicas call, nor the agents' own API. `own` is the
/// service of the reflection itself.
fn reflection(own: &str) -> tonic_reflection::server::Builder<'_> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(leasehold_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let services = SERVICES.into_iter().chain(["grpc.health.v1.Health", own]);
    services.fold(builder, |builder, service| builder.with_service_name(service))
}

async fn set_health(reporter: &HealthReporter, status: ServingStatus) {
    for service in [""].into_iter().chain(SERVICES) {
        reporter.set_service_status(service, status).await;
    }
}
