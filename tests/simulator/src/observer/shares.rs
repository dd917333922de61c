//! Shares of pipelines as they really are: which of them each worker may use, and whether that is
//! more than it can take (S13), or more than a node has (S14).
//!
//! Invariant: a bound falls only when what was granted under the higher one is surely known.

use std::collections::BTreeMap;

use leasehold_coordinator_core::view::{PipelinePhase, Presence, WorkerView};
use leasehold_types::{Load, NodeName, PipelineName, ShareKey, StreamKey};

use crate::observer::Checks;
use crate::system::View;
use crate::system::clock::Real;
use crate::system::pipelines::class_of;

/// Lease times after which nothing that was granted before can still be on its way.
const ON_ITS_WAY_MAX: Real = 8;

/// The most that may be in use, while what is in force falls.
#[derive(Debug, Default)]
pub(crate) struct LoadBounds {
    workers: BTreeMap<usize, Load>,
    workers_fall: bool,
    pipelines: BTreeMap<PipelineName, LoadBound>,
}

/// The load that each node of a pipeline may have.
#[derive(Debug, Default)]
struct LoadBound {
    load: Load,
    /// When this load was last in force.
    seen: Real,
    /// Less was in force at the last check.
    falls: bool,
}

impl LoadBounds {
    /// Whether something may still be in use that is more than what is in force.
    pub(crate) fn falls(&self) -> bool {
        self.workers_fall || self.pipelines.values().any(|bound| bound.falls)
    }
}

/// A node of a pipeline, over all classes.
type ShareNode = (PipelineName, NodeName);

impl View<'_> {
    /// Every share that a pod's agent or worker may use now, with its load.
    pub(crate) fn usable_shares(&self) -> BTreeMap<(usize, StreamKey), Load> {
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
            for (stream, held) in memory.streams.iter().filter(|_| !pod.superseded) {
                let lives = held.lives(memory.renewed_until, now);
                held.load.filter(|_| lives).iter().for_each(|load| add(index, stream, *load));
            }
        }
        usable
    }

    /// What the leader has granted a pod's worker; `None` if it does not know yet.
    pub(crate) fn granted(&self, leader: Option<usize>, pod: usize) -> Option<Load> {
        let replica = leader?;
        let core = self.replicas[replica].core.as_ref()?;
        let now = self.local_of_replica(replica);
        let cluster = &self.pods[pod].key.cluster;
        let view = core.clusters(now).into_iter().find(|view| view.name == *cluster)?;
        if view.held.is_some() {
            return None;
        }
        // Another pod's agent may have taken the name over.
        let keys = self.accounts_at(replica, pod);
        let workers: Vec<_> = keys.iter().filter_map(|key| core.worker(key, now)).collect();
        // It cannot know what a worker has that has not reported, nor what it had before its agent
        // lost its journal. A leader that does not know grants no share.
        let is_known = |worker: &WorkerView| {
            worker.presence != Presence::Unreported && core.unreported_until(&worker.key).is_none()
        };
        let all_known = !workers.is_empty() && workers.iter().all(is_known);
        all_known.then(|| workers.iter().map(|worker| worker.load).sum())
    }

    /// Whether some leader has not put a change of a pipeline in force yet.
    fn change_waits(&self, pipeline: &PipelineName) -> bool {
        let cores = self.replicas.iter().filter_map(|replica| replica.core.as_ref());
        let mut views = cores.filter_map(|core| core.pipeline(pipeline));
        views.any(|view| view.phase != PipelinePhase::Pending && !view.waits.is_empty())
    }
}

