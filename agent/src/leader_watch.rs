//! Follows who leads at another replica than the leader. A leader that hangs ends no connection:
//! its agents would notice by their keepalives, and this way they learn of its successor as soon as
//! there is one. A leader is the successor if its epoch is above that of the agent's link, and its
//! address another. It is a hint: without it an agent only takes longer.

use std::time::Duration;

use anyhow::Context;
use leasehold_proto::coordinator::v1::leader_service_client::LeaderServiceClient;
use leasehold_proto::coordinator::v1::{WatchLeaderRequest, WatchLeaderResponse};
use leasehold_types::{CellId, Epoch, LinkNumber, WorkerKey};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use crate::backoff;

/// How long a connection, and the first answer on it, may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Successors that the driver has not looked at.
const SUCCESSORS_MAX: usize = 4;
/// Bytes of one response.
const RESPONSE_BYTES_MAX: usize = 4 * 1024;

/// Opens connections to coordinators.
pub trait Connect: Send + 'static {
    /// A connection to this address, and what proves whose agent this is.
    fn connect(&self, address: &str) -> impl Future<Output = anyhow::Result<Connection>> + Send;
}

/// A connection to a coordinator.
#[derive(Debug)]
pub struct Connection {
    /// The connection.
    pub channel: Channel,
    /// The value of the `authorization` header.
    pub authorization: Option<MetadataValue<Ascii>>,
}

/// The link on which a leader has welcomed the agent.
#[derive(Clone, Debug)]
pub struct WelcomedLink {
    /// Its number.
    pub number: LinkNumber,
    /// The coordinator's address, as it was dialled.
    pub address: String,
    /// The leader's epoch.
    pub epoch: Epoch,
    /// The agent's cell.
    pub cell: Option<CellId>,
}

/// Another replica has come to lead.
#[derive(Debug)]
pub struct Successor {
    /// The link to the leader before it.
    pub over: LinkNumber,
    /// Where the new leader is reached: HOST:PORT.
    pub leader: String,
    /// The new leader's epoch.
    pub epoch: Epoch,
}

/// Follows who leads until this is dropped.
#[derive(Debug)]
pub struct LeaderWatch {
    welcomed: watch::Sender<Option<WelcomedLink>>,
    task: JoinHandle<()>,
}

impl LeaderWatch {
    /// Follows who leads at one of these addresses from the first welcome on.
    #[must_use]
    pub fn start(
        worker: WorkerKey,
        coordinators: Vec<String>,
        connect: impl Connect + Sync,
    ) -> (Self, mpsc::Receiver<Successor>) {
        let (welcomed, welcomed_seen) = watch::channel(None);
        let (successors, successors_seen) = mpsc::channel(SUCCESSORS_MAX);
        let watcher = Watcher {
            worker,
            coordinators,
            next: 0,
            connect,
            welcomed: welcomed_seen,
            successors,
            reported: None,
        };
        (Self { welcomed, task: tokio::spawn(watcher.run()) }, successors_seen)
    }

    /// A leader has welcomed the agent.
    pub fn set_welcomed(&self, link: WelcomedLink) {
        self.welcomed.send_replace(Some(link));
    }
}

impl Drop for LeaderWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Watcher<C> {
    worker: WorkerKey,
    coordinators: Vec<String>,
    /// The coordinator to ask next.
    next: usize,
    connect: C,
    welcomed: watch::Receiver<Option<WelcomedLink>>,
    successors: mpsc::Sender<Successor>,
    /// The link whose successor was reported last, and the epoch of that successor.
    reported: Option<(LinkNumber, Epoch)>,
}

impl<C: Connect + Sync> Watcher<C> {
    async fn run(mut self) {
        if self.welcomed.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let (mut link, mut failures) = (self.link_number(), 0);
        loop {
            // Agents that start together, or lose a replica together, do not ask together.
            tokio::select! {
                () = sleep(backoff::WATCH.wait(failures)) => {}
                // One that was asked in vain may be a standby by now, or be reached again.
                Ok(()) = self.another_link(link) => {
                    (link, failures) = (self.link_number(), 0);
                    continue;
                }
            }
            let begun = Instant::now();
            let address = self.next_address();
            let watched = self.watch(&address).await;
            failures = failures_after(failures, begun.elapsed(), watched.is_ok());
            match watched {
                Ok(successor) => {
                    tracing::debug!(asked = address, ?successor, "another replica leads now");
                    self.reported = Some((successor.over, successor.epoch));
                    if self.successors.send(successor).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::debug!(asked = address, error, "cannot follow who leads");
                }
            }
        }
    }

    /// The number of the link on which the agent was welcomed last.
    fn link_number(&self) -> Option<LinkNumber> {
        self.welcomed.borrow().as_ref().map(|link| link.number)
    }

