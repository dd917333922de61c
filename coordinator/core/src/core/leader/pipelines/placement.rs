//! Plotting: which workers serve a pipeline, decided for all its nodes together or for none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{Load, Moment, NodeName, PipelineName, ShareKey, WorkerName};

use super::class_rooms::{ClassRooms, MissingWorkers, NodeRequest};
use super::phases::waits_for;
use super::routes::leases_of;
use super::state::{NodeState, PipelineState, Pipelines};
use crate::core::leader::clusters::Clusters;
use crate::core::{Leader, Replica};
use crate::view::{BindingPhase, PipelinePhase};

/// The most waiting pipelines that one pass tries to make room for: each try takes some
/// milliseconds for a class with thousands of workers, and nothing else is planned meanwhile.
const REBALANCES_MAX: usize = 16;

/// The parts of a node's load.
pub(super) type NodeParts = Vec<(WorkerName, Load)>;

impl Leader {
    /// Places the pipelines that wait for workers: the largest first, then by name. One that does
    /// not fit does not delay smaller ones.
    pub(super) fn place_waiting(&mut self, now: Moment) {
        let mut names: Vec<_> = self.pipelines.waiting.iter().cloned().collect();
        names.retain(|name| !self.pipelines.is_held(name));
        names.sort_by_cached_key(|name| {
            let load = self.pipelines.all.get(name).map(|state| state.spec.load);
            Reverse(load)
        });
        let mut class_rooms =
            self.pipelines.class_rooms_of(&self.replica, &self.clusters, names.iter());
        let mut blocked = Vec::new();
        for name in names {
            let Some(state) = self.pipelines.all.get(&name) else { continue };
            if state.classes().any(|class| self.pipelines.reserved.contains_key(class)) {
                let why = "it waits for broken pipelines to be healed first";
                self.keep_waiting(&name, Vec::new(), why.into());
                continue;
            }
            let runs = state.in_force;
            let placed = if runs {
                self.pipelines.change(&name, &mut class_rooms)
            } else {
                self.pipelines.place_new(&name, &mut class_rooms)
            };
            match placed {
                Ok(chosen) => self.put_pipeline_in_force(&name, chosen, now),
                Err(waits) => {
                    let why = waits_for(&waits);
                    self.keep_waiting(&name, waits, why);
                    blocked.extend((!runs).then_some(name));
                }
            }
        }
        self.make_room_for(blocked, &mut class_rooms, now);
    }

    /// Moves shares of other pipelines for those that fit nowhere, where their classes allow it:
    /// for the smallest first, and for at most `REBALANCES_MAX` in one pass.
    fn make_room_for(
        &mut self,
        blocked: Vec<PipelineName>,
        class_rooms: &mut ClassRooms,
        now: Moment,
    ) {
        let can_be = blocked.into_iter().rev().filter(|name| {
            let state = self.pipelines.all.get(name);
            state.is_some_and(|state| state.classes().any(|class| class_rooms.rebalances(class)))
        });
        for name in can_be.take(REBALANCES_MAX).collect::<Vec<_>>() {
            let Some(state) = self.pipelines.all.get(&name) else { continue };
            let (nodes, requests) = node_requests(state, |_| true);
            if let Some(placed) = self.place_with_moves(&requests, class_rooms, now) {
                self.put_pipeline_in_force(&name, nodes.into_iter().zip(placed).collect(), now);
            }
        }
    }

    fn keep_waiting(&mut self, name: &PipelineName, waits: MissingWorkers, why: String) {
        let Some(state) = self.pipelines.all.get(name) else { return };
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
        self.set_pipeline(name, phase, why, waits);
    }

