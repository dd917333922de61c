//! The state of the simulated system: hosts, agents, workers, replicas, links, stores and desired
//! state. [`View`] reads it; the observer has nothing else.
//!
//! Invariant: nothing here decides what happens next.

pub(crate) mod clock;
pub(crate) mod driver;
pub(crate) mod election;
pub(crate) mod faults;
pub(crate) mod journal;
pub(crate) mod manifests;
pub(crate) mod network;
pub(crate) mod pipelines;
pub(crate) mod pod;
pub(crate) mod profile;
pub(crate) mod replica;
pub(crate) mod store;
pub(crate) mod tracked;
pub(crate) mod worker;

use leasehold_types::{AgentId, Epoch, Moment, StreamKey, Token, WorkerKey};

use self::clock::Real;
use self::manifests::Manifests;
use self::network::Network;
use self::pod::Pod;
use self::profile::Profile;
use self::replica::Replica;
use self::store::Store;
use self::tracked::Tracked;
use crate::trace::Trace;

/// Expensive checks run every this many steps: a violation lasts for many steps.
const SAMPLE_EVERY: u64 = 2;
/// The same in a large fleet.
const SAMPLE_EVERY_LARGE: u64 = 32;
/// A fleet is large where more pods have lived.
const PODS_LARGE: usize = 40;

/// The state of the system at one moment, to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// Now.
    pub t: Real,
    /// The sizes, times and faults of this run.
    pub profile: &'a Profile,
    /// Coordinators keep the names of agents.
    pub keeps_names: bool,
    /// The stores of the election.
    pub store: &'a Store,
    /// The coordinators.
    pub replicas: &'a Tracked<Replica>,
    /// The pods, dead ones too.
    pub pods: &'a Tracked<Pod>,
    /// The links.
    pub network: &'a Network,
    /// The desired state.
    pub manifests: &'a Manifests,
    /// The record of this run.
    pub trace: &'a Trace,
}

impl<'a> View<'a> {
    /// The streams that a pod's worker or agent has, in order.
    pub(crate) fn streams_at(&self, pod: usize) -> Vec<StreamKey> {
        let node = &self.pods[pod];
        if node.dead {
            return Vec::new();
        }
        let disk = node.disk.borrow();
        let mut streams: Vec<_> = node.worker.streams.keys().cloned().collect();
        if !node.superseded {
            streams.extend(disk.memory.streams.keys().cloned());
        }
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// The token under which a pod's worker or agent may use a stream now.
    pub(crate) fn token_in_use(&self, pod: usize, stream: &StreamKey) -> Option<Token> {
        let node = &self.pods[pod];
        if node.dead {
            return None;
        }
        let used = node.worker.streams.get(stream).map(|used| used.token);
        let disk = node.disk.borrow();
        let held = disk.memory.streams.get(stream).map(|held| held.token);
        let tokens = used.into_iter().chain(held);
        let mut tokens = tokens.filter(|token| self.may_use(pod, stream, *token));
        tokens.next()
    }

    /// The replica that really leads, if its core knows: the newest epoch is its own.
    pub(crate) fn true_leader(&self) -> Option<(usize, Epoch)> {
        let owner = self.store.owner?;
        let epoch = self.replicas[owner].leads()?;
        (epoch == self.store.epoch).then_some((owner, epoch))
    }

    /// Whether a pod's worker or agent may use a stream under this token now.
    pub(crate) fn may_use(&self, pod: usize, stream: &StreamKey, token: Token) -> bool {
        let node = &self.pods[pod];
        let now = node.clock.local(self.t);
        let worker = node
            .worker
            .streams
            .get(stream)
            .is_some_and(|used| used.token == token && node.worker.uses(used, now));
        let disk = node.disk.borrow();
        let agent = !node.superseded
            && disk.memory.streams.get(stream).is_some_and(|held| {
                held.token == token && held.lives(disk.memory.renewed_until, now)
            });
        worker || agent
    }

    /// The streams that a pod's worker uses at `now` of its clock.
    pub(crate) fn uses_now(self, pod: usize, now: Moment) -> impl Iterator<Item = &'a StreamKey> {
        let worker = &self.pods[pod].worker;
        worker.streams.iter().filter(move |(_, used)| worker.uses(used, now)).map(|(key, _)| key)
    }