    /// Waits until the agent is welcomed on another link than this one. It returns at once where
    /// that was during a watch, which takes note of each link.
    async fn another_link(
        &mut self,
        than: Option<LinkNumber>,
    ) -> Result<(), watch::error::RecvError> {
        let is_another =
            |link: &Option<WelcomedLink>| link.as_ref().map(|link| link.number) != than;
        self.welcomed.wait_for(is_another).await.map(drop)
    }

    /// The next of the addresses, but for the leader's.
    fn next_address(&mut self) -> String {
        let count = self.coordinators.len();
        let next = self.coordinators[self.next % count].as_str();
        if self.welcomed.borrow().as_ref().is_some_and(|link| link.address == next) {
            self.next += 1;
        }
        let address = self.coordinators[self.next % count].clone();
        self.next += 1;
        address
    }

    /// Follows who leads, as the replica at `address` knows it, until a successor leads.
    async fn watch(&mut self, address: &str) -> anyhow::Result<Successor> {
        let connected = timeout(TIMEOUT, self.connect.connect(address)).await;
        let Connection { channel, authorization } =
            connected.context("no connection in time")??;
        let mut link = self.link()?;
        let mut request = Request::new(WatchLeaderRequest {
            cluster: self.worker.cluster.to_string(),
            worker: self.worker.worker.to_string(),
            cell: link.cell.map(|cell| cell.to_string()).unwrap_or_default(),
        });
        if let Some(authorization) = authorization {
            request.metadata_mut().insert("authorization", authorization);
        }
        let mut client =
            LeaderServiceClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        let answer = timeout(TIMEOUT, client.watch_leader(request)).await.context("no answer")?;
        let mut responses = answer?.into_inner();
        let mut newest = WatchLeaderResponse::default();
        loop {
            let epoch = Epoch(newest.epoch);
            let leads_elsewhere = !newest.leader.is_empty() && newest.leader != link.address;
            if leads_elsewhere && epoch > self.newest_epoch(&link) {
                return Ok(Successor { over: link.number, leader: newest.leader, epoch });
            }
            tokio::select! {
                biased;
                response = responses.message() => {
                    newest = response?.context("the stream has ended: the replica leads or stops")?;
                }
                changed = self.welcomed.changed() => {
                    changed.context("the agent ends")?;
                    link = self.link()?;
                }
            }
        }
    }

    /// A successor's epoch is above this: that of the link's leader, or of the successor that was
    /// reported for the link.
    fn newest_epoch(&self, link: &WelcomedLink) -> Epoch {
        match self.reported {
            Some((over, epoch)) if over == link.number => epoch,
            Some(_) | None => link.epoch,
        }
    }

    fn link(&mut self) -> anyhow::Result<WelcomedLink> {
        self.welcomed.borrow_and_update().clone().context("no leader has welcomed the agent")
    }
}

/// The failures in a row after a watch that took this long, and found a successor or not.
fn failures_after(failures: u32, took: Duration, has_successor: bool) -> u32 {
    if has_successor || took >= backoff::RAN_WELL { 0 } else { failures.saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;

    use super::*;

    /// No coordinator can be reached.
    struct Unreachable;

    impl Connect for Unreachable {
        async fn connect(&self, _: &str) -> anyhow::Result<Connection> {
            pending().await
        }
    }

    fn link(number: u64) -> Option<WelcomedLink> {
        let (address, number) = ("127.0.0.1:7400".to_owned(), LinkNumber(number));
        Some(WelcomedLink { number, address, epoch: Epoch(1), cell: None })
    }

    #[test]
    fn only_short_watches_without_a_successor_lengthen_the_wait() {
        let short = Duration::from_secs(4);
        assert_eq!(failures_after(2, short, false), 3);
        assert_eq!(failures_after(2, short, true), 0);
        assert_eq!(failures_after(2, backoff::RAN_WELL, false), 0);
    }

    #[test]
    fn a_link_that_a_watch_has_noted_ends_the_wait_all_the_same() {
        let (welcomed, welcomed_seen) = watch::channel(link(1));
        let worker = WorkerKey {
            cluster: "builds".parse().expect("a cluster's name"),
            worker: "w-0".parse().expect("a worker's name"),
        };
        let mut watcher = Watcher {
            worker,
            coordinators: Vec::new(),
            next: 0,
            connect: Unreachable,
            welcomed: welcomed_seen,
            successors: mpsc::channel(SUCCESSORS_MAX).0,
            reported: None,
        };
        let first = watcher.link_number();
        let is_another = |watcher: &mut Watcher<Unreachable>| {
            watcher.another_link(first).now_or_never().is_some()
        };
        assert!(!is_another(&mut watcher), "no link but the first");
        welcomed.send_replace(link(2));
        watcher.link().expect("a watch notes the second");
        assert!(is_another(&mut watcher), "the second link");
        welcomed.send_replace(link(1));
        assert!(!is_another(&mut watcher), "the first again");
    }
}
