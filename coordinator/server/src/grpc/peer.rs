//! Heartbeats for standbys: this replica sends them at intervals while its driver makes progress. A
//! replica that hangs sends none, even though its sockets are open.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use leasehold_driver::access::Permission;
use leasehold_driver::clock;
use leasehold_driver::port::SessionPort;
use leasehold_driver::replicas::{Follower, KnownReplica, Replicas};
use leasehold_driver::term_guard::Term;
use leasehold_proto::coordinator::v1 as proto;
use leasehold_proto::coordinator::v1::peer_service_server::{PeerService, PeerServiceServer};
use leasehold_proto::coordinator::v1::{FollowRequest, FollowResponse};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;
use tonic::{Request, Response, Status};

use super::credentials::{authorize, status_of};
use crate::connections::{AllowedCall, Peer};

/// Standbys that may follow at once.
const FOLLOWERS_MAX: usize = 16;
/// The time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes of one request.
const REQUEST_BYTES_MAX: usize = 4 * 1024;

/// Serves one replica's heartbeats.
#[derive(Debug)]
pub(crate) struct PeerServer {
    replicas: Arc<Replicas>,
    port: SessionPort,
    permits: Arc<Semaphore>,
}

/// The stream of one follower.
struct FollowerStream {
    replicas: Arc<Replicas>,
    /// Listed for as long as this stream lasts.
    _follower: Follower,
    port: SessionPort,
    term: watch::Receiver<Option<Term>>,
    /// The epoch in the last heartbeat.
    sent: Option<u64>,
    _permit: OwnedSemaphorePermit,
    _connection: Option<AllowedCall>,
}

impl PeerServer {
    /// The service of one of these replicas.
    pub(crate) fn service(replicas: Arc<Replicas>, port: SessionPort) -> PeerServiceServer<Self> {
        let permits = Arc::new(Semaphore::new(FOLLOWERS_MAX));
        PeerServiceServer::new(Self { replicas, port, permits })
            .max_decoding_message_size(REQUEST_BYTES_MAX)
    }
}

impl FollowerStream {
    /// The next heartbeat when it is due; `None` when the driver, and so leadership, has ended.
    async fn next(mut self) -> Option<(Result<FollowResponse, Status>, Self)> {
        if self.sent.is_some() {
            self.pause().await;
        }
        loop {
            if self.port.events.is_closed() {
                return None;
            }
            if !self.port.progress.is_stalled() {
                let epoch = self.epoch();
                self.sent = Some(epoch);
                return Some((Ok(self.heartbeat(epoch)), self));
            }
            self.pause().await;
        }
    }

    fn heartbeat(&self, epoch: u64) -> FollowResponse {
        let known = self.replicas.all().into_iter();
        let replicas = known.map(|KnownReplica { identity, address, version, .. }| proto::Peer {
            identity,
            address,
            version,
        });
        let identity = self.replicas.own().identity.clone();
        FollowResponse { identity, epoch, replicas: replicas.collect() }
    }

    /// Waits until the next heartbeat is due, the term changes or the driver ends.
    async fn pause(&mut self) {
        let events = self.port.events.clone();
        let sent = self.sent;
        let changed = async {
            while self.term.changed().await.is_ok() {
                let term = *self.term.borrow_and_update();
                if sent != Some(term.map_or(0, |term| term.epoch.0)) {
                    return;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = events.closed() => {}
            () = changed => {}
            () = sleep(HEARTBEAT_INTERVAL) => {}
        }
    }

    /// The epoch that this replica leads, or 0.
    fn epoch(&self) -> u64 {
        let term = self.port.term_guard.term().filter(|term| clock::now() < term.until);
        term.map_or(0, |term| term.epoch.0)
    }
}

#[tonic::async_trait]
impl PeerService for PeerServer {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<FollowResponse, Status>> + Send>>;

    async fn follow(
        &self,
        request: Request<FollowRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let allowed =
            authorize(&self.port.access, &self.port.metrics, &request, Permission::Follow).await;
        let allowed = allowed.map_err(|refused| status_of(&refused))?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "too many followers: at most {FOLLOWERS_MAX} at once; try again later"
            ))
        })?;
        if self.port.events.is_closed() {
            return Err(Status::unavailable("the coordinator is shutting down"));
        }
        let peer = Peer::of(request.extensions()).map(Peer::address);
        let FollowRequest { identity, address, version } = request.into_inner();
        tracing::debug!(?peer, follower = identity, "a standby follows this replica");
        let follower = KnownReplica { identity, address, version, ..KnownReplica::default() };
        let heartbeats = FollowerStream {
            replicas: Arc::clone(&self.replicas),
            _follower: self.replicas.follow(follower),
            port: self.port.clone(),
            term: self.port.term_guard.subscribe(),
            sent: None,
            _permit: permit,
            _connection: allowed.connection,
        };
        Ok(Response::new(Box::pin(futures_util::stream::unfold(heartbeats, FollowerStream::next))))
    }
}
