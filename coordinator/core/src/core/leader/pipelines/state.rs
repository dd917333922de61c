//! The state of pipelines. Invariant: `worker_shares` has exactly the shares that count in the
//! plan: those of pipelines in force, and those that agents have reported while their pipeline is
//! being recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::share::Endpoint;
use leasehold_types::{ClusterName, Load, NodeName, PipelineName, ShareKey, WorkerKey, WorkerName};

use crate::core::leader::planned_lease::PlannedLease;
use crate::desired::Pipeline;
use crate::view::{BindingPhase, PipelinePhase};

/// All pipelines of a term.
#[derive(Clone, Debug, Default)]
pub(in crate::core::leader) struct Pipelines {
    pub(super) all: BTreeMap<PipelineName, PipelineState>,
    /// The shares that count in the plan, by worker.
    pub(super) worker_shares: BTreeMap<WorkerKey, WorkerShares>,
    /// Pipelines of which agents may still report shares; new pipelines are among them.
    pub(super) recovering: BTreeSet<PipelineName>,
    /// Some of them may be recovered now.
    pub(super) recheck_recovery: bool,
    /// Pending pipelines, and those with a change that is not in force yet.
    pub(super) waiting: BTreeSet<PipelineName>,
    /// Broken ones.
    pub(super) broken: BTreeSet<PipelineName>,
    /// How many Broken pipelines each class has to serve: they are placed before others.
    pub(super) reserved: BTreeMap<ClusterName, usize>,
    /// The loads of the shares that Broken pipelines have kept, by worker.
    pub(super) outstanding: BTreeMap<WorkerKey, Load>,
    /// Draining workers with shares.
    pub(super) draining: BTreeSet<WorkerKey>,
    /// The waiting pipelines are to be placed again.
    pub(super) recheck_waiting: bool,
    /// The clusters in which nothing is planned yet.
    pub(super) held: BTreeSet<ClusterName>,
    /// Bindings that have changed since they were last observed.
    pub(super) changed: BTreeSet<(PipelineName, NodeName)>,
    /// Bindings whose change no notice has named yet.
    pub(super) unnotified: BTreeSet<(PipelineName, NodeName)>,
}

/// The planned shares of one worker.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerShares {
    pub(super) load: Load,
    pub(super) shares: BTreeSet<ShareKey>,
}

/// A pipeline.
#[derive(Clone, Debug)]
pub(super) struct PipelineState {
    /// Its desired spec.
    pub(super) spec: Arc<Pipeline>,
    /// Its nodes in force, or in force when it broke.
    pub(super) nodes: BTreeMap<NodeName, NodeState>,
    /// None before the first notice about it.
    pub(super) phase: Option<PipelinePhase>,
    /// Its workers are chosen.
    pub(super) in_force: bool,
    /// The desired spec is not in force.
    pub(super) changes: bool,
    /// The classes that it waits for, and how many workers of each.
    pub(super) waits: Vec<(ClusterName, u32)>,
    /// Why it is in its state, or the workers that its change waits for.
    pub(super) reason: String,
    /// The classes that wait for it to be healed.
    pub(super) reserves: BTreeSet<ClusterName>,
    /// While it is Broken: the loads of its shares that count as outstanding.
    pub(super) outstanding: Vec<(WorkerKey, Load)>,
}

/// A node of a pipeline and its binding.
#[derive(Clone, Debug)]
pub(super) struct NodeState {
    pub(super) class: ClusterName,
    pub(super) load: Load,
    pub(super) next: BTreeSet<NodeName>,
    /// None before the first notice about it.
    pub(super) phase: Option<BindingPhase>,
    /// Its shares by index.
    pub(super) shares: BTreeMap<u32, PlannedShare>,
    /// Its workers, as the nodes before it know them; none before the first observation.
    pub(super) endpoints: Option<Arc<[Endpoint]>>,
}

/// A share and its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedShare {
    pub(super) on: WorkerName,
    pub(super) load: Load,
}

