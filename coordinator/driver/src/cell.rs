//! The cell that a replica belongs to, for agents and people.

use std::sync::Arc;

use leasehold_types::CellId;
use tokio::sync::watch;

/// A cell: the replicas that share one store of leadership, and the agents that they serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its identity.
    pub id: CellId,
    /// Its store, for people: a folder, a prefix of etcd, or a Lease as NAMESPACE/NAME.
    pub store: String,
}

/// The cell of a replica, once it is known.
pub type KnownCell = watch::Receiver<Option<Arc<Cell>>>;
