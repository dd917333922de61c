//! The start of a pipeline under a new leader. While any of its classes is held, the shares that
//! agents report are its plan; after that the pipeline is in force as before, or Broken, or new.

use std::collections::BTreeSet;

use leasehold_types::{ClusterName, Load, NodeName, PipelineName, ShareKey, StreamKey, WorkerKey};

use super::Pipelines;
use super::state::{NodeState, PlannedShare};
use crate::core::leader::facts::Facts;
use crate::core::leader::planned_lease::is_newest_holder;
use crate::observed::Worker;

impl Pipelines {
    /// Recovers every pipeline of which no agent can report a further share: all but those with a
    /// class that is held.
    pub(super) fn recover_known(&mut self, on_hold: BTreeSet<ClusterName>, facts: Facts<'_>) {
        let fewer = on_hold != self.on_hold;
        self.on_hold = on_hold;
        self.recheck_waiting |= fewer;
        if !fewer && !std::mem::take(&mut self.recheck_recovery) {
            return;
        }
        let known = self.recovering.iter().filter(|name| !self.is_held(name));
        let known: Vec<_> = known.cloned().collect();
        self.recheck_waiting |= !known.is_empty();
        let mut classes = BTreeSet::new();
        for name in &known {
            self.recover_pipeline(name, facts);
            let state = self.all.get(name);
            classes.extend(state.into_iter().flat_map(|pipeline| pipeline.classes().cloned()));
        }
        for class in classes {
            self.break_overloaded(&class, facts);
        }
    }

    fn recover_pipeline(&mut self, name: &PipelineName, facts: Facts<'_>) {
        self.adopt_load(name, facts);
        let Some(state) = self.all.get(name) else { return };
        let unserved = |(_, state): &(&NodeName, &NodeState)| {
            let stays = |share: &PlannedShare| {
                let worker = facts.observed(&state.worker(share));
                worker.is_some_and(|worker| worker.has_reported() && !worker.is_lost())
            };
            !state.is_whole() || !state.shares.values().all(stays)
        };
        let new = state.nodes.values().all(|node| node.shares.is_empty());
        let dead = state.nodes.iter().filter(unserved).map(|(node, _)| node.clone());
        let dead: BTreeSet<_> = dead.collect();
        let nodes: Vec<_> = state.nodes.keys().cloned().collect();
        if !dead.is_empty() {
            self.count_all(name, false);
        }
        self.recovering.remove(name);
        if dead.is_empty() {
            if let Some(state) = self.all.get_mut(name) {
                state.in_force = true;
                state.changes = !state.is_as_desired();
            }
        } else if !new {
            let why = "not all of its shares were reported to this leader";
            self.break_pipeline(name, &dead, why.into(), facts);
        }
        for node in &nodes {
            self.bindings.mark(name, node);
        }
        // Before this term its shares may have led elsewhere.
        for node in &nodes {
            self.reroute(name, node, facts);
        }
        self.update_indexes(name);
        // Freed shares have waited for this, and reported shares that are not desired are revoked.
        self.reconcile_pipeline(name, facts);
    }

    /// Agents may hold another load of a pipeline than the desired one: the load before a change
    /// that waits for workers. That load is in force if all nodes have it, and at least one node
    /// shows that it is not a remainder of the desired load.
    fn adopt_load(&mut self, name: &PipelineName, facts: Facts<'_>) {
        let Some(state) = self.all.get(name) else { return };
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
                    || facts
                        .replica
                        .class(&node.class)
                        .is_some_and(|class| desired <= class.capacity))
        };
        let is_other = load != desired && state.nodes.values().any(is_whole);
        if let Some(state) = self.all.get_mut(name).filter(|_| is_other) {
            state.nodes.values_mut().for_each(|node| node.load = load);
        }
    }

    /// Plans a reported share on the worker that reported it, unless a worker with a higher token
    /// has it, while its pipeline is being recovered. A draining worker keeps its planned shares
    /// until they are moved.
    pub(in crate::core::leader) fn plan_where_held(
        &mut self,
        stream: &StreamKey,
        key: &WorkerKey,
        facts: Facts<'_>,
    ) {
        if facts.observed(key).is_none_or(Worker::is_lost) {
            return;
        }
        let Some(share) = ShareKey::of(stream) else { return };
        let Some(wanted) = self.planned_lease(&share) else { return };
        let is_here = *wanted.cluster == key.cluster;
        if !is_here || !is_newest_holder(facts.ledger, stream, key, wanted.on) {
            return;
        }
        let claim = facts.ledger.claim(stream, key);
        if let Some(load) = claim.and_then(|claim| claim.load) {
            self.adopt(&share, key, load);
        }
    }

    /// Adopts a share that an agent has reported into the plan, while its pipeline is being
    /// recovered.
    fn adopt(&mut self, key: &ShareKey, worker: &WorkerKey, load: Load) {
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
            self.shares.remove(key, &worker.cluster, &old);
        }
        self.shares.add(key, &worker.cluster, &share);
    }

    /// A reported share has lost its worker again.
    pub(super) fn disown(&mut self, key: &ShareKey) {
        let Some(node) = self.node_mut(&key.pipeline, &key.node) else { return };
        let class = node.class.clone();
        if let Some(share) = node.shares.remove(&key.index) {
            self.shares.remove(key, &class, &share);
        }
    }
}