impl Pipelines {
    /// The planned lease of a share; none if its node is in no plan.
    pub(in crate::core::leader) fn planned_lease(
        &self,
        key: &ShareKey,
    ) -> Option<PlannedLease<'_>> {
        let state = self.all.get(&key.pipeline)?;
        let node = state.nodes.get(&key.node)?;
        let counts = self.counts(&key.pipeline, state);
        let share = node.shares.get(&key.index).filter(|_| counts);
        let broken = state.phase == Some(PipelinePhase::Broken);
        Some(PlannedLease {
            cluster: &node.class,
            on: share.map(|share| &share.on),
            load: share.map(|share| share.load),
            stays: broken || self.recovering.contains(&key.pipeline),
            pinned: false,
        })
    }

    /// Adopts a share that an agent has reported into the plan, while its pipeline is being
    /// recovered.
    pub(in crate::core::leader) fn adopt(
        &mut self,
        key: &ShareKey,
        worker: &WorkerKey,
        load: Load,
    ) {
        if !self.recovering.contains(&key.pipeline) {
            return;
        }
        let Some(node) = self.node_mut(&key.pipeline, &key.node) else { return };
        if node.class != worker.cluster {
            return;
        }
        let share = PlannedShare { on: worker.worker.clone(), load };
        let old = node.shares.insert(key.index, share.clone());
        if let Some(old) = old {
            self.uncount(key, &worker.cluster, &old);
        }
        self.count(key, &worker.cluster, &share);
    }

    /// A reported share has lost its worker again.
    pub(super) fn disown(&mut self, key: &ShareKey) {
        let Some(node) = self.node_mut(&key.pipeline, &key.node) else { return };
        let class = node.class.clone();
        if let Some(share) = node.shares.remove(&key.index) {
            self.uncount(key, &class, &share);
        }
    }

    /// Whether its shares count in the plan.
    pub(super) fn counts(&self, name: &PipelineName, state: &PipelineState) -> bool {
        state.in_force || self.recovering.contains(name)
    }

    pub(super) fn node_mut(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
    ) -> Option<&mut NodeState> {
        self.all.get_mut(pipeline)?.nodes.get_mut(node)
    }

    pub(super) fn count(&mut self, key: &ShareKey, class: &ClusterName, share: &PlannedShare) {
        let worker = WorkerKey { cluster: class.clone(), worker: share.on.clone() };
        let worker_shares = self.worker_shares.entry(worker).or_default();
        if worker_shares.shares.insert(key.clone()) {
            worker_shares.load += share.load;
        }
    }

    pub(super) fn uncount(&mut self, key: &ShareKey, class: &ClusterName, share: &PlannedShare) {
        let worker = WorkerKey { cluster: class.clone(), worker: share.on.clone() };
        let Some(worker_shares) = self.worker_shares.get_mut(&worker) else { return };
        if worker_shares.shares.remove(key) {
            worker_shares.load -= share.load;
        }
        if worker_shares.shares.is_empty() {
            self.worker_shares.remove(&worker);
        }
    }

    /// Counts all of a pipeline's shares in the plan, or takes all of them out.
    pub(super) fn count_all(&mut self, name: &PipelineName, counts: bool) {
        let Some(state) = self.all.get(name) else { return };
        for (key, class, share) in state.shares(name) {
            if counts {
                self.count(&key, &class, &share);
            } else {
                self.uncount(&key, &class, &share);
            }
        }
    }

    /// A pipeline breaks: its shares count as outstanding until it is placed again.
    pub(super) fn keep_outstanding(&mut self, name: &PipelineName) {
        self.clear_outstanding(name);
        let Some(state) = self.all.get_mut(name) else { return };
        let shares = state.shares(name).into_iter();
        let held =
            shares.map(|(_, cluster, share)| (WorkerKey { cluster, worker: share.on }, share.load));
        state.outstanding = held.collect();
        for (worker, load) in &state.outstanding {
            *self.outstanding.entry(worker.clone()).or_default() += *load;
        }
    }

    /// A pipeline is no longer Broken.
    pub(super) fn clear_outstanding(&mut self, name: &PipelineName) {
        let Some(state) = self.all.get_mut(name) else { return };
        for (worker, load) in std::mem::take(&mut state.outstanding) {
            let Some(sum) = self.outstanding.get_mut(&worker) else { continue };
            *sum -= load;
            if *sum == Load::ZERO {
                self.outstanding.remove(&worker);
            }
        }
    }

    /// The planned load of a worker.
    pub(super) fn load_of(&self, worker: &WorkerKey) -> Load {
        self.worker_shares.get(worker).map_or(Load::ZERO, |worker_shares| worker_shares.load)
    }

    /// The planned shares of one class's workers, by name.
    pub(super) fn shares_by_worker<'a>(
        &'a self,
        class: &'a ClusterName,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a WorkerShares)> {
        let first = WorkerKey { cluster: class.clone(), worker: WorkerName::first() };
        self.worker_shares.range(first..).take_while(move |(key, _)| key.cluster == *class)
    }

    /// Takes a pipeline of another leader over, as it is there; how many shares it has.
    pub(super) fn insert_copy(
        &mut self,
        name: &PipelineName,
        state: &PipelineState,
        recovers: bool,
    ) -> usize {
        for (worker, load) in &state.outstanding {
            *self.outstanding.entry(worker.clone()).or_default() += *load;
        }
        // The index counts them again.
        let state = PipelineState { reserves: BTreeSet::new(), ..state.clone() };
        let shares = state.nodes.values().map(|node| node.shares.len()).sum();
        let counts = recovers || state.in_force;
        if recovers {
            self.recovering.insert(name.clone());
        }
        self.all.insert(name.clone(), state);
        if counts {
            self.count_all(name, true);
        }
        self.update_indexes(name);
        shares
    }

    /// Updates the sets of pipelines by state.
    pub(super) fn update_indexes(&mut self, name: &PipelineName) {
        let Some(state) = self.all.get_mut(name) else {
            self.broken.remove(name);
            self.waiting.remove(name);
            self.recovering.remove(name);
            return;
        };
        let judged = !self.recovering.contains(name);
        let broken = state.phase == Some(PipelinePhase::Broken);
        let waits = judged && !broken && (!state.in_force || state.changes);
        let reserves = state.classes().filter(|_| broken).cloned().collect();
        let before = std::mem::replace(&mut state.reserves, reserves);
        for class in &state.reserves {
            *self.reserved.entry(class.clone()).or_default() += 1;
        }
        self.unreserve(before);
        let sets = [(&mut self.broken, broken), (&mut self.waiting, waits)];
        for (set, is_in) in sets {
            if is_in {
                set.insert(name.clone());
            } else {
                set.remove(name);
            }
        }
    }

    /// A pipeline is no longer Broken, or has other classes: others may have waited for that.
    pub(super) fn unreserve(&mut self, classes: BTreeSet<ClusterName>) {
        for class in classes {
            let Some(count) = self.reserved.get_mut(&class) else { continue };
            *count -= 1;
            if *count == 0 {
                self.reserved.remove(&class);
                self.recheck_waiting = true;
            }
        }
    }

    /// Marks a binding as changed: it is observed again, and a notice names it.
    pub(super) fn note(&mut self, pipeline: &PipelineName, node: &NodeName) {
        self.changed.insert((pipeline.clone(), node.clone()));
        self.unnotified.insert((pipeline.clone(), node.clone()));
    }

    /// Has a share's binding observed again. A notice follows only if something has changed.
    pub(super) fn observe_again(&mut self, share: &ShareKey) {
        self.changed.insert((share.pipeline.clone(), share.node.clone()));
    }

    /// Whether any binding is to be observed.
    pub(in crate::core::leader) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }
}

