//! Looks whether all coordinators that the agent may dial are of one cell. An agent obeys its own
//! cell only, but agents that reach two of them in different orders serve both: each coordinator
//! then grants the whole budget. Only who looks at all addresses can notice that.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use leasehold_proto::CELL_METADATA;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_types::CellId;
use leasehold_types::message::OtherCell;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::config::{Address, Tls};
use crate::link;

/// The time between two looks, more or less a quarter: each costs every coordinator a connection of
/// every agent.
const INTERVAL: Duration = Duration::from_secs(300);
/// The first look follows the first welcome within this time, so that agents that start together do
/// not look together.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// The longest time that one coordinator may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The cells of the coordinators that the agent may dial.
#[derive(Debug)]
pub(crate) struct Cells {
    own: watch::Sender<Option<CellId>>,
    other: watch::Receiver<Option<OtherCell>>,
    task: Option<JoinHandle<()>>,
}

impl Cells {
    /// Looks at these coordinators from when the agent's own cell is known.
    pub(crate) fn new(coordinators: Vec<Address>, tls: Option<Tls>) -> Self {
        let (own, own_seen) = watch::channel(None);
        let (other_sender, other) = watch::channel(None);
        // One address is looked at by each dial; of a name with several addresses only one is.
        let task = (coordinators.len() > 1).then(|| {
            let looker = Looker { coordinators, tls, named: BTreeMap::new() };
            tokio::spawn(looker.run(own_seen, other_sender))
        });
        Self { own, other, task }
    }

    /// The agent belongs to this cell.
    pub(crate) fn set_own(&self, own: Option<CellId>) {
        self.own.send_if_modified(|known| {
            let is_new = *known != own;
            *known = own;
            is_new
        });
    }

    /// A coordinator of another cell, if the last look found one.
    pub(crate) fn other(&self) -> Option<OtherCell> {
        self.other.borrow().clone()
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Looker {
    coordinators: Vec<Address>,
    tls: Option<Tls>,
    /// The other cells that the log has named, by address.
    named: BTreeMap<String, CellId>,
}

impl Looker {
    async fn run(
        mut self,
        mut own: watch::Receiver<Option<CellId>>,
        other: watch::Sender<Option<OtherCell>>,
    ) {
        let mut pause = FIRST_WITHIN.mul_f64(fastrand::f64());
        loop {
            let Ok(known) = own.wait_for(Option::is_some).await.map(|own| *own) else { return };
            tokio::time::sleep(pause).await;
            if let Some(known) = known {
                other.send_replace(self.look(known).await);
            }
            pause = INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0);
        }
    }

    /// Asks each coordinator for its cell; returns one that is of another.
    async fn look(&mut self, own: CellId) -> Option<OtherCell> {
        let mut found = None;
        for coordinator in &self.coordinators {
            let address = coordinator.to_string();
            let cell = match cell_of(&address, self.tls.as_ref()).await {
                Ok(cell) => cell,
                Err(error) => {
                    tracing::debug!(coordinator = address, %error, "cannot ask for its cell");
                    continue;
                }
            };
            let Some(cell) = cell.filter(|cell| *cell != own) else {
                self.named.remove(&address);
                continue;
            };
            if self.named.insert(address.clone(), cell) != Some(cell) {
                tracing::error!(
                    coordinator = address, %own, other = %cell,
                    "a coordinator of --coordinator belongs to another cell than this agent, and \
                     may grant the same budget and streams to others: give all replicas of a fleet \
                     one store (--state-dir, or the Lease of one namespace), or remove its address"
                );
            }
            found.get_or_insert(OtherCell { cell, coordinator: address });
        }
        found
    }
}

/// The cell of the coordinator at this address; `None` if it does not say.
async fn cell_of(address: &str, tls: Option<&Tls>) -> anyhow::Result<Option<CellId>> {
    let ask = async {
        let channel = link::endpoint(address, tls, None).await?.connect().await?;
        let mut client = SessionServiceClient::new(channel);
        // The answer begins before a hello. The request ends when this one is dropped: one without
        // an end would keep the connection open.
        let (_open, no_message) = mpsc::channel(1);
        let request = Request::new(ReceiverStream::new(no_message));
        let answer = client.open_session(request).await?;
        let cell = answer.metadata().get(CELL_METADATA).and_then(|text| text.to_str().ok());
        cell.map(|text| text.parse().context("not a cell's identity")).transpose()
    };
    tokio::time::timeout(TIMEOUT, ask).await.context("no answer")?
}
