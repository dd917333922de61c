//! Pipelines once faults stop: whatever fits is served as it is planned, and each worker knows
//! where its documents go.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::desired::{Desired, Pipeline, Rebalance};
use leasehold_coordinator_core::planner::pipelines::{NodeWish, Part, Rooms, place};
use leasehold_coordinator_core::view::{
    BindingPhase, BindingView, PipelinePhase, PipelineView, ShareView,
};
use leasehold_types::share::{Endpoint, Route};
use leasehold_types::{
    ClusterName, Load, NodeName, PipelineName, ShareKey, StreamKey, WorkerKey, WorkerName,
};

use super::pipelines::{class_of, classes};
use super::world::World;

type Unmet = (&'static str, String);

impl World {
    /// L1, L2 and L3 for pipelines.
    pub(super) fn pipelines_converged(&self, core: &Core) -> Result<(), Unmet> {
        if !self.profile.pipelines {
            return Ok(());
        }
        let desired = self.manifests.desired();
        let views: Vec<_> = core.pipelines(None).collect();
        if !views.iter().map(|view| &view.name).eq(desired.pipelines.keys()) {
            return Err(("L1", "other pipelines are shown than are desired".into()));
        }
        for view in &views {
            match view.phase {
                PipelinePhase::Ready => self.is_served(view, &views, &desired)?,
                PipelinePhase::Pending => {}
                PipelinePhase::Plotted | PipelinePhase::Broken => {
                    return Err((
                        "L1",
                        format!("{} is {}: {}", view.name, view.phase, view.reason),
                    ));
                }
            }
            if waits(view) && self.would_fit(&view.name, &desired) {
                return Err(("L2", format!("{} fits and waits: {}", view.name, view.reason)));
            }
        }
        self.no_stray_shares(&views, &desired)
    }

    /// A Ready pipeline is served: by living workers, with all of its load, by the tokens shown.
    fn is_served(
        &self,
        view: &PipelineView,
        all: &[PipelineView],
        desired: &Desired,
    ) -> Result<(), Unmet> {
        let wanted = &desired.pipelines[&view.name];
        let nodes = view.bindings.iter().map(|binding| (&binding.node, &binding.class));
        let as_desired = wanted.nodes.iter().map(|(name, node)| (name, &node.class));
        let changes = !view.waits.is_empty() || !view.reason.is_empty();
        if !changes && !nodes.eq(as_desired) {
            return Err(("L1", format!("{} is Ready with other nodes", view.name)));
        }
        for binding in &view.bindings {
            let of = format!("{}/{}", view.name, binding.node);
            let sum: Load = binding.shares.iter().map(|share| share.load).sum();
            let indices = binding.shares.iter().map(|share| share.index);
            let each_once = indices.clone().zip(indices.skip(1)).all(|(one, next)| one < next);
            if binding.phase != BindingPhase::Ready || !each_once {
                return Err(("L1", format!("{of} is {}: {:?}", binding.phase, binding.shares)));
            }
            if !changes && sum != wanted.load {
                return Err(("L1", format!("{of}: {sum} of {} is served", wanted.load)));
            }
            for share in &binding.shares {
                let index = share.index;
                let (pipeline, node) = (view.name.clone(), binding.node.clone());
                let key = ShareKey { pipeline, node, index };
                let worker = share.worker.clone();
                let of = WorkerKey { cluster: binding.class.clone(), worker };
                let Some(pod) = self.pod_of(&of) else {
                    return Err(("L1", format!("{key} is at {}, which is gone", share.worker)));
                };
                let held = self.held_share(pod, &key.stream());
                if held != share.token.map(|token| (token, share.load)) {
                    return Err(("L1", format!("{key}: p{pod} holds {held:?}, not {share:?}")));
                }
                if share.draining || share.address != self.pods[pod].address {
                    return Err(("L1", format!("{key} at p{pod}: {share:?}")));
                }
                self.knows_the_way(pod, &key, binding, all)?;
            }
        }
        Ok(())
    }

    /// The worker's way on is just what the coordinator knows to be served.
    fn knows_the_way(
        &self,
        pod: usize,
        key: &ShareKey,
        binding: &BindingView,
        all: &[PipelineView],
    ) -> Result<(), Unmet> {
        let node = &self.pods[pod];
        let holder = node.agent.as_ref().map(|agent| agent.holder.peek(self.local_of_pod(pod)));
        let lease = holder.into_iter().flat_map(|lease| lease.bindings).find(|it| it.key == *key);
        let of = all.iter().find(|view| view.name == key.pipeline);
        let bindings = of.into_iter().flat_map(|view| &view.bindings);
        let route = |name: &NodeName| {
            let next = bindings.clone().find(|binding| binding.node == *name);
            let shares = next.into_iter().flat_map(|binding| &binding.shares);
            Route { node: name.clone(), endpoints: endpoints(shares) }
        };
        let due: Vec<_> = binding.next.iter().map(route).collect();
        match lease {
            Some(lease) if lease.next == due => Ok(()),
            Some(lease) => {
                Err(("L1", format!("{key} at p{pod} goes on to {:?}, not {due:?}", lease.next)))
            }
            None => Err(("L1", format!("p{pod} shows no {key}"))),
        }
    }

    /// Nobody uses a share that is not shown, and nobody has more than it can take.
    fn no_stray_shares(&self, views: &[PipelineView], desired: &Desired) -> Result<(), Unmet> {
        let mut sums: BTreeMap<usize, Load> = BTreeMap::new();
        for ((pod, stream), load) in self.usable_shares() {
            let key = &self.pods[pod].key;
            let shown = ShareKey::of(&stream).is_some_and(|share| {
                let of = views.iter().find(|view| view.name == share.pipeline);
                let bindings = of.into_iter().flat_map(|view| &view.bindings);
                let here = bindings.filter(|it| it.node == share.node && it.class == key.cluster);
                let mut shares = here.flat_map(|binding| &binding.shares);
                shares.any(|it| it.index == share.index && it.worker == key.worker)
            });
            if !shown {
                return Err(("L1", format!("p{pod} uses {stream}, which is not shown")));
            }
            *sums.entry(pod).or_default() += load;
        }
        let above = sums.into_iter().find(|(pod, sum)| {
            let class = class_of(desired, &self.pods[*pod].key.cluster);
            class.is_none_or(|class| *sum > class.capacity)
        });
        above.map_or(Ok(()), |(pod, sum)| Err(("L1", format!("p{pod} has {sum}, too much"))))
    }

    /// Whether the planner finds room for a pipeline as it is desired, beside all others.
    fn would_fit(&self, name: &PipelineName, desired: &Desired) -> bool {
        let wanted = &desired.pipelines[name];
        let names = classes(desired);
        let mut prefers: BTreeMap<&NodeName, Vec<Part>> = BTreeMap::new();
        let mut rooms = Vec::new();
        for class_name in &names {
            let mut workers = self.living();
            workers.retain(|pod| self.pods[*pod].key.cluster == *class_name);
            workers.sort_by(|a, b| self.pods[*a].key.worker.cmp(&self.pods[*b].key.worker));
            let mut used = vec![Load::ZERO; workers.len()];
            for ((pod, stream), load) in self.usable_shares() {
                let Some(worker) = workers.iter().position(|it| *it == pod) else { continue };
                let share = ShareKey::of(&stream).filter(|share| share.pipeline == *name);
                match share.and_then(|share| wanted.nodes.get_key_value(&share.node)) {
                    Some((node, it)) if it.class == *class_name => {
                        let worker = u32::try_from(worker).expect("a few workers");
                        prefers.entry(node).or_default().push(Part { worker, load });
                    }
                    _ => used[worker] += load,
                }
            }
            let class = class_of(desired, class_name).expect("it was listed");
            rooms.push(Rooms::new(class.capacity, class.spread, used));
        }
        wishes(wanted, &names, &prefers).is_some_and(|wishes| place(&mut rooms, &wishes).is_ok())
    }

    /// Whether all shares of a pod find room on others of its class beside all that these have, and
    /// its pipelines are in force as they are desired, with no node that is cut.
    pub(super) fn fits_beside(&self, pod: usize) -> bool {
        let desired = self.manifests.desired();
        let of = &self.pods[pod].key.cluster;
        let Some(class) = class_of(&desired, of) else { return false };
        let waiting = self.waiting_pipelines();
        let rebalances = |class: &ClusterName| {
            class_of(&desired, class).is_some_and(|it| it.rebalance == Rebalance::WhenBlocked)
        };
        // What waits may have others moved for it.
        if !waiting.is_empty() && classes(&desired).iter().any(rebalances) {
            return false;
        }
        // Also since the class's workers could take less: they come together where it is healed.
        let usable = self.usable_shares();
        let shares = usable.keys().map(|(_, stream)| stream);
        let parts = shares.filter_map(ShareKey::of).filter(|it| it.index > 0);
        let cut: BTreeSet<_> = parts.map(|share| share.pipeline).collect();
        let is_plain = |name: &PipelineName| {
            let whole = !waiting.contains(name) && !cut.contains(name);
            let pipeline = desired.pipelines.get(name).filter(|_| whole);
            pipeline.is_some_and(|pipeline| {
                let mut classes = pipeline.nodes.values().map(|node| &node.class);
                classes
                    .all(|it| class_of(&desired, it).is_some_and(|it| pipeline.load <= it.capacity))
            })
        };
        if !self.pipelines_at(pod).iter().all(is_plain) {
            return false;
        }
        let mut workers = self.living();
        workers.retain(|it| self.pods[*it].key.cluster == *of && *it != pod);
        workers.sort_by(|a, b| self.pods[*a].key.worker.cmp(&self.pods[*b].key.worker));
        let mut used = vec![Load::ZERO; workers.len()];
        let mut lost = Vec::new();
        for ((at, stream), load) in usable {
            if at == pod {
                lost.push((stream, load));
            } else if let Some(worker) = workers.iter().position(|it| *it == at) {
                used[worker] += load;
            }
        }
        let mut rooms = [Rooms::new(class.capacity, class.spread, used)];
        let mut fits = lost.iter().map(|(_, load)| {
            place(&mut rooms, &[NodeWish { class: 0, load: *load, prefers: &[] }]).is_ok()
        });
        !lost.is_empty() && fits.all(|fits| fits)
    }

    /// Pipelines that are not served as they are desired.
    pub(super) fn waiting_pipelines(&self) -> Vec<PipelineName> {
        let core = self.true_leader().and_then(|(leader, _)| self.replicas[leader].core.as_ref());
        let views = core.into_iter().flat_map(|core| core.pipelines(None));
        views.filter(waits).map(|view| view.name).collect()
    }

    /// The pipelines of which a pod's agent holds shares.
    pub(super) fn pipelines_at(&self, pod: usize) -> Vec<PipelineName> {
        let disk = self.pods[pod].disk.borrow();
        let shares = disk.memory.streams.keys().filter_map(ShareKey::of);
        shares.map(|share| share.pipeline).collect()
    }

    /// The pipelines of which the leader has chosen a pod's worker for a share.
    pub(super) fn pipelines_planned_on(&self, pod: usize) -> Vec<PipelineName> {
        let Some((leader, _)) = self.true_leader() else { return Vec::new() };
        let Some(core) = self.replicas[leader].core.as_ref() else { return Vec::new() };
        let key = &self.pods[pod].key;
        let mine = core.pipelines(None).filter(|pipeline| {
            pipeline.bindings.iter().any(|binding| {
                binding.class == key.cluster
                    && binding.shares.iter().any(|share| share.worker == key.worker)
            })
        });
        mine.map(|pipeline| pipeline.name).collect()
    }

    /// The living pod of this worker.
    pub(super) fn pod_of(&self, key: &WorkerKey) -> Option<usize> {
        self.living().into_iter().find(|pod| self.pods[*pod].key == *key)
    }

    fn held_share(&self, pod: usize, stream: &StreamKey) -> Option<(leasehold_types::Token, Load)> {
        let disk = self.pods[pod].disk.borrow();
        let held = disk.memory.streams.get(stream)?;
        Some((held.token, held.load?))
    }
}

/// Who serves a node: each worker that has applied its shares, once.
fn endpoints<'a>(shares: impl Iterator<Item = &'a ShareView>) -> Vec<Endpoint> {
    let mut endpoints: BTreeMap<&WorkerName, Endpoint> = BTreeMap::new();
    for share in shares.filter(|share| share.applied) {
        let endpoint = endpoints.entry(&share.worker).or_insert_with(|| Endpoint {
            worker: share.worker.clone(),
            address: share.address.clone(),
            load: Load::ZERO,
            draining: share.draining,
        });
        endpoint.load += share.load;
    }
    endpoints.into_values().collect()
}

/// Whether it waits for workers: whole, or a change of it.
fn waits(view: &PipelineView) -> bool {
    view.phase == PipelinePhase::Pending || !view.waits.is_empty()
}

/// What its nodes want; none where one of its classes is missing.
fn wishes<'a>(
    pipeline: &Pipeline,
    classes: &[ClusterName],
    prefers: &'a BTreeMap<&NodeName, Vec<Part>>,
) -> Option<Vec<NodeWish<'a>>> {
    let wish = |(name, node): (&NodeName, &leasehold_coordinator_core::desired::Node)| {
        let class = classes.iter().position(|class| *class == node.class)?;
        let prefers = prefers.get(name).map_or(&[][..], Vec::as_slice);
        Some(NodeWish { class, load: pipeline.load, prefers })
    };
    pipeline.nodes.iter().map(wish).collect()
}