impl PipelineState {
    /// A pipeline that no notice has named.
    pub(super) fn new(spec: Arc<Pipeline>) -> Self {
        let nodes = spec.nodes.iter();
        let nodes = nodes.map(|(name, node)| (name.clone(), NodeState::new(node, spec.load)));
        Self {
            nodes: nodes.collect(),
            spec,
            phase: None,
            in_force: false,
            changes: false,
            waits: Vec::new(),
            reason: String::new(),
            reserves: BTreeSet::new(),
            outstanding: Vec::new(),
        }
    }

    /// The load of each node that its workers serve: another one is desired while a change waits.
    pub(super) fn load_in_force(&self) -> Load {
        let served = self.nodes.values().next().filter(|_| self.in_force);
        served.map_or(self.spec.load, |node| node.load)
    }

    /// All its shares, with their classes.
    pub(super) fn shares(&self, name: &PipelineName) -> Vec<(ShareKey, ClusterName, PlannedShare)> {
        let nodes = self.nodes.iter();
        let shares = nodes.flat_map(|(node, state)| {
            state.shares.iter().map(|(index, share)| {
                let key = ShareKey { pipeline: name.clone(), node: node.clone(), index: *index };
                (key, state.class.clone(), share.clone())
            })
        });
        shares.collect()
    }

    /// The classes of its desired nodes.
    pub(super) fn classes(&self) -> impl Iterator<Item = &ClusterName> {
        self.spec.nodes.values().map(|node| &node.class)
    }
}

impl NodeState {
    pub(super) fn new(node: &crate::desired::Node, load: Load) -> Self {
        Self {
            class: node.class.clone(),
            load,
            next: node.next.clone(),
            phase: None,
            shares: BTreeMap::new(),
            endpoints: None,
        }
    }

    /// The load that its shares take.
    pub(super) fn served(&self) -> Load {
        self.shares.values().map(|share| share.load).sum()
    }

    /// Whether its shares take its whole load.
    pub(super) fn is_whole(&self) -> bool {
        !self.shares.is_empty() && self.served() == self.load
    }

    /// Its shares for these parts of its load: a worker that has a share keeps the index, and new
    /// shares take the first free ones.
    pub(super) fn assigned(&self, parts: &[(WorkerName, Load)]) -> BTreeMap<u32, PlannedShare> {
        let mut shares = BTreeMap::new();
        let mut new = Vec::new();
        for (worker, load) in parts {
            let has = self.shares.iter().filter(|(_, share)| share.on == *worker);
            let has: Vec<_> = has.map(|(index, share)| (*index, share.load)).collect();
            let share = PlannedShare { on: worker.clone(), load: *load };
            let same = has.iter().find(|(_, had)| had == load).or(has.first());
            if has.len() > 1 && has.iter().map(|(_, load)| *load).sum::<Load>() == *load {
                let kept = |(index, load)| (index, PlannedShare { load, ..share.clone() });
                shares.extend(has.into_iter().map(kept));
            } else if let Some((index, _)) = same {
                shares.insert(*index, share);
            } else {
                new.push(share);
            }
        }
        let mut index = 0;
        for share in new {
            while shares.contains_key(&index) {
                index += 1;
            }
            shares.insert(index, share);
        }
        shares
    }
}
