//! Plotting: which workers serve a pipeline, decided for all its nodes together or for none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{Load, NodeName, PipelineName, ShareKey, StreamKey, WorkerName};

use super::Pipelines;
use super::class_capacity::{ClassCapacity, MissingWorkers, PlannedNode};
use super::phases::waits_for;
use super::routes::leases_of;
use super::state::{NodeState, PipelineState};
use crate::core::leader::facts::Facts;
use crate::view::{BindingPhase, PipelinePhase};

/// The most waiting pipelines that one pass tries to make room for: each try takes some
/// milliseconds for a class with thousands of workers, and nothing else is planned meanwhile.
const REBALANCES_MAX: usize = 16;

/// The parts of a node's load.
pub(super) type NodeParts = Vec<(WorkerName, Load)>;

impl Pipelines {
    /// Places the pipelines that wait for workers: the largest first, then by name. One that does
    /// not fit does not delay smaller ones.
    pub(super) fn place_waiting(&mut self, facts: Facts<'_>) {
        let mut names: Vec<_> = self.waiting.iter().cloned().collect();
        names.retain(|name| !self.is_held(name));
        names.sort_by_cached_key(|name| {
            let load = self.all.get(name).map(|state| state.spec.load);
            Reverse(load)
        });
        let mut class_capacity = self.class_capacity_of(names.iter(), facts);
        let mut blocked = Vec::new();
        for name in names {
            let Some(state) = self.all.get(&name) else { continue };
            if state.classes().any(|class| self.broken.reserves(class)) {
                let why = "it waits for broken pipelines to be healed first";
                self.keep_waiting(&name, Vec::new(), why.into(), facts);
                continue;
            }
            let runs = state.in_force;
            let placed = if runs {
                self.change(&name, &mut class_capacity)
            } else {
                self.place_new(&name, &mut class_capacity)
            };
            match placed {
                Ok(chosen) => self.put_in_force(&name, chosen, facts),
                Err(waits) => {
                    let why = waits_for(&waits);
                    self.keep_waiting(&name, waits, why, facts);
                    blocked.extend((!runs).then_some(name));
                }
            }
        }
        self.make_room_for(blocked, &mut class_capacity, facts);
    }

    /// Moves shares of other pipelines for those that fit nowhere, where their classes allow it:
    /// for the smallest first, and for at most `REBALANCES_MAX` in one pass.
    fn make_room_for(
        &mut self,
        blocked: Vec<PipelineName>,
        class_capacity: &mut ClassCapacity,
        facts: Facts<'_>,
    ) {
        let can_be = blocked.into_iter().rev().filter(|name| {
            let state = self.all.get(name);
            state.is_some_and(|state| state.classes().any(|class| class_capacity.rebalances(class)))
        });
        for name in can_be.take(REBALANCES_MAX).collect::<Vec<_>>() {
            let Some(state) = self.all.get(&name) else { continue };
            let (nodes, requests) = node_requests(state, |_| true);
            if let Some(placed) = self.place_with_moves(&requests, class_capacity) {
                self.put_in_force(&name, nodes.into_iter().zip(placed).collect(), facts);
            }
        }
    }

    fn keep_waiting(
        &mut self,
        name: &PipelineName,
        waits: MissingWorkers,
        why: String,
        facts: Facts<'_>,
    ) {
        let Some(state) = self.all.get(name) else { return };
        let phase = state.phase.filter(|_| state.in_force).unwrap_or(PipelinePhase::Pending);
        let wanted = if state.spec.load == state.load_in_force() {
            String::new()
        } else {
            format!(" ({} documents per second)", state.spec.load)
        };
        if !state.in_force {
            self.set_bindings(name, BindingPhase::Unset);
        }
        let why = match phase {
            PipelinePhase::Pending => why,
            _ => format!("what is desired now{wanted} is not in force: {why}"),
        };
        self.set_pipeline(name, phase, why, waits, facts);
    }

