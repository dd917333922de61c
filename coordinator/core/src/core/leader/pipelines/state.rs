//! The states of pipelines, their nodes and their shares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::{ClusterName, Load, NodeName, PipelineName, ShareKey, WorkerKey, WorkerName};

use super::Pipelines;
use crate::desired::{Node, Pipeline};
use crate::sent_tables::NodeTable;
use crate::view::{BindingPhase, PipelinePhase};

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
    pub(super) table: Option<NodeTable>,
}

/// A share and its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedShare {
    pub(super) on: WorkerName,
    pub(super) load: Load,
}

impl Pipelines {
    pub(super) fn node_mut(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
    ) -> Option<&mut NodeState> {
        self.all.get_mut(pipeline)?.nodes.get_mut(node)
    }

    /// Counts all of a pipeline's shares in the plan, or takes all of them out.
    pub(super) fn count_all(&mut self, name: &PipelineName, counts: bool) {
        let Some(state) = self.all.get(name) else { return };
        for (key, class, share) in state.shares(name) {
            if counts {
                self.shares.add(&key, class, share);
            } else {
                self.shares.remove(&key, class, share);
            }
        }
    }

    /// Updates the sets of pipelines by state.
    pub(super) fn update_indexes(&mut self, name: &PipelineName) {
        let Some(state) = self.all.get(name) else {
            self.recheck_waiting |= self.broken.remove(name);
            self.waiting.remove(name);
            self.recovering.remove(name);
            return;
        };
        let broken = state.phase == Some(PipelinePhase::Broken);
        self.recheck_waiting |= if broken {
            self.broken.insert(name, state.classes().cloned().collect())
        } else {
            self.broken.remove(name)
        };
        let judged = !self.recovering.contains(name);
        if judged && !broken && (!state.in_force || state.changes) {
            self.waiting.insert(name.clone());
        } else {
            self.waiting.remove(name);
        }
    }
}

impl PipelineState {
    /// A pipeline that no notice has named.
    pub(super) fn new(spec: Arc<Pipeline>) -> Self {
        Self {
            nodes: nodes_of(&spec),
            spec,
            phase: None,
            in_force: false,
            changes: false,
            waits: Vec::new(),
            reason: String::new(),
        }
    }

    /// Replaces its nodes by the desired ones, without shares. The bindings keep their phases.
    /// Returns the nodes that it had.
    pub(super) fn clear_nodes(&mut self) -> BTreeMap<NodeName, NodeState> {
        let old = std::mem::replace(&mut self.nodes, nodes_of(&self.spec));
        for (name, node) in &mut self.nodes {
            node.phase = old.get(name).and_then(|before| before.phase);
        }
        old
    }

    /// Whether the desired spec is in force.
    pub(super) fn is_as_desired(&self) -> bool {
        let same = |(name, node): (_, &Node)| {
            self.nodes.get(name).is_some_and(|before| {
                before.class == node.class
                    && before.next == node.next
                    && before.load == self.spec.load
            })
        };
        self.nodes.len() == self.spec.nodes.len() && self.spec.nodes.iter().all(same)
    }

    /// The load of each node that its workers serve: another one is desired while a change waits.
    pub(super) fn load_in_force(&self) -> Load {
        let served = self.nodes.values().next().filter(|_| self.in_force);
        served.map_or(self.spec.load, |node| node.load)
    }

    /// All its shares, with their classes.
    pub(super) fn shares<'a>(
        &'a self,
        name: &'a PipelineName,
    ) -> impl Iterator<Item = (ShareKey, &'a ClusterName, &'a PlannedShare)> {
        self.nodes.iter().flat_map(move |(node, state)| {
            let key = |index: &u32| ShareKey {
                pipeline: name.clone(),
                node: node.clone(),
                index: *index,
            };
            state.shares.iter().map(move |(index, share)| (key(index), &state.class, share))
        })
    }

    /// The worker and the load of each share.
    pub(super) fn share_owners(&self) -> impl Iterator<Item = (WorkerKey, Load)> {
        self.nodes
            .values()
            .flat_map(|node| node.shares.values().map(|share| (node.worker(share), share.load)))
    }

    /// The classes of its desired nodes.
    pub(super) fn classes(&self) -> impl Iterator<Item = &ClusterName> {
        self.spec.nodes.values().map(|node| &node.class)
    }
}

/// The desired nodes of a pipeline, without shares.
fn nodes_of(spec: &Pipeline) -> BTreeMap<NodeName, NodeState> {
    let nodes = spec.nodes.iter();
    nodes.map(|(name, node)| (name.clone(), NodeState::new(node, spec.load))).collect()
}

impl NodeState {
    pub(super) fn new(node: &Node, load: Load) -> Self {
        Self {
            class: node.class.clone(),
            load,
            next: node.next.clone(),
            phase: None,
            shares: BTreeMap::new(),
            table: None,
        }
    }

    /// The worker of a share.
    pub(super) fn worker(&self, share: &PlannedShare) -> WorkerKey {
        WorkerKey { cluster: self.class.clone(), worker: share.on.clone() }
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
