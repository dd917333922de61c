//! Who leads, for agents: a leader that hangs ends no connection, so its agents learn of its
//! successor from another replica.
//!
//! Invariant: however many follow, they take no place of a session.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{once, unfold};
use leasehold_coordinator_core::event::KnownLeader;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::access::{ACCESS_TIMEOUT, Permission};
use leasehold_driver::keyed_limit::{KeyedLimit, KeyedPermit};
use leasehold_driver::metrics::Metrics;
use leasehold_driver::port::SessionPort;
use leasehold_driver::replicas::Replicas;
use leasehold_proto::coordinator::v1::leader_service_server::{LeaderService, LeaderServiceServer};
use leasehold_proto::coordinator::v1::{WatchLeaderRequest, WatchLeaderResponse};
use leasehold_types::{Epoch, WorkerKey};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::credentials::{credentials, status_of};
use crate::connections::{AllowedCall, Peer};

/// Bytes of one request.
const REQUEST_BYTES_MAX: usize = 4 * 1024;

/// Serves what one replica knows of the leader.
#[derive(Debug)]
pub(crate) struct LeaderServer {
    replicas: Arc<Replicas>,
    port: SessionPort,
    /// One for each worker.
    of_worker: Arc<KeyedLimit<WorkerKey>>,
    of_namespace: Arc<KeyedLimit<String>>,
}

/// The stream of one agent.
struct LeaderStream {
    metrics: Arc<Metrics>,
    leadership: watch::Receiver<Leadership>,
    own_address: String,
    has_answered: bool,
    _of_worker: KeyedPermit<WorkerKey>,
    _of_namespace: Option<KeyedPermit<String>>,
    _connection: Option<AllowedCall>,
}

impl LeaderServer {
    /// The service of one of these replicas, for at most so many agents.
    pub(super) fn service(
        replicas: Arc<Replicas>,
        port: SessionPort,
        watches_max: usize,
    ) -> LeaderServiceServer<Self> {
        let of_worker = KeyedLimit::new(watches_max, 1);
        let of_namespace = KeyedLimit::new(usize::MAX, port.namespace_share.of(watches_max));
        LeaderServiceServer::new(Self { replicas, port, of_worker, of_namespace })
            .max_decoding_message_size(REQUEST_BYTES_MAX)
    }

    /// Refuses an agent that may be of another cell.
    fn check_cell(&self, cell: &str) -> Result<(), Status> {
        if cell.is_empty() {
            return Ok(());
        }
        match self.replicas.cell().map(|own| own.id.to_string()) {
            Some(own) if own == cell => Ok(()),
            Some(own) => Err(Status::failed_precondition(format!(
                "this replica is of cell {own} and the agent of cell {cell}"
            ))),
            None => Err(Status::unavailable("this replica does not know its cell yet")),
        }
    }
}

impl Drop for LeaderStream {
    fn drop(&mut self) {
        self.metrics.leader_watch_ended();
    }
}

impl LeaderStream {
    /// The next response when the leader has changed; `None` after the last.
    async fn next(
        state: Option<Self>,
    ) -> Option<(Result<WatchLeaderResponse, Status>, Option<Self>)> {
        let mut stream = state?;
        if std::mem::replace(&mut stream.has_answered, true) {
            // An error: the driver has ended.
            stream.leadership.changed().await.ok()?;
        }
        let leadership = stream.leadership.borrow_and_update().clone();
        let is_last = matches!(leadership, Leadership::Leader(_));
        let response = response(leadership, &stream.own_address);
        Some((Ok(response), (!is_last).then_some(stream)))
    }
}

fn response(leadership: Leadership, own_address: &str) -> WatchLeaderResponse {
    let (leader, Epoch(epoch)) = match leadership {
        Leadership::Leader(epoch) => (own_address.to_owned(), epoch),
        Leadership::Standby(Some(KnownLeader { address, epoch })) => {
            (address, epoch.unwrap_or_default())
        }
        Leadership::Standby(None) => Default::default(),
    };
    WatchLeaderResponse { leader, epoch }
}

#[tonic::async_trait]
impl LeaderService for LeaderServer {
    type WatchLeaderStream =
        Pin<Box<dyn Stream<Item = Result<WatchLeaderResponse, Status>> + Send>>;

    async fn watch_leader(
        &self,
        request: Request<WatchLeaderRequest>,
    ) -> Result<Response<Self::WatchLeaderStream>, Status> {
        let peer = Peer::of(request.extensions()).cloned();
        let shown = credentials(request.metadata(), peer.as_ref());
        let WatchLeaderRequest { cluster, worker, cell } = request.into_inner();
        let invalid =
            |field: &str, why: String| Status::invalid_argument(format!("{field}: {why}"));
        let worker = WorkerKey {
            cluster: cluster.parse().map_err(|error| invalid("cluster", format!("{error}")))?,
            worker: worker.parse().map_err(|error| invalid("worker", format!("{error}")))?,
        };
        self.check_cell(&cell)?;
        let own_address = self.replicas.own().address.clone();
        let leadership = self.port.view.leadership();
        if let Leadership::Leader(_) = leadership {
            let response = Ok(response(leadership, &own_address));
            return Ok(Response::new(Box::pin(once(ready(response)))));
        }
        // The platform may be slow; that must not cost the connection its place.
        peer.iter().for_each(|peer| peer.keep_place(ACCESS_TIMEOUT));
        let asked = self.port.access.ask(shown, Permission::ActAsAgent(worker.clone())).await;
        peer.iter().for_each(|peer| peer.keep_place(Duration::ZERO));
        asked
            .inspect_err(|why| self.port.metrics.denied(why))
            .map_err(|why| status_of(&why.into()))?;
        let full = || Status::resource_exhausted("too many agents follow who leads: ask later");
        let namespace = worker.cluster.parts().0.map(ToOwned::to_owned);
        let of_worker = self.of_worker.take(worker).ok_or_else(full)?;
        let of_namespace =
            namespace.map(|name| self.of_namespace.take(name).ok_or_else(full)).transpose()?;
        self.port.metrics.leader_watch_began();
        let stream = LeaderStream {
            metrics: Arc::clone(&self.port.metrics),
            leadership: self.port.view.watch_leadership(),
            own_address,
            has_answered: false,
            _of_worker: of_worker,
            _of_namespace: of_namespace,
            _connection: peer.as_ref().map(Peer::begin_session),
        };
        Ok(Response::new(Box::pin(unfold(Some(stream), LeaderStream::next))))
    }
}