    /// Puts a pipeline in force as it is desired. `chosen` has the parts of the nodes that were
    /// placed again; all other nodes keep their shares.
    pub(super) fn put_in_force(
        &mut self,
        name: &PipelineName,
        mut chosen: BTreeMap<NodeName, NodeParts>,
        facts: Facts<'_>,
    ) {
        let Some(state) = self.all.get(name) else { return };
        let counted = self.counts(name, state);
        let (was_in_force, phase) = (state.in_force, state.phase);
        if !was_in_force {
            self.set_bindings(name, BindingPhase::Unset);
            if phase.is_none() {
                let pending = PipelinePhase::Pending;
                self.set_pipeline(name, pending, String::new(), Vec::new(), facts);
            }
        }
        if counted {
            self.count_all(name, false);
        }
        self.broken.release(name);
        let Some(state) = self.all.get_mut(name) else { return };
        let load = state.spec.load;
        let mut old = std::mem::take(&mut state.nodes);
        let mut rerouted = Vec::new();
        for (node, spec) in &state.spec.nodes {
            let before = old.remove(node);
            let mut after = NodeState::new(spec, load);
            // The nodes of a pipeline that was not in force are those that it was to have.
            let same = before.as_ref().is_some_and(|before| before.next == after.next);
            rerouted.extend((!same || !was_in_force).then(|| node.clone()));
            if let Some(before) = before {
                after.phase = before.phase;
                after.table = before.table;
                // Workers of another class are not in the plan; their shares are revoked.
                if before.class == after.class {
                    after.shares = before.shares;
                }
            }
            if let Some(parts) = chosen.remove(node) {
                after.shares = after.assigned(&parts);
            }
            state.nodes.insert(node.clone(), after);
        }
        (state.in_force, state.changes) = (true, false);
        self.count_all(name, true);
        for (node, before) in &old {
            self.end_binding(name, node, before.phase);
        }
        if !was_in_force {
            self.set_bindings(name, BindingPhase::Pending);
            let plotted = PipelinePhase::Plotted;
            self.set_pipeline(name, plotted, String::new(), Vec::new(), facts);
        }
        // A pipeline that was in force gets its phase when its bindings are observed: the nodes
        // that it no longer has may have been the only ones that were not Ready.
        self.update_indexes(name);
        // Only a pipeline that was in force gives room back.
        self.recheck_waiting |= was_in_force;
        for node in rerouted {
            self.reroute(name, &node, facts);
        }
        for (node, before) in &old {
            self.reconcile_node(name, node, before, facts);
        }
        self.reconcile_pipeline(name, facts);
    }

    /// Takes a pipeline's workers from it, so it waits from now on.
    pub(super) fn withdraw(
        &mut self,
        name: &PipelineName,
        waits: MissingWorkers,
        facts: Facts<'_>,
    ) {
        self.broken.release(name);
        let Some(state) = self.all.get_mut(name) else { return };
        (state.in_force, state.changes) = (false, false);
        let old = state.clear_nodes();
        self.end_former_bindings(name, &old);
        self.set_bindings(name, BindingPhase::Unset);
        let why = waits_for(&waits);
        self.set_pipeline(name, PipelinePhase::Pending, why, waits, facts);
        for (node, before) in &old {
            self.reconcile_node(name, node, before, facts);
        }
    }

    /// The bindings of nodes that a pipeline no longer has have ended.
    pub(super) fn end_former_bindings(
        &mut self,
        name: &PipelineName,
        old: &BTreeMap<NodeName, NodeState>,
    ) {
        for (node, before) in old {
            if self.node_mut(name, node).is_none() {
                self.end_binding(name, node, before.phase);
            }
        }
    }

    /// Reconciles all present and former shares of a pipeline.
    pub(super) fn reconcile_pipeline(&mut self, name: &PipelineName, facts: Facts<'_>) {
        let Some(state) = self.all.get(name) else { return };
        for (node, state) in &state.nodes {
            self.bindings.mark(name, node);
            self.changes.shares.extend(shares_of(name, node, state, facts));
        }
    }

    /// Reconciles all present and former shares of a node.
    pub(super) fn reconcile_node(
        &mut self,
        name: &PipelineName,
        node: &NodeName,
        state: &NodeState,
        facts: Facts<'_>,
    ) {
        self.bindings.mark(name, node);
        self.changes.shares.extend(shares_of(name, node, state, facts));
    }