    /// Puts a pipeline in force as it is desired. `chosen` has the parts of the nodes that were
    /// placed again; all other nodes keep their shares.
    pub(super) fn put_pipeline_in_force(
        &mut self,
        name: &PipelineName,
        mut chosen: BTreeMap<NodeName, NodeParts>,
        now: Moment,
    ) {
        let Some(state) = self.pipelines.all.get(name) else { return };
        let counted = self.pipelines.counts(name, state);
        let (was_in_force, phase) = (state.in_force, state.phase);
        if !was_in_force {
            self.set_bindings(name, BindingPhase::Unset);
            if phase.is_none() {
                self.set_pipeline(name, PipelinePhase::Pending, String::new(), Vec::new());
            }
        }
        if counted {
            self.pipelines.count_all(name, false);
        }
        self.pipelines.clear_outstanding(name);
        let Some(state) = self.pipelines.all.get_mut(name) else { return };
        let load = state.spec.load;
        let mut old = std::mem::take(&mut state.nodes);
        let mut rerouted = Vec::new();
        let mut ended = Vec::new();
        for (node, spec) in &state.spec.nodes {
            let before = old.remove(node);
            let mut after = NodeState::new(spec, load);
            if let Some(before) = before {
                rerouted.extend((before.next != after.next).then(|| node.clone()));
                after.phase = before.phase;
                after.endpoints = before.endpoints;
                // Workers of another class are not in the plan; their shares are asked back.
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
        self.pipelines.count_all(name, true);
        for (node, before) in old {
            self.end_binding(name, &node, before.phase);
            ended.push((node, before));
        }
        if !was_in_force {
            self.set_bindings(name, BindingPhase::Pending);
            self.set_pipeline(name, PipelinePhase::Plotted, String::new(), Vec::new());
        }
        // A pipeline that was in force gets its phase when its bindings are observed: the nodes
        // that it no longer has may have been the only ones that were not Ready.
        self.pipelines.update_indexes(name);
        // Only a pipeline that was in force gives room back.
        self.pipelines.recheck_waiting |= was_in_force;
        for node in rerouted {
            self.reroute(name, &node);
        }
        for (node, before) in &ended {
            self.reconcile_node(name, node, before, now);
        }
        self.reconcile_pipeline(name, now);
    }

    /// Takes a pipeline's workers from it, so it waits from now on.
    pub(super) fn withdraw_pipeline(
        &mut self,
        name: &PipelineName,
        waits: MissingWorkers,
        why: String,
        now: Moment,
    ) {
        self.pipelines.clear_outstanding(name);
        let Some(state) = self.pipelines.all.get_mut(name) else { return };
        let fresh = PipelineState::new(state.spec.clone());
        let old = std::mem::replace(&mut state.nodes, fresh.nodes);
        (state.in_force, state.changes) = (false, false);
        for (node, state) in &mut state.nodes {
            state.phase = old.get(node).and_then(|before| before.phase);
        }
        for (node, before) in &old {
            if self.pipelines.node_mut(name, node).is_none() {
                self.end_binding(name, node, before.phase);
            }
        }
        self.set_bindings(name, BindingPhase::Unset);
        self.set_pipeline(name, PipelinePhase::Pending, why, waits);
        for (node, before) in &old {
            self.reconcile_node(name, node, before, now);
        }
    }

    /// Reconciles all present and former shares of a pipeline.
    pub(super) fn reconcile_pipeline(&mut self, name: &PipelineName, now: Moment) {
        let Some(state) = self.pipelines.all.get(name) else { return };
        let nodes: Vec<_> = state.nodes.clone().into_iter().collect();
        for (node, state) in &nodes {
            self.reconcile_node(name, node, state, now);
        }
    }

    /// Reconciles all present and former shares of a node.
    pub(super) fn reconcile_node(
        &mut self,
        name: &PipelineName,
        node: &NodeName,
        state: &NodeState,
        now: Moment,
    ) {
        self.pipelines.note(name, node);
        let key =
            |index: &u32| ShareKey { pipeline: name.clone(), node: node.clone(), index: *index };
        let planned = state.shares.keys().map(|index| key(index).stream());
        let mut streams: BTreeSet<_> = planned.collect();
        let leases = leases_of(&self.ledger, name, node).into_iter();
        streams.extend(leases.map(|(stream, _)| stream.clone()));
        for stream in streams {
            self.reconcile_stream(&stream, now);
        }
    }
}

impl Pipelines {
    /// The room in all the classes of these pipelines, as they are in force and as desired.
    pub(super) fn class_rooms_of<'a>(
        &self,
        replica: &Replica,
        clusters: &Clusters,
        names: impl Iterator<Item = &'a PipelineName>,
    ) -> ClassRooms {
        let mut classes = BTreeSet::new();
        for state in names.filter_map(|name| self.all.get(name)) {
            classes.extend(state.classes());
            classes.extend(state.nodes.values().map(|node| &node.class));
        }
        self.class_rooms(replica, clusters, classes.into_iter())
    }

    /// Whether nothing is planned for a pipeline yet, because one of its classes is held.
    pub(super) fn is_held(&self, name: &PipelineName) -> bool {
        let held = &self.held;
        let state = self.all.get(name).filter(|_| !held.is_empty());
        state.is_some_and(|state| state.classes().any(|class| held.contains(class)))
    }

    /// Places all nodes of a pipeline, or none.
    pub(super) fn place_new(
        &self,
        name: &PipelineName,
        class_rooms: &mut ClassRooms,
    ) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
        let Some(state) = self.all.get(name) else { return Ok(BTreeMap::new()) };
        let (nodes, requests) = node_requests(state, |_| true);
        Ok(nodes.into_iter().zip(class_rooms.place(&requests)?).collect())
    }

