//! Shares of pipelines as they really are: which of them each worker may use, and whether that is
//! more than it can take (S13), or more than a node has (S14).
//!
//! Invariant: a bound falls only when what was granted under the higher one is surely known.

use std::collections::BTreeMap;

use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_types::{Load, NodeName, PipelineName, SetName, ShareKey, StreamKey};

use super::clock::Real;
use super::pipelines::class_of;
use super::world::World;

/// Lease times after which nothing that was granted before can still be on its way.
const ON_ITS_WAY_MAX: Real = 8;

/// The most that may be in use, while what is in force falls.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    workers: BTreeMap<usize, Load>,
    workers_fall: bool,
    nodes: BTreeMap<NodeOf, NodeBound>,
}

/// A node, while it is of this class: of another class it is another node.
type NodeOf = (PipelineName, NodeName, SetName);

#[derive(Debug, Default)]
struct NodeBound {
    load: Load,
    /// When so much was in force last.
    seen: Real,
    state: NodeState,
}

/// How a node's bound stood at the last look; it stands so until the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NodeState {
    /// Nobody has a share of it.
    #[default]
    Unused,
    /// So much is in force.
    InForce,
    /// Less is in force by now.
    Falling,
}

impl Bounds {
    /// Whether something may still be in use that is more than what is in force.
    pub(super) fn falls(&self) -> bool {
        self.workers_fall || self.nodes.values().any(|bound| bound.state == NodeState::Falling)
    }
}

impl World {
    /// S13 and S14.
    pub(super) fn check_shares(&mut self, leader: Option<usize>) {
        if !self.profile.pipelines {
            return;
        }
        let usable = self.usable_shares();
        self.check_workers(leader, &usable);
        self.check_nodes(&usable);
    }

    /// Every share that a pod's agent or worker may use now, with its load.
    pub(super) fn usable_shares(&self) -> BTreeMap<(usize, StreamKey), Load> {
        let mut usable: BTreeMap<(usize, StreamKey), Load> = BTreeMap::new();
        let mut add = |pod: usize, stream: &StreamKey, load: Load| {
            let known = usable.entry((pod, stream.clone())).or_default();
            *known = load.max(*known);
        };
        for (index, pod) in self.pods.iter().enumerate().filter(|(_, pod)| !pod.dead) {
            let now = pod.clock.local(self.t);
            for (stream, used) in &pod.worker.streams {
                let uses = pod.worker.uses(used, now);
                used.load.filter(|_| uses).iter().for_each(|load| add(index, stream, *load));
            }
            let disk = pod.disk.borrow();
            let memory = &disk.memory;
            for (stream, held) in memory.streams.iter().filter(|_| !pod.left) {
                let lives = held.pinned || now < held.lapses.unwrap_or(memory.renewed_until);
                held.load.filter(|_| lives).iter().for_each(|load| add(index, stream, *load));
            }
        }
        usable
    }

    fn check_workers(
        &mut self,
        leader: Option<usize>,
        usable: &BTreeMap<(usize, StreamKey), Load>,
    ) {
        let mut sums: BTreeMap<usize, Load> = BTreeMap::new();
        usable.iter().for_each(|((pod, _), load)| *sums.entry(*pod).or_default() += *load);
        self.observer.bounds.workers_fall = false;
        for pod in 0..self.pods.len() {
            if self.pods[pod].dead {
                continue;
            }
            let cluster = &self.pods[pod].key.cluster;
            let known = self.replicas.iter().filter_map(|it| class_of(&it.desired, cluster));
            let in_force = known.map(|class| class.capacity).max().unwrap_or_default();
            let bound = self.observer.bounds.workers.get(&pod).copied().unwrap_or_default();
            // A lowered capacity is reached as what was granted falls, never above it again.
            let bound = match bound > in_force {
                true => in_force.max(self.granted(leader, pod).unwrap_or(bound).min(bound)),
                false => in_force,
            };
            self.observer.bounds.workers.insert(pod, bound);
            self.observer.bounds.workers_fall |= bound > in_force;
            let sum = sums.get(&pod).copied().unwrap_or_default();
            if sum > bound {
                let shares = usable.iter().filter(|((at, _), _)| *at == pod);
                let shares: Vec<_> = shares
                    .map(|((_, stream), load)| format!("{}: {load}", stream.stream))
                    .collect();
                self.fail("S13", || format!("p{pod} may take {sum} of {bound}: {shares:?}"));
            }
        }
    }

    /// What a leader that knows everything has granted a pod's worker; none where none does.
    fn granted(&self, leader: Option<usize>, pod: usize) -> Option<Load> {
        let core = self.replicas[leader?].core.as_ref()?;
        let now = self.local_of_replica(leader?);
        let key = &self.pods[pod].key;
        let view = core.clusters(now).into_iter().find(|view| view.name == key.cluster)?;
        let worker = view.held.is_none().then(|| core.worker(key, now))?;
        worker.map(|worker| worker.load)
    }

    fn check_nodes(&mut self, usable: &BTreeMap<(usize, StreamKey), Load>) {
        let mut sums: BTreeMap<NodeOf, BTreeMap<(usize, u32), Load>> = BTreeMap::new();
        for ((pod, stream), load) in usable {
            if let Some(ShareKey { pipeline, node, index }) = ShareKey::of(stream) {
                let of = (pipeline, node, stream.set.clone());
                sums.entry(of).or_default().insert((*pod, index), *load);
            }
        }
        let grace = self.profile.ttl_real() * ON_ITS_WAY_MAX;
        for bound in self.observer.bounds.nodes.values_mut() {
            if std::mem::take(&mut bound.state) == NodeState::InForce {
                bound.seen = self.t;
            }
        }
        for (node, shares) in sums {
            let pipelines = self.replicas.iter().filter_map(|it| it.desired.pipelines.get(&node.0));
            let in_force = pipelines.map(|pipeline| pipeline.load).max().unwrap_or_default();
            let sum: Load = shares.values().copied().sum();
            let bound = self.observer.bounds.nodes.get(&node).map_or(Load::ZERO, |it| it.load);
            let waits = in_force < bound.max(sum) && self.change_waits(&node.0);
            let bound = self.observer.bounds.nodes.entry(node.clone()).or_default();
            if waits {
                // What was in force stays so, and may be granted still.
                bound.load = bound.load.max(sum);
            } else if in_force < bound.load && self.t - bound.seen > grace {
                bound.load = in_force.max(sum.min(bound.load));
            }
            bound.load = bound.load.max(in_force);
            bound.state = match waits || in_force >= bound.load {
                true => NodeState::InForce,
                false => NodeState::Falling,
            };
            if bound.state == NodeState::InForce {
                bound.seen = self.t;
            }
            let most = bound.load;
            if sum > most {
                let (pipeline, node, _) = node;
                self.fail("S14", || format!("{pipeline}/{node}: {sum} of {most}: {shares:?}"));
            }
        }
    }

    /// Whether somebody leads to whom a change of a pipeline is not in force.
    fn change_waits(&self, pipeline: &PipelineName) -> bool {
        let cores = self.replicas.iter().filter_map(|replica| replica.core.as_ref());
        let mut views = cores.filter_map(|core| core.pipeline(pipeline));
        views.any(|view| view.phase != PipelinePhase::Pending && !view.waits.is_empty())
    }
}