    /// The room in all the classes of these pipelines, as they are in force and as desired.
    pub(super) fn class_capacity_of<'a>(
        &self,
        names: impl Iterator<Item = &'a PipelineName>,
        facts: Facts<'_>,
    ) -> ClassCapacity {
        let mut classes = BTreeSet::new();
        for state in names.filter_map(|name| self.all.get(name)) {
            classes.extend(state.classes());
            classes.extend(state.nodes.values().map(|node| &node.class));
        }
        self.class_capacity(classes.into_iter(), facts)
    }

    /// Places all nodes of a pipeline, or none.
    pub(super) fn place_new(
        &self,
        name: &PipelineName,
        class_capacity: &mut ClassCapacity,
    ) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
        let Some(state) = self.all.get(name) else { return Ok(BTreeMap::new()) };
        let (nodes, requests) = node_requests(state, |_| true);
        Ok(nodes.into_iter().zip(class_capacity.place(&requests)?).collect())
    }

    /// Places the nodes of a running pipeline that have changed; if they find no room beside the
    /// unchanged ones, places all of its nodes. If these find no room either, the pipeline in force
    /// stays.
    pub(super) fn change(
        &self,
        name: &PipelineName,
        class_capacity: &mut ClassCapacity,
    ) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
        let Some(state) = self.all.get(name) else { return Ok(BTreeMap::new()) };
        let waits = match replace(state, |node| !is_kept(state, node), class_capacity) {
            Ok(placed) => return Ok(placed),
            Err(waits) => waits,
        };
        let keeps = state.nodes.keys().any(|node| is_kept(state, node));
        let anew = keeps.then(|| replace(state, |_| true, class_capacity).ok()).flatten();
        anew.ok_or(waits)
    }
}

/// All present and former shares of a node.
fn shares_of(
    name: &PipelineName,
    node: &NodeName,
    state: &NodeState,
    facts: Facts<'_>,
) -> impl Iterator<Item = StreamKey> {
    let key = |index: &u32| ShareKey { pipeline: name.clone(), node: node.clone(), index: *index };
    let planned = state.shares.keys().map(move |index| key(index).stream());
    let leases = leases_of(facts.ledger, name, node).into_iter();
    planned.chain(leases.map(|(stream, _)| stream.clone()))
}

/// Places some of a running pipeline's nodes again, in the room that they have now and in all free
/// room. Leaves the free capacity as it was where the nodes do not fit.
fn replace(
    state: &PipelineState,
    which: impl Fn(&NodeName) -> bool,
    class_capacity: &mut ClassCapacity,
) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
    let (nodes, requests) = node_requests(state, &which);
    let released = state.nodes.iter().filter(|(node, _)| which(node));
    let released: Vec<_> = released
        .flat_map(|(_, node)| node.shares.values().map(move |share| (&node.class, share)))
        .collect();
    released.iter().for_each(|(class, share)| class_capacity.give(class, &share.on, share.load));
    match class_capacity.place(&requests) {
        Ok(placed) => Ok(nodes.into_iter().zip(placed).collect()),
        Err(waits) => {
            released
                .iter()
                .for_each(|(class, share)| class_capacity.take(class, &share.on, share.load));
            Err(waits)
        }
    }
}

/// The nodes to place, with what each needs and has.
pub(super) fn node_requests(
    state: &PipelineState,
    which: impl Fn(&NodeName) -> bool,
) -> (Vec<NodeName>, Vec<PlannedNode>) {
    let nodes = state.spec.nodes.iter().filter(|(name, _)| which(name));
    let request = |(name, node): (&NodeName, &crate::desired::Node)| {
        let before = state.nodes.get(name).filter(|before| before.class == node.class);
        let shares = before.into_iter().flat_map(|before| before.shares.values());
        let has = shares.map(|share| (share.on.clone(), share.load)).collect();
        (name.clone(), PlannedNode { class: node.class.clone(), load: state.spec.load, has })
    };
    nodes.map(request).unzip()
}

/// Whether a node keeps its shares, because its class and load are unchanged.
fn is_kept(state: &PipelineState, node: &NodeName) -> bool {
    let (before, after) = (state.nodes.get(node), state.spec.nodes.get(node));
    before.zip(after).is_some_and(|(before, after)| {
        before.class == after.class && before.load == state.spec.load
    })
}