    /// Whether expensive checks run after this step.
    pub(crate) fn is_sampled(&self) -> bool {
        let steps = if self.pods.len() > PODS_LARGE { SAMPLE_EVERY_LARGE } else { SAMPLE_EVERY };
        self.trace.steps().is_multiple_of(steps)
    }

    /// Pods that are not dead.
    pub(crate) fn living(&self) -> Vec<usize> {
        (0..self.pods.len()).filter(|pod| !self.pods[*pod].dead).collect()
    }

    /// Whether an agent's process is stopped, or was until so recently that it may not be back yet.
    pub(crate) fn was_stopped_lately(&self, pod: usize) -> bool {
        self.pods[pod].paused_until + self.profile.ttl_real() > self.t
    }

    /// A pod's clock now.
    pub(crate) fn local_of_pod(&self, pod: usize) -> Moment {
        self.pods[pod].clock.local(self.t)
    }

    /// A replica's clock now.
    pub(crate) fn local_of_replica(&self, replica: usize) -> Moment {
        self.replicas[replica].clock.local(self.t)
    }

    /// Whether leases of an earlier agent of a pod's name may last, which no agent can report: they
    /// keep a worker that leaves, until the leader has renewed its leadership after their end.
    pub(crate) fn is_kept_by_earlier_agent(&self, pod: usize) -> bool {
        let Some((leader, _)) = self.true_leader() else { return false };
        let core = self.replicas[leader].core.as_ref();
        let until = core.and_then(|core| core.unreported_until(&self.pods[pod].key));
        until.is_some_and(|until| self.local_of_replica(leader) < until + self.profile.leadership)
    }

    /// Whether a living pod's leases are judged: where the name alone decides, those of two pods of
    /// one name cannot be told apart.
    pub(crate) fn is_judged(&self, pod: usize) -> bool {
        let node = &self.pods[pod];
        !node.dead && (self.keeps_names || !(node.twin || node.is_replaced()))
    }

    /// The keys under which a pod's agents may have accounts: its name, unless that is known to be
    /// another agent's, and the names that they have where another agent has taken it over.
    pub(crate) fn accounts_of(
        &self,
        pod: usize,
        holder: impl Fn(&WorkerKey) -> Option<AgentId>,
    ) -> Vec<WorkerKey> {
        let node = &self.pods[pod];
        let is_own = |agent: AgentId| !self.keeps_names || node.identities.contains(&agent);
        let present = Some(&node.key).filter(|key| holder(key).is_none_or(is_own));
        let former = node.identities.iter().filter(|_| self.keeps_names);
        let former = former.map(|agent| node.key.former(*agent));
        present.cloned().into_iter().chain(former).collect()
    }

    /// The same, as a replica knows it.
    pub(crate) fn accounts_at(&self, replica: usize, pod: usize) -> Vec<WorkerKey> {
        let now = self.local_of_replica(replica);
        let core = self.replicas[replica].core.as_ref();
        self.accounts_of(pod, |key| core?.worker(key, now)?.agent)
    }

    /// Whether a replica knows agents of a pod whose name another agent has taken over.
    pub(crate) fn is_former_at(&self, replica: usize, pod: usize) -> bool {
        let now = self.local_of_replica(replica);
        let Some(core) = self.replicas[replica].core.as_ref() else { return false };
        let accounts = self.accounts_at(replica, pod);
        let mut former = accounts.iter().filter(|key| key.worker.is_former());
        former.any(|key| core.worker(key, now).is_some())
    }

    /// The living pod of this worker.
    pub(crate) fn pod_of(&self, key: &WorkerKey) -> Option<usize> {
        self.living().into_iter().find(|pod| self.pods[*pod].key == *key)
    }
}
