//! A standby forwards calls of the admin service to the leader, unchanged, over one connection, and
//! at most once.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::log_limit::PeerLogLimit;
use leasehold_driver::port::Handle;
use leasehold_driver::term_guard::TermGuard;
use leasehold_driver::trust::Trust;
use leasehold_proto::NOT_LEADING_MESSAGE;
use leasehold_proto::admin::v1::admin_service_server::{AdminServiceServer, SERVICE_NAME};
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderName, HeaderValue, Request, Response};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint};
use tower::{Service, ServiceExt};

use super::intake::MANIFESTS_BYTES_MAX;
use crate::admin::Admin;
use crate::connections::Peer;
use crate::tls::client_tls;

/// The call that is not forwarded: it is about the replica that is called.
const ABOUT_ONE: &str = "GetStatus";
/// The orders, which the log names. Each may be given again.
const ORDERS: [&str; 3] = ["DrainWorker", "UndrainWorker", "DeclareWorkerGone"];
/// Marks a forwarded call, which must not be forwarded again.
const FORWARDED: HeaderName = HeaderName::from_static("leasehold-forwarded");
/// The most calls that may wait for the leader's answer.
const WAITING_MAX: usize = 64;
/// The most lines a minute about orders that are forwarded from one address, and in all.
const FORWARDED_LINES_MAX: usize = 10;
const FORWARDED_LINES_TOTAL_MAX: usize = 64;
/// How long a connection to the leader may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the leader may take until it begins to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// After how long without traffic the connection gets a keepalive ping, and how long the answer may
/// take.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// How a replica reaches another one.
#[derive(Clone, Debug)]
pub enum PeerTransport {
    /// Without TLS.
    Plain,
    /// Over TLS, trusting these authorities.
    Secured(Trust),
    /// Not at all: no authority for other replicas is configured.
    Not,
}

/// The admin service, answered by this replica or by the leader.
#[derive(Clone, Debug)]
pub struct AdminCalls {
    local: AdminServiceServer<Admin>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    handle: Handle,
    term_guard: Arc<TermGuard>,
    reach: PeerTransport,
    /// The connection to the leader that was dialled last, and its address.
    leader: Mutex<Option<(String, Channel)>>,
    permits: Semaphore,
    logged: PeerLogLimit,
}

impl AdminCalls {
    /// The service of this replica, which reaches a leader elsewhere by `reach`.
    #[must_use]
    pub fn new(
        admin: Admin,
        handle: Handle,
        term_guard: Arc<TermGuard>,
        reach: PeerTransport,
    ) -> Self {
        let local = AdminServiceServer::new(admin)
            .max_decoding_message_size(MANIFESTS_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let (leader, permits) = (Mutex::default(), Semaphore::new(WAITING_MAX));
        let logged = PeerLogLimit::new(FORWARDED_LINES_MAX, FORWARDED_LINES_TOTAL_MAX);
        Self {
            local,
            shared: Arc::new(Shared { handle, term_guard, reach, leader, permits, logged }),
        }
    }
}

impl NamedService for AdminCalls {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<Request<Body>> for AdminCalls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut local = self.local.clone();
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            if !may_forward(&request) {
                return local.call(request).await;
            }
            let Some(address) = shared.leader_elsewhere() else {
                return local.call(request).await;
            };
            match shared.connection(&address).await {
                Ok(channel) => Ok(shared.forward(&address, channel, request).await),
                Err(why) => {
                    // The local service then answers with the leader's address.
                    tracing::debug!(
                        address,
                        why = format!("{why:#}"),
                        "cannot connect to the leader"
                    );
                    local.call(request).await
                }
            }
        })
    }
}

fn may_forward(request: &Request<Body>) -> bool {
    method_of(request) != ABOUT_ONE && !request.headers().contains_key(FORWARDED)
}

fn method_of(request: &Request<Body>) -> &str {
    request.uri().path().rsplit('/').next().unwrap_or_default()
}

impl Shared {
    /// The leader's address, if another replica leads and this one can connect to it.
    fn leader_elsewhere(&self) -> Option<String> {
        if matches!(self.reach, PeerTransport::Not) || self.term_guard.term().is_some() {
            return None;
        }
        match self.handle.view.leadership() {
            Leadership::Standby(leader) => leader.map(|leader| leader.address),
            Leadership::Leader(_) => None,
        }
    }

    /// The connection to the leader at this address.
    async fn connection(&self, address: &str) -> anyhow::Result<Channel> {
        let mut leader = self.leader.lock().await;
        if let Some((_, channel)) = leader.as_ref().filter(|(of, _)| of == address) {
            return Ok(channel.clone());
        }
        *leader = None;
        let (scheme, tls) = match &self.reach {
            PeerTransport::Plain => ("http", None),
            PeerTransport::Secured(trust) => ("https", Some(client_tls(trust).await?)),
            PeerTransport::Not => {
                anyhow::bail!("no certificate authority is configured for other replicas")
            }
        };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .with_context(|| format!("address {address:?}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls)?;
        }
        let channel = timeout(CONNECT_TIMEOUT, endpoint.connect()).await??;
        *leader = Some((address.to_owned(), channel.clone()));
        Ok(channel)
    }

    /// Forwards a request, and returns the leader's answer.
    async fn forward(
        &self,
        address: &str,
        channel: Channel,
        mut request: Request<Body>,
    ) -> Response<Body> {
        let Ok(_permit) = self.permits.try_acquire() else {
            let why = format!(
                "too many calls wait for the leader at {address}: at most {WAITING_MAX} at \
                 once; try again later"
            );
            return Status::resource_exhausted(why).into_http();
        };
        let order = ORDERS.into_iter().find(|order| *order == method_of(&request));
        if let Some(order) = order {
            let from = Peer::of(request.extensions()).map(Peer::address);
            // The caller has not proved anything yet. The leader's log has who it is.
            let what = "an order is forwarded to the leader";
            if self.logged.allows(from.map(|from| from.ip())) {
                tracing::info!(order, ?from, leader = address, "{what}");
            } else {
                tracing::debug!(order, ?from, leader = address, "{what}");
            }
        }
        request.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
        // The extensions describe the caller's connection, not the one to the leader.
        request.extensions_mut().clear();
        let why = match timeout(ANSWER_TIMEOUT, channel.oneshot(request)).await {
            Ok(Ok(response)) => return response,
            Ok(Err(error)) => format!("{:#}", anyhow::Error::from(error)),
            Err(_) => format!("no answer within {ANSWER_TIMEOUT:?}"),
        };
        // The next call dials again, with the authorities of that time.
        self.leader.lock().await.take();
        let may = match order {
            Some(_) => "; the order may have been carried out, and may be given again",
            None => "",
        };
        let message =
            format!("{NOT_LEADING_MESSAGE}, and cannot reach the leader at {address}: {why}{may}");
        Status::unavailable(message).into_http()
    }
}