impl Checks<'_> {
    /// S13 and S14.
    pub(crate) fn check_shares(&mut self, leader: Option<usize>) {
        if !self.view.profile.pipelines {
            return;
        }
        let usable = self.view.usable_shares();
        self.check_workers(leader, &usable);
        self.check_nodes(&usable);
    }

    fn check_workers(
        &mut self,
        leader: Option<usize>,
        usable: &BTreeMap<(usize, StreamKey), Load>,
    ) {
        let mut sums: BTreeMap<usize, Load> = BTreeMap::new();
        usable.iter().for_each(|((pod, _), load)| *sums.entry(*pod).or_default() += *load);
        self.observer.load_bounds.workers_fall = false;
        for pod in 0..self.view.pods.len() {
            if self.view.pods[pod].dead {
                continue;
            }
            let cluster = &self.view.pods[pod].key.cluster;
            let known =
                self.view.replicas.iter().filter_map(|replica| class_of(&replica.desired, cluster));
            let in_force = known.map(|class| class.capacity).max().unwrap_or_default();
            let bound = self.observer.load_bounds.workers.get(&pod).copied().unwrap_or_default();
            // A lowered capacity is reached as what was granted falls, never above it again.
            let bound = if bound > in_force {
                in_force.max(self.view.granted(leader, pod).unwrap_or(bound).min(bound))
            } else {
                in_force
            };
            self.observer.load_bounds.workers.insert(pod, bound);
            self.observer.load_bounds.workers_fall |= bound > in_force;
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

    fn check_nodes(&mut self, usable: &BTreeMap<(usize, StreamKey), Load>) {
        // Over all classes: a node that goes to another class is still the same work.
        let mut sums: BTreeMap<ShareNode, Load> = BTreeMap::new();
        for ((_, stream), load) in usable {
            if let Some(ShareKey { pipeline, node, .. }) = ShareKey::of(stream) {
                *sums.entry((pipeline, node)).or_default() += *load;
            }
        }
        self.bound_pipelines(&sums);
        let bounds = &self.observer.load_bounds.pipelines;
        let most = |name: &PipelineName| bounds.get(name).map_or(Load::ZERO, |bound| bound.load);
        let above = sums.into_iter().find(|((pipeline, _), sum)| *sum > most(pipeline));
        let Some(((pipeline, node), sum)) = above else { return };
        let most = most(&pipeline);
        let shares = usable.iter().filter_map(|((pod, stream), load)| {
            let share =
                ShareKey::of(stream).filter(|key| key.pipeline == pipeline && key.node == node);
            let class = &self.view.pods[*pod].key.cluster;
            Some(format!("p{pod} of {class}: {} with {load}", share?.index))
        });
        let shares: Vec<_> = shares.collect();
        self.fail("S14", || format!("{pipeline}/{node}: {sum} of {most}: {shares:?}"));
    }

    /// Follows the loads in force, whether anything of them is in use already or not: a grant may
    /// be on its way when the load that it was given under falls.
    fn bound_pipelines(&mut self, sums: &BTreeMap<ShareNode, Load>) {
        let mut in_force: BTreeMap<PipelineName, Load> = BTreeMap::new();
        for (name, pipeline) in
            self.view.replicas.iter().flat_map(|replica| &replica.desired.pipelines)
        {
            let most = in_force.entry(name.clone()).or_default();
            *most = pipeline.load.max(*most);
        }
        let now = self.view.t;
        let bounds = &mut self.observer.load_bounds.pipelines;
        for name in in_force.keys() {
            if !bounds.contains_key(name) {
                bounds.insert(name.clone(), LoadBound::default());
            }
        }
        let mut falling = Vec::new();
        for (name, bound) in bounds {
            if !std::mem::take(&mut bound.falls) {
                bound.seen = now;
            }
            let load = in_force.get(name).copied().unwrap_or_default();
            bound.load = bound.load.max(load);
            if bound.load > load {
                bound.falls = true;
                falling.push((name.clone(), load));
            }
        }
        let grace = self.view.profile.ttl_real() * ON_ITS_WAY_MAX;
        for (name, load) in falling {
            let waits = self.view.change_waits(&name);
            let Some(bound) = self.observer.load_bounds.pipelines.get_mut(&name) else { continue };
            if waits {
                // What was in force stays so, and may be granted still.
                bound.seen = now;
            } else if now - bound.seen > grace {
                let nodes = sums.iter().filter(|((of, _), _)| *of == name);
                let sum = nodes.map(|(_, sum)| *sum).max().unwrap_or_default();
                bound.load = load.max(sum.min(bound.load));
            }
        }
    }
}
