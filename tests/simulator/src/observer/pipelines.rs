//! Pipelines: the states that a leader reports follow one another and rest on what agents have
//! applied (S15), and once faults have ended, every pipeline that fits is served (L1, L2).

use std::collections::{BTreeMap, BTreeSet};

use leasehold_agent_core::NextNode;
use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::desired::{Desired, Pipeline, Rebalance};
use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::planner::pipelines::{FreeCapacity, NodeRequest, Part, place};
use leasehold_coordinator_core::view::{
    BindingPhase, BindingView, PipelinePhase, PipelineView, ShareView,
};
use leasehold_types::share::Endpoint;
use leasehold_types::{
    ClusterName, Load, NodeName, PipelineName, ShareKey, StreamKey, WorkerKey, WorkerName,
};

use crate::observer::Checks;
use crate::system::View;
use crate::system::pipelines::{class_of, classes};

type Unmet = (&'static str, String);

/// The states that one leader has reported in its term.
#[derive(Debug, Default)]
pub(crate) struct ReportedStates {
    pipelines: BTreeMap<PipelineName, PipelinePhase>,
    bindings: BTreeMap<(PipelineName, NodeName), BindingPhase>,
}

impl ReportedStates {
    fn bindings_of(&self, pipeline: &PipelineName) -> impl Iterator<Item = BindingPhase> {
        let all = self.bindings.iter().filter(move |((of, _), _)| of == pipeline);
        all.map(|(_, phase)| *phase)
    }

    /// What is wrong with a binding's new state, if anything is.
    fn binding(
        &mut self,
        key: (PipelineName, NodeName),
        from: Option<BindingPhase>,
        to: Option<BindingPhase>,
    ) -> Option<String> {
        let before = self.bindings.get(&key).copied();
        let wrong = before != from || from == to;
        let wrong = wrong.then(|| format!("{key:?}: from {from:?} to {to:?} after {before:?}"));
        match to {
            Some(to) => self.bindings.insert(key, to),
            None => self.bindings.remove(&key),
        };
        wrong
    }

    /// What is wrong with a pipeline's new state, if anything is.
    fn pipeline(
        &mut self,
        name: &PipelineName,
        from: Option<PipelinePhase>,
        to: Option<PipelinePhase>,
    ) -> Option<String> {
        let before = self.pipelines.get(name).copied();
        let bindings: Vec<_> = self.bindings_of(name).collect();
        let all = |wanted: &[BindingPhase]| bindings.iter().all(|phase| wanted.contains(phase));
        let agrees = match to {
            None => bindings.is_empty(),
            Some(PipelinePhase::Pending) => all(&[BindingPhase::Unset]),
            Some(PipelinePhase::Plotted) => {
                all(&[BindingPhase::Pending, BindingPhase::Ready]) && !all(&[BindingPhase::Ready])
            }
            Some(PipelinePhase::Ready) => all(&[BindingPhase::Ready]),
            Some(PipelinePhase::Broken) => all(&[BindingPhase::DeadEnd, BindingPhase::Unset]),
        };
        // A leader reports the same state again if its reason changes.
        let follows = before == from && to.or(from).is_some();
        match to {
            Some(to) => self.pipelines.insert(name.clone(), to),
            None => self.pipelines.remove(name),
        };
        let wrong = !agrees || !follows;
        wrong.then(|| format!("{name}: from {from:?} to {to:?} after {before:?} with {bindings:?}"))
    }
}

impl View<'_> {
    /// L1, L2 and L3 for pipelines.
    pub(crate) fn pipelines_converged(&self, core: &Core) -> Result<(), Unmet> {
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
                self.has_current_routes(pod, &key, binding, all)?;
            }
        }
        Ok(())
    }

    /// The worker's routes are just what the coordinator knows to be served.
    fn has_current_routes(
        &self,
        pod: usize,
        key: &ShareKey,
        binding: &BindingView,
        all: &[PipelineView],
    ) -> Result<(), Unmet> {
        let node = &self.pods[pod];
        let holder = node.agent.as_ref().map(|agent| agent.holder.peek(self.local_of_pod(pod)));
        let lease =
            holder.into_iter().flat_map(|lease| lease.bindings).find(|binding| binding.key == *key);
        let of = all.iter().find(|view| view.name == key.pipeline);
        let bindings = of.into_iter().flat_map(|view| &view.bindings);
        let next_node = |name: &NodeName| {
            let next = bindings.clone().find(|binding| binding.node == *name);
            let shares = next.into_iter().flat_map(|binding| &binding.shares);
            NextNode { node: name.clone(), endpoints: endpoints(shares).into() }
        };
        let due: Vec<_> = binding.next.iter().map(next_node).collect();
        match lease {
            Some(lease) if lease.next == due => Ok(()),
            Some(lease) => Err((
                "L1",
                format!("{key} at p{pod} has the next workers {:?}, expected {due:?}", lease.next),
            )),
            None => Err(("L1", format!("p{pod} shows no {key}"))),
        }
    }

    /// No pod uses a share that is not shown, and none has more than its capacity.
    fn no_stray_shares(&self, views: &[PipelineView], desired: &Desired) -> Result<(), Unmet> {
        let mut sums: BTreeMap<usize, Load> = BTreeMap::new();
        for ((pod, stream), load) in self.usable_shares() {
            let key = &self.pods[pod].key;
            let shown = ShareKey::of(&stream).is_some_and(|share| {
                let of = views.iter().find(|view| view.name == share.pipeline);
                let bindings = of.into_iter().flat_map(|view| &view.bindings);
                let here = bindings
                    .filter(|binding| binding.node == share.node && binding.class == key.cluster);
                let mut shares = here.flat_map(|binding| &binding.shares);
                shares.any(|view| view.index == share.index && view.worker == key.worker)
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
        let mut free = Vec::new();
        for class_name in &names {
            let mut workers = self.living();
            workers.retain(|pod| self.pods[*pod].key.cluster == *class_name);
            workers.sort_by(|a, b| self.pods[*a].key.worker.cmp(&self.pods[*b].key.worker));
            let mut used = vec![Load::ZERO; workers.len()];
            for ((pod, stream), load) in self.usable_shares() {
                let Some(worker) = workers.iter().position(|worker| *worker == pod) else {
                    continue;
                };
                let share = ShareKey::of(&stream).filter(|share| share.pipeline == *name);
                match share.and_then(|share| wanted.nodes.get_key_value(&share.node)) {
                    Some((name, node)) if node.class == *class_name => {
                        let worker = u32::try_from(worker).expect("a few workers");
                        prefers.entry(name).or_default().push(Part { worker, load });
                    }
                    _ => used[worker] += load,
                }
            }
            let class = class_of(desired, class_name).expect("it was listed");
            free.push(FreeCapacity::new(class.capacity, class.spread, used));
        }
        wishes(wanted, &names, &prefers).is_some_and(|wishes| place(&mut free, &wishes).is_ok())
    }

    /// Whether all shares of a pod find room on others of its class beside all that these have, and
    /// its pipelines are in force as they are desired, with no node that is cut.
    pub(crate) fn fits_beside(&self, pod: usize) -> bool {
        let desired = self.manifests.desired();
        let of = &self.pods[pod].key.cluster;
        let Some(class) = class_of(&desired, of) else { return false };
        let waiting = self.waiting_pipelines();
        let rebalances = |class: &ClusterName| {
            class_of(&desired, class).is_some_and(|class| class.rebalance == Rebalance::WhenBlocked)
        };
        // A waiting pipeline may move others.
        if !waiting.is_empty() && classes(&desired).iter().any(rebalances) {
            return false;
        }
        // Also since the class's workers could take less: they come together where it is healed.
        let usable = self.usable_shares();
        let shares = usable.keys().map(|(_, stream)| stream);
        let parts = shares.filter_map(ShareKey::of).filter(|share| share.index > 0);
        let cut: BTreeSet<_> = parts.map(|share| share.pipeline).collect();
        let is_unchanged = |name: &PipelineName| {
            let whole = !waiting.contains(name) && !cut.contains(name);
            let pipeline = desired.pipelines.get(name).filter(|_| whole);
            pipeline.is_some_and(|pipeline| {
                let mut classes = pipeline.nodes.values().map(|node| &node.class);
                classes.all(|name| {
                    class_of(&desired, name).is_some_and(|class| pipeline.load <= class.capacity)
                })
            })
        };
        if !self.pipelines_at(pod).iter().all(is_unchanged) {
            return false;
        }
        let mut workers = self.living();
        workers.retain(|worker| self.pods[*worker].key.cluster == *of && *worker != pod);
        workers.sort_by(|a, b| self.pods[*a].key.worker.cmp(&self.pods[*b].key.worker));
        let mut used = vec![Load::ZERO; workers.len()];
        let mut lost = Vec::new();
        for ((at, stream), load) in usable {
            if at == pod {
                lost.push((stream, load));
            } else if let Some(worker) = workers.iter().position(|worker| *worker == at) {
                used[worker] += load;
            }
        }
        let mut free = [FreeCapacity::new(class.capacity, class.spread, used)];
        let mut fits = lost.iter().map(|(_, load)| {
            place(&mut free, &[NodeRequest { class: 0, load: *load, prefers: &[] }]).is_ok()
        });
        !lost.is_empty() && fits.all(|fits| fits)
    }

    /// Pipelines that are not served as they are desired.
    pub(crate) fn waiting_pipelines(&self) -> Vec<PipelineName> {
        let core = self.true_leader().and_then(|(leader, _)| self.replicas[leader].core.as_ref());
        let views = core.into_iter().flat_map(|core| core.pipelines(None));
        views.filter(waits).map(|view| view.name).collect()
    }

    /// The pipelines of which a pod's agent holds shares.
    pub(crate) fn pipelines_at(&self, pod: usize) -> Vec<PipelineName> {
        let disk = self.pods[pod].disk.borrow();
        let shares = disk.memory.streams.keys().filter_map(ShareKey::of);
        shares.map(|share| share.pipeline).collect()
    }

    /// The pipelines of which the leader has chosen a pod's worker for a share.
    pub(crate) fn pipelines_planned_on(&self, pod: usize) -> Vec<PipelineName> {
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

    fn held_share(&self, pod: usize, stream: &StreamKey) -> Option<(leasehold_types::Token, Load)> {
        let disk = self.pods[pod].disk.borrow();
        let held = disk.memory.streams.get(stream)?;
        Some((held.token, held.load?))
    }
}

impl Checks<'_> {
    /// Follows the states of pipelines that a replica reports.
    pub(crate) fn observe_state(&mut self, replica: usize, notice: &Notice) {
        let reported = self.observer.reported_states.entry(replica).or_default();
        let wrong = match notice {
            Notice::Elected(_) => {
                *reported = ReportedStates::default();
                None
            }
            Notice::Binding { pipeline, node, from, to } => {
                reported.binding((pipeline.clone(), node.clone()), *from, *to)
            }
            Notice::Pipeline { pipeline, from, to, .. } => {
                let wrong = reported.pipeline(pipeline, *from, *to);
                self.coverage.hit(name_of(*from, *to));
                let ready = *to == Some(PipelinePhase::Ready);
                wrong.or_else(|| ready.then(|| self.not_ready(replica, pipeline))?)
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.fail("S15", || format!("c{replica} reports {wrong}"));
        }
    }

    /// Why a pipeline that is reported Ready is not served, if it is not.
    fn not_ready(&self, replica: usize, pipeline: &PipelineName) -> Option<String> {
        self.view.true_leader().filter(|(leader, _)| *leader == replica)?;
        let view = self.view.replicas[replica].core.as_ref()?.pipeline(pipeline)?;
        // The state may have changed since the report.
        (view.phase == PipelinePhase::Ready).then_some(())?;
        let mut shares = view
            .bindings
            .iter()
            .flat_map(|binding| binding.shares.iter().map(move |share| (binding, share)));
        shares.find_map(|(binding, share)| {
            // What is given back is listed, too.
            (!share.draining).then_some(())?;
            let (pipeline, node) = (pipeline.clone(), binding.node.clone());
            let key = ShareKey { pipeline, node, index: share.index };
            let taken = self.observer.token_taken(&key.stream());
            let is_so = share.applied && share.token.is_some() && share.token == taken;
            (!is_so).then(|| format!("{key} as Ready: {share:?}, taken was {taken:?}"))
        })
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
pub(crate) fn waits(view: &PipelineView) -> bool {
    view.phase == PipelinePhase::Pending || !view.waits.is_empty()
}

/// What its nodes want; `None` if one of its classes is missing.
fn wishes<'a>(
    pipeline: &Pipeline,
    classes: &[ClusterName],
    prefers: &'a BTreeMap<&NodeName, Vec<Part>>,
) -> Option<Vec<NodeRequest<'a>>> {
    let wish = |(name, node): (&NodeName, &leasehold_coordinator_core::desired::Node)| {
        let class = classes.iter().position(|class| *class == node.class)?;
        let prefers = prefers.get(name).map_or(&[][..], Vec::as_slice);
        Some(NodeRequest { class, load: pipeline.load, prefers })
    };
    pipeline.nodes.iter().map(wish).collect()
}

fn name_of(from: Option<PipelinePhase>, to: Option<PipelinePhase>) -> &'static str {
    use PipelinePhase::{Broken, Pending, Plotted, Ready};
    match (from, to) {
        (None, Some(Pending)) => "pipeline: new, Pending",
        (None, Some(Plotted)) => "pipeline: adopted, Plotted",
        (None, Some(Ready)) => "pipeline: adopted, Ready",
        (None, Some(Broken)) => "pipeline: adopted, Broken",
        (Some(Pending), Some(Plotted)) => "pipeline: Pending to Plotted",
        (Some(Plotted), Some(Ready)) => "pipeline: Plotted to Ready",
        (Some(Plotted), Some(Pending)) => "pipeline: Plotted to Pending",
        (Some(Plotted), Some(Broken)) => "pipeline: Plotted to Broken",
        (Some(Ready), Some(Plotted)) => "pipeline: Ready to Plotted",
        (Some(Ready), Some(Pending)) => "pipeline: Ready to Pending",
        (Some(Ready), Some(Broken)) => "pipeline: Ready to Broken",
        (Some(Broken), Some(Plotted)) => "pipeline: Broken to Plotted",
        (Some(Broken), Some(Pending)) => "pipeline: Broken to Pending",
        (Some(Broken), Some(Ready)) => "pipeline: Broken to Ready",
        (Some(_), None) => "pipeline: deleted",
        (from, to) if from == to => "pipeline: for another reason",
        _ => "pipeline: another change",
    }
}