    /// Places the nodes of a running pipeline that have changed; if they find no room beside the
    /// unchanged ones, places all of its nodes. If these find no room either, the pipeline in force
    /// stays.
    pub(super) fn change(
        &self,
        name: &PipelineName,
        class_rooms: &mut ClassRooms,
    ) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
        let Some(state) = self.all.get(name) else { return Ok(BTreeMap::new()) };
        let waits = match replace(state, |node| !is_kept(state, node), class_rooms) {
            Ok(placed) => return Ok(placed),
            Err(waits) => waits,
        };
        let keeps = state.nodes.keys().any(|node| is_kept(state, node));
        let anew = keeps.then(|| replace(state, |_| true, class_rooms).ok()).flatten();
        anew.ok_or(waits)
    }
}

/// Places some of a running pipeline's nodes again, in the room that they have now and in all free
/// room. Leaves the rooms as they were where the nodes do not fit.
fn replace(
    state: &PipelineState,
    which: impl Fn(&NodeName) -> bool,
    class_rooms: &mut ClassRooms,
) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
    let (nodes, requests) = node_requests(state, &which);
    let released = state.nodes.iter().filter(|(node, _)| which(node));
    let released: Vec<_> = released
        .flat_map(|(_, it)| it.shares.values().map(move |share| (&it.class, share)))
        .collect();
    released.iter().for_each(|(class, share)| class_rooms.give(class, &share.on, share.load));
    match class_rooms.place(&requests) {
        Ok(placed) => Ok(nodes.into_iter().zip(placed).collect()),
        Err(waits) => {
            released
                .iter()
                .for_each(|(class, share)| class_rooms.take(class, &share.on, share.load));
            Err(waits)
        }
    }
}

/// The nodes to place, with what each needs and has.
pub(super) fn node_requests(
    state: &PipelineState,
    which: impl Fn(&NodeName) -> bool,
) -> (Vec<NodeName>, Vec<NodeRequest>) {
    let nodes = state.spec.nodes.iter().filter(|(name, _)| which(name));
    let request = |(name, node): (&NodeName, &crate::desired::Node)| {
        let before = state.nodes.get(name).filter(|before| before.class == node.class);
        let shares = before.into_iter().flat_map(|before| before.shares.values());
        let has = shares.map(|share| (share.on.clone(), share.load)).collect();
        (name.clone(), NodeRequest { class: node.class.clone(), load: state.spec.load, has })
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
