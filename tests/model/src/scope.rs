//! The small worlds that are explored: what is desired in each, how far it goes, and how many
//! faults a path may hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Mode, Moves, Node, Pipeline, Policy, Rebalance, Spread, Stream,
    StreamSet,
};
use leasehold_types::{
    AgentId, ClusterName, Load, NodeName, PipelineName, SetName, StreamName, WorkerKey, WorkerName,
};

use crate::clock::{Rate, Real};
use crate::fault::{Budget, Fault};

/// Agents and workers, and replicas of the coordinator.
pub(crate) const NODES: usize = 2;
/// Accounts that a leader may have: one under each worker's name, and one of each agent whose name
/// the other one has taken over.
pub(crate) const ACCOUNTS: usize = 2 * NODES;

/// How long a lease lasts.
pub(crate) const TTL: Duration = Duration::from_secs(8);
/// How often agents beat: less often than the core would have it, for fewer states.
pub(crate) const BEAT: Duration = Duration::from_secs(4);
/// How long leadership lasts without renewal, where it is to outlast a path.
const LEADERSHIP_LONG: Duration = Duration::from_secs(100);
/// The cluster or class of every scope.
const CLUSTER: &str = "k";

/// A world to explore.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Its name.
    pub name: &'static str,
    /// What is in it.
    pub about: &'static str,
    /// What is desired at first, and after each edit.
    pub(crate) desired: Vec<Arc<Desired>>,
    /// How long leadership lasts without renewal.
    pub(crate) leadership: Duration,
    /// The clocks' rates: of the replicas, then of the pods' hosts.
    pub(crate) rates: Vec<[[Rate; NODES]; 2]>,
    /// No path goes further in time.
    pub(crate) horizon: Real,
    /// Faults of a path.
    pub(crate) budget: Budget,
    /// How many jobs each worker would run.
    pub(crate) appetite: u8,
    /// How many links each agent may open.
    pub(crate) dials: u8,
    /// How many epochs there may be.
    pub(crate) epochs: u64,
    /// How workers are named.
    pub(crate) names: Names,
}

/// How workers are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Names {
    /// Each has a name of its own.
    Own,
    /// Both have one, and replicas keep names. Agents tell their identities.
    Shared {
        /// The second agent takes the name over.
        takes_over: bool,
    },
}

impl Names {
    /// The worker beside an agent.
    pub(crate) fn worker(self, pod: usize) -> WorkerKey {
        let name = match self {
            Self::Own => format!("w{pod}"),
            Self::Shared { .. } => "w".to_owned(),
        };
        WorkerKey { cluster: cluster_name(), worker: WorkerName::new(&name).expect("a name") }
    }

    /// The identity that an agent tells.
    pub(crate) fn agent(self, pod: usize) -> Option<AgentId> {
        match self {
            Self::Own => None,
            Self::Shared { .. } => Some(AgentId(pod as u128 + 1)),
        }
    }

    /// Whether an agent takes its name over from another.
    pub(crate) fn takes_over(self, pod: usize) -> bool {
        matches!(self, Self::Shared { takes_over: true }) && pod > 0
    }

    /// Whether replicas keep names.
    pub(crate) fn are_kept(self) -> bool {
        matches!(self, Self::Shared { .. })
    }

    /// The key of an account: those of names first, then those of former agents.
    pub(crate) fn account(self, account: usize) -> WorkerKey {
        let former = account.checked_sub(NODES);
        let agent = former.and_then(|pod| self.agent(pod));
        match agent {
            Some(agent) => self.worker(0).former(agent),
            None => self.worker(account),
        }
    }

    /// The number of an account.
    pub(crate) fn number(self, key: &WorkerKey) -> u8 {
        let number = (0..ACCOUNTS).find(|account| self.account(*account) == *key);
        u8::try_from(number.expect("an account of the scope")).expect("a few accounts")
    }
}

impl Scope {
    /// All scopes.
    #[must_use]
    pub fn all() -> Vec<Self> {
        vec![expiring(), pinned(), pool(), share(), swap(), term(), name(), takeover()]
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|scope| scope.name == name)
    }

    /// The same scope with this many faults on a path.
    #[must_use]
    pub fn with_faults(mut self, faults: u8) -> Self {
        self.budget.total = faults;
        self
    }

    /// The same with no faults but these on a path.
    #[must_use]
    pub fn with_only(mut self, faults: &[Fault]) -> Self {
        self.budget = self.budget.only(faults);
        self
    }

    /// How many faults a path may hold.
    #[must_use]
    pub fn faults(&self) -> u8 {
        self.budget.total
    }

    /// How far a path goes, in lease times.
    #[must_use]
    pub fn leases(&self) -> f64 {
        self.horizon as f64 / TTL.as_millis() as f64
    }

    fn new(name: &'static str, about: &'static str, desired: Desired) -> Self {
        Self {
            name,
            about,
            desired: vec![Arc::new(desired)],
            leadership: LEADERSHIP_LONG,
            // The holder counts slowly and the grantor fast: the bound that matters. A successor
            // that counts fast must outlast a predecessor that counts slowly.
            rates: vec![[[Rate::Fast; NODES], [Rate::Slow; NODES]]],
            horizon: 3 * TTL.as_millis() as Real,
            budget: Budget::of(1),
            appetite: 0,
            dials: 3,
            epochs: 3,
            names: Names::Own,
        }
    }
}

