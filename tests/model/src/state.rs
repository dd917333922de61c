//! A state of the whole world: the numbers of its nodes' states, what is on its way between them,
//! and what an observer remembers.

use leasehold_types::{Epoch, LinkNumber, Moment, Token};

use crate::clock::{Rate, Real};
use crate::fault::Budget;
use crate::scope::{ACCOUNTS, NODES};

/// A state. Cheap to copy: what nodes hold is kept elsewhere, under numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) t: Real,
    /// The clocks of replicas and of pods.
    pub(crate) rates: [[Rate; NODES]; 2],
    pub(crate) pods: [PodState; NODES],
    pub(crate) replicas: [ReplicaState; NODES],
    pub(crate) store: Store,
    pub(crate) links: Vec<Link>,
    /// Which of the scope's manifests is in force.
    pub(crate) desired: u8,
    pub(crate) budget: Budget,
    pub(crate) seen: ObserverMemory,
}

/// A pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodState {
    /// The number of its state.
    pub(crate) id: u32,
    /// Its agent's process is stopped.
    pub(crate) paused: bool,
    /// Its worker is slow.
    pub(crate) slow_worker: bool,
    /// Links that were opened so far.
    pub(crate) dialled: u8,
}

/// A replica, with its part in the election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReplicaState {
    /// The number of its core's state; `None` while no process runs.
    pub(crate) core: Option<u32>,
    pub(crate) paused: bool,
    /// Since when its driver is in a long turn; what arrives is stamped, and waits.
    pub(crate) busy: Option<Real>,
    /// The store is slow for it.
    pub(crate) slow_store: bool,
    /// Which manifests it has read, counted from 1.
    pub(crate) desired: u8,
    /// Pods that it knows to be gone.
    pub(crate) told_gone: [bool; NODES],
    pub(crate) term: Option<Term>,
    /// An agent remembers this epoch.
    pub(crate) above: Epoch,
    /// Requests to the term store, oldest first.
    pub(crate) terms: Vec<Request>,
    /// Requests to the register, oldest first.
    pub(crate) register: Vec<Request>,
}

/// A term that a replica has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Term {
    pub(crate) epoch: Epoch,
    /// Its end by this replica's clock.
    pub(crate) until: Moment,
    /// When the predecessor has surely stopped.
    pub(crate) predecessor_end: Moment,
    /// When it is renewed without being asked.
    pub(crate) renew_at: Moment,
    /// The core knows of it.
    pub(crate) told: bool,
}

/// A request to the store, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) epoch: Epoch,
    pub(crate) what: RequestKind,
    /// Carried out, and not yet answered; whether the store took it.
    pub(crate) done: Option<bool>,
}

/// What a replica asks of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestKind {
    /// Who may hold what? Once it is carried out, the answer.
    List([Option<u32>; ACCOUNTS]),
    /// Renew the term; when that was sent.
    Renew(Moment),
    /// Give the term up.
    Release,
    /// Write down what these workers may hold.
    Write(Vec<(u8, u32)>),
    /// Unregister these workers.
    Unregister(Vec<u8>),
}

/// The term store and the register, which all replicas share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) epoch: Epoch,
    pub(crate) owner: Option<u8>,
    /// When the term was last taken, renewed or given up.
    pub(crate) changed_at: Real,
    /// What each worker may hold, by number.
    pub(crate) register: [Option<u32>; ACCOUNTS],
}

/// A link between an agent and a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) pod: u8,
    pub(crate) replica: u8,
    pub(crate) number: LinkNumber,
    /// The connection's name at the replica.
    pub(crate) conn: u64,
    pub(crate) agent_open: bool,
    pub(crate) replica_open: bool,
    /// What is on its way to the replica, oldest first.
    pub(crate) up: Vec<Upward>,
    /// What is on its way to the agent, oldest first.
    pub(crate) down: Vec<Item>,
    pub(crate) slow_up: bool,
    pub(crate) slow_down: bool,
}

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    /// A message, by number.
    Message(u32),
    /// The end of the link.
    Close,
}

/// What is on its way to a replica, or has arrived there and waits for the end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Upward {
    pub(crate) item: Item,
    pub(crate) arrived: Option<Real>,
}

impl Upward {
    /// On its way.
    pub(crate) fn new(item: Item) -> Self {
        Self { item, arrived: None }
    }
}

/// What the observer remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ObserverMemory {
    /// The newest token under which each stream was taken, and by whom.
    pub(crate) streams: Vec<(u8, Token, u8)>,
    /// The newest token of each worker's pool.
    pub(crate) pools: [Option<Token>; NODES],
    /// The newest token of each stream that each agent has given back.
    pub(crate) ended: Vec<(u8, u8, Token)>,
    /// The smallest pool size that each agent has said is in effect, under the newest token.
    pub(crate) sizes: [Option<(Token, u32)>; NODES],
}

impl State {
    /// What a replica's clock shows.
    pub(crate) fn replica_now(&self, replica: usize) -> Moment {
        self.rates[0][replica].local(self.t)
    }

    /// When the oldest of what has arrived at a replica and waits there arrived.
    pub(crate) fn oldest_waiting(&self, replica: usize) -> Option<Real> {
        let links = self.links.iter().filter(|link| usize::from(link.replica) == replica);
        let open = links.filter(|link| link.replica_open);
        open.filter_map(|link| link.up.first()?.arrived).min()
    }

    /// What a pod's clock shows.
    pub(crate) fn pod_now(&self, pod: usize) -> Moment {
        self.rates[1][pod].local(self.t)
    }
}
