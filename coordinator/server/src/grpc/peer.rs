//! How standbys hear that this replica leads: a sign at intervals for as long as its driver turns.
//! A replica that hangs gives none, though its sockets live.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use leasehold_driver::clock;
use leasehold_driver::gate::Term;
use leasehold_driver::port::SessionPort;
use leasehold_proto::coordinator::v1::peer_service_server::{PeerService, PeerServiceServer};
use leasehold_proto::coordinator::v1::{FollowRequest, FollowResponse};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;
use tonic::{Request, Response, Status};

/// Standbys that may follow at once.
const FOLLOWERS_MAX: usize = 16;
/// The time between two signs.
const SIGN_EVERY: Duration = Duration::from_millis(250);
/// Bytes of one request.
const REQUEST_BYTES_MAX: usize = 4 * 1024;

/// Gives signs of one replica's life.
#[derive(Debug)]
pub(crate) struct PeerServer {
    identity: String,
    port: SessionPort,
    places: Arc<Semaphore>,
}

/// What one follower's stream needs.
struct FollowerStream {
    identity: String,
    port: SessionPort,
    term: watch::Receiver<Option<Term>>,
    told: Option<u64>,
    _place: OwnedSemaphorePermit,
}

impl PeerServer {
    /// The service of a replica of this name.
    pub(crate) fn service(identity: String, port: SessionPort) -> PeerServiceServer<Self> {
        let places = Arc::new(Semaphore::new(FOLLOWERS_MAX));
        PeerServiceServer::new(Self { identity, port, places })
            .max_decoding_message_size(REQUEST_BYTES_MAX)
    }
}

impl FollowerStream {
    /// The next sign when it is due; none when the driver has ended, and leadership with it.
    async fn next(mut self) -> Option<(Result<FollowResponse, Status>, Self)> {
        if self.told.is_some() {
            self.pause().await;
        }
        loop {
            if self.port.events.is_closed() {
                return None;
            }
            if !self.port.progress.is_stalled() {
                let epoch = self.epoch();
                self.told = Some(epoch);
                let sign = FollowResponse { identity: self.identity.clone(), epoch };
                return Some((Ok(sign), self));
            }
            self.pause().await;
        }
    }

    /// Waits for the next sign's time, or for another term, or for the driver's end.
    async fn pause(&mut self) {
        let events = self.port.events.clone();
        let told = self.told;
        let changed = async {
            while self.term.changed().await.is_ok() {
                let term = *self.term.borrow_and_update();
                if told != Some(term.map_or(0, |term| term.epoch.0)) {
                    return;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = events.closed() => {}
            () = changed => {}
            () = sleep(SIGN_EVERY) => {}
        }
    }

    /// The term that this replica leads; 0 where it leads none.
    fn epoch(&self) -> u64 {
        let term = self.port.gate.term().filter(|term| clock::now() < term.until);
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
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{FOLLOWERS_MAX} replicas follow already"))
        })?;
        if self.port.events.is_closed() {
            return Err(Status::unavailable("the coordinator shuts down"));
        }
        let (peer, follower) = (request.remote_addr(), request.into_inner().identity);
        tracing::debug!(?peer, follower, "followed");
        let signs = FollowerStream {
            identity: self.identity.clone(),
            port: self.port.clone(),
            term: self.port.gate.subscribe(),
            told: None,
            _place: place,
        };
        Ok(Response::new(Box::pin(futures_util::stream::unfold(signs, FollowerStream::next))))
    }
}