/// A pool of two slots, of which each worker would use both.
fn pool() -> Scope {
    let desired = Desired { clusters: one_cluster(cluster(2, None)), ..Desired::default() };
    let mut scope = Scope::new("pool", "a pool of two slots for two workers", desired);
    scope.appetite = 2;
    scope
}

/// Two agents of one name, of which the second is refused while the first may hold anything.
fn name() -> Scope {
    let about = "a pool of two slots for two agents of one name, of which the first keeps it";
    let mut scope = Scope { name: "name", about, ..pool() };
    scope.names = Names::Shared { takes_over: false };
    scope
}

/// Two agents of one name, of which the second takes it over.
fn takeover() -> Scope {
    let about = "a pool of two slots for two agents of one name, which the second takes over";
    let mut scope = Scope { name: "takeover", about, ..pool() };
    scope.names = Names::Shared { takes_over: true };
    scope
}

fn expiring() -> Scope {
    let desired = streams(Mode::Expiring);
    Scope::new("expiring", "a stream whose lease ends with its time", desired)
}

fn pinned() -> Scope {
    let desired = streams(Mode::Pinned);
    Scope::new("pinned", "a stream whose lease ends by release alone", desired)
}

/// Leadership that ends within a path.
fn term() -> Scope {
    let desired = streams(Mode::Expiring);
    let about = "a stream, and leadership that is shorter than its lease";
    let mut scope = Scope::new("term", about, desired);
    scope.leadership = Duration::from_secs(6);
    scope.rates = vec![[[Rate::Slow, Rate::Fast], [Rate::Slow; NODES]]];
    scope
}

/// A pipeline of one node, laid over the workers of a class; its load grows.
fn share() -> Scope {
    let about = "a pipeline of one node, whose load grows";
    edited("share", about, ("p", 4), ("p", 5))
}

/// A pipeline of one node makes room for another.
fn swap() -> Scope {
    edited("swap", "a pipeline of one node, and another in its place", ("p", 4), ("q", 3))
}

/// Pipelines of one node on a class of two workers: name and load, before an edit and after it.
fn edited(
    name: &'static str,
    about: &'static str,
    before: (&str, u64),
    after: (&str, u64),
) -> Scope {
    let class = Class {
        capacity: load(4),
        workers_min: 1,
        workers_max: 2,
        utilization: 100,
        spread: Spread::Even,
        rebalance: Rebalance::Never,
        handover_deadline: TTL / 2,
    };
    let clusters = one_cluster(cluster(0, Some(class)));
    let with = |(name, documents)| {
        let name = PipelineName::new(name).expect("a name");
        let pipelines = [(name, Arc::new(pipeline(documents)))].into();
        Desired { clusters: clusters.clone(), pipelines, ..Desired::default() }
    };
    let mut scope = Scope::new(name, about, with(before));
    scope.desired.push(Arc::new(with(after)));
    scope.budget = scope.budget.with(Fault::Edit, 1);
    scope
}

fn one_cluster(cluster: Cluster) -> BTreeMap<ClusterName, Arc<Cluster>> {
    [(cluster_name(), Arc::new(cluster))].into()
}

fn cluster(jobs_max: u32, class: Option<Class>) -> Cluster {
    Cluster {
        jobs_max,
        jobs_per_worker_max: jobs_max.max(1),
        drain_deadline: TTL,
        ttl: TTL,
        class,
        ..Cluster::example()
    }
}

fn streams(mode: Mode) -> Desired {
    let name = StreamName::new("x").expect("a name");
    let set = StreamSet {
        cluster: cluster_name(),
        streams: Arc::new(vec![Stream { name, weight: 1, dedicated: false }]),
        policy: Policy::Sticky,
        mode,
        handover_deadline: TTL / 2,
        moves: Moves { per_round_max: 1, cooldown: Duration::ZERO, settle: Duration::ZERO },
    };
    let name = SetName::new("s").expect("a name");
    Desired {
        clusters: one_cluster(cluster(0, None)),
        sets: [(name, Arc::new(set))].into(),
        ..Desired::default()
    }
}

fn pipeline(documents: u64) -> Pipeline {
    let node = Node { class: cluster_name(), next: BTreeSet::new() };
    let name = NodeName::new("n").expect("a name");
    Pipeline { load: load(documents), nodes: [(name, node)].into() }
}

fn load(documents: u64) -> Load {
    Load::per_second(documents).expect("a load")
}

/// The cluster or class of every scope.
pub(crate) fn cluster_name() -> ClusterName {
    ClusterName::new(CLUSTER).expect("a name")
}
