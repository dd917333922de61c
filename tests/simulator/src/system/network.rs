//! Links between agents and replicas, and which directions are cut.

use std::collections::{BTreeSet, VecDeque};

use leasehold_types::LinkNumber;

use crate::system::clock::Real;

/// Index of a link; never used again.
pub(crate) type LinkId = usize;

/// What travels on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message in bytes.
    Message(Vec<u8>),
    /// The end of the link.
    Close,
}

/// A direction that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// From a pod to a replica.
    Up(usize, usize),
    /// From a replica to a pod.
    Down(usize, usize),
    /// Between a replica and the store.
    Store(usize),
    /// Between a replica and the store, for all but the entries of workers.
    Terms(usize),
}

/// The requests for which a store is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowStore {
    /// Writes of what workers may hold.
    Writes,
    /// All others.
    AllElse,
    /// All requests.
    All,
}

/// One link between an agent and a replica.
#[derive(Debug)]
pub(crate) struct Link {
    /// The pod at its lower end.
    pub pod: usize,
    /// The agent's life that opened it.
    pub pod_run: u64,
    /// Its number there.
    pub number: LinkNumber,
    /// The replica at its upper end.
    pub replica: usize,
    /// The replica's life that took it.
    pub replica_run: u64,
    /// The agent has it open.
    pub pod_open: bool,
    /// The replica has it open.
    pub replica_open: bool,
    /// What is on its way is lost.
    pub lost: bool,
    /// Something was lost within it: the transport finds that out, and is broken.
    pub torn: bool,
    /// The writer takes long.
    pub slow_writer: bool,
    /// When the last data came that a stopped replica has yet to read.
    pub unread: Option<Real>,
    pub clear_up: Real,
    pub clear_down: Real,
    pub held_up: VecDeque<Frame>,
    pub held_down: VecDeque<Frame>,
}

/// The directions that are cut, and all links.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// All links that ever were.
    pub links: Vec<Link>,
    /// What is cut.
    pub cuts: BTreeSet<Cut>,
    /// Links to this pod are full, because its agent reads nothing.
    pub full: Option<usize>,
    /// Until then a store is slow for this replica.
    pub slow_store: Option<(usize, SlowStore, Real)>,
}
