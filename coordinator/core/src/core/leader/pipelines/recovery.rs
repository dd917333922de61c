//! The start of a pipeline under a new leader. While any of its classes is held, the shares that
//! agents report are its plan; after that the pipeline is in force as before, or Broken, or new.

use std::collections::BTreeSet;

use leasehold_types::{ClusterName, Load, Moment, NodeName, PipelineName, WorkerKey};

use super::spec_changes::is_in_force;
use super::state::NodeState;
use crate::core::Leader;
use crate::view::{BindingPhase, PipelinePhase};

impl Leader {
    /// Recovers every pipeline of which no agent can report a further share: all but those with a
    /// class that is held.
    pub(super) fn recover_known(&mut self, held: BTreeSet<ClusterName>, now: Moment) {
        let fewer = held != self.pipelines.held;
        self.pipelines.held = held;
        self.pipelines.recheck_waiting |= fewer;
        if !fewer && !std::mem::take(&mut self.pipelines.recheck_recovery) {
            return;
        }
        let known = self.pipelines.recovering.iter().filter(|name| !self.pipelines.is_held(name));
        let known: Vec<_> = known.cloned().collect();
        self.pipelines.recheck_waiting |= !known.is_empty();
        let mut classes = BTreeSet::new();
        for name in &known {
            self.recover_pipeline(name, now);
            let state = self.pipelines.all.get(name);
            classes.extend(state.into_iter().flat_map(|it| it.classes().cloned()));
        }
        for class in classes {
            self.break_overloaded(&class, now);
        }
    }

    fn recover_pipeline(&mut self, name: &PipelineName, now: Moment) {
        self.adopt_load(name);
        let Some(state) = self.pipelines.all.get(name) else { return };
        let unserved = |(_, state): &(&NodeName, &NodeState)| {
            let stays = |worker: &_| {
                let key = WorkerKey { cluster: state.class.clone(), worker: Clone::clone(worker) };
                self.observed(&key).is_some_and(|worker| worker.reported && !worker.lost)
            };
            !state.is_whole() || !state.shares.values().all(|share| stays(&share.on))
        };
        let new = state.nodes.values().all(|node| node.shares.is_empty());
        let dead = state.nodes.iter().filter(unserved).map(|(node, _)| node.clone());
        let dead: BTreeSet<_> = dead.collect();
        let nodes: Vec<_> = state.nodes.keys().cloned().collect();
        if !dead.is_empty() {
            self.pipelines.count_all(name, false);
        }
        self.pipelines.recovering.remove(name);
        if dead.is_empty() {
            if let Some(state) = self.pipelines.all.get_mut(name) {
                state.in_force = true;
                state.changes = !is_in_force(state);
            }
        } else if !new {
            let why = "not all of its shares were reported to this leader";
            self.break_pipeline(name, &dead, why.into(), now);
        }
        for node in &nodes {
            self.pipelines.note(name, node);
        }
        self.reroute_last_nodes(name);
        self.pipelines.update_indexes(name);
        // Freed shares have waited for this, and reported shares that are not desired are asked
        // back.
        self.reconcile_pipeline(name, now);
    }

    /// Sends the holders of last nodes an empty route: before this term they may have had another
    /// one. All other nodes get theirs when the nodes after them are observed.
    fn reroute_last_nodes(&mut self, name: &PipelineName) {
        let Some(state) = self.pipelines.all.get(name) else { return };
        let last = state.nodes.iter().filter(|(_, node)| node.next.is_empty());
        for node in last.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.reroute(name, &node);
        }
    }

    /// Agents may hold another load of a pipeline than the desired one: the load before a change
    /// that waits for workers. That load is in force if all nodes have it, and at least one node
    /// shows that it is not a remainder of the desired load.
    fn adopt_load(&mut self, name: &PipelineName) {
        let Some(state) = self.pipelines.all.get(name) else { return };
        let desired = state.spec.load;
        let loads = state.nodes.values().map(NodeState::served);
        let loads: BTreeSet<Load> = loads.collect();
        let (Some(&load), 1) = (loads.first(), loads.len()) else { return };
        // A load within one worker's capacity is never cut, so that no part of it is ever lost.
        let is_whole = |node: &NodeState| {
            // A load that is cut never has parts of 0.
            !node.shares.is_empty()
                && (load > desired
                    || load == Load::ZERO
                    || self
                        .replica
                        .class(&node.class)
                        .is_some_and(|class| desired <= class.capacity))
        };
        let is_other = load != desired && state.nodes.values().any(is_whole);
        if let Some(state) = self.pipelines.all.get_mut(name).filter(|_| is_other) {
            state.nodes.values_mut().for_each(|node| node.load = load);
        }
    }

    /// A class has changed in a way that pipelines may have waited for.
    pub(in crate::core::leader) fn recheck_class(&mut self, class: &ClusterName) {
        self.pipelines.recheck_waiting |= self.replica.class(class).is_some();
    }

    /// A worker has begun to drain, has reported that it drains, or works again.
    pub(in crate::core::leader) fn note_draining(&mut self, key: &WorkerKey) {
        let heard = self.replica.heard;
        if let Some(worker) = self.worker_mut(key) {
            worker.note_drain(heard);
        }
        let leaves = self.observed(key).is_some_and(|worker| !worker.is_working());
        if !leaves {
            self.pipelines.draining.remove(key);
        } else if self.replica.class(&key.cluster).is_some() {
            self.pipelines.draining.insert(key.clone());
            self.pipelines.recheck_waiting = true;
            self.note_shares_of(key);
        }
    }

    /// Sets the states of bindings and pipelines from what is observed.
    pub(super) fn observe(&mut self, now: Moment) {
        self.notify_endpoints();
        let mut pipelines = BTreeSet::new();
        for (pipeline, node) in std::mem::take(&mut self.pipelines.changed) {
            if self.pipelines.recovering.contains(&pipeline) {
                continue;
            }
            self.renew_endpoints(&pipeline, &node);
            pipelines.insert(pipeline);
        }
        for name in pipelines {
            self.observe_one(&name, now);
        }
        self.notify_endpoints();
    }

    fn observe_one(&mut self, name: &PipelineName, now: Moment) {
        let Some(state) = self.pipelines.all.get(name).filter(|state| state.in_force) else {
            return;
        };
        let mut served = Vec::new();
        let mut deserted = BTreeSet::new();
        for (node, state) in &state.nodes {
            let shares = self.share_states(name, node, state);
            if shares.iter().any(|share| share.deserted) {
                deserted.insert(node.clone());
            }
            served.push((node.clone(), shares.iter().all(|share| share.served)));
        }
        if !deserted.is_empty() {
            let why = "a worker that drains has given its share back, and no other has room";
            return self.break_pipeline(name, &deserted, why.into(), now);
        }
        let (reason, waits, changes) = (state.reason.clone(), state.waits.clone(), state.changes);
        let all = served.iter().all(|(_, served)| *served);
        for (node, served) in served {
            let to = if served { BindingPhase::Ready } else { BindingPhase::Pending };
            self.set_binding(name, &node, to);
        }
        let to = if all { PipelinePhase::Ready } else { PipelinePhase::Plotted };
        let (why, waits) = if changes { (reason, waits) } else { Default::default() };
        self.set_pipeline(name, to, why, waits);
    }
}
