//! Applies changes of the desired pipelines and classes.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_types::{ClusterName, Moment, PipelineName};

use super::routes::leases_of;
use super::state::{NodeState, PipelineState};
use crate::core::Leader;
use crate::desired::{Desired, Pipeline};
use crate::effect::Notice;
use crate::view::{BindingPhase, PipelinePhase};

impl Leader {
    /// Applies the changes of pipelines and classes.
    pub(in crate::core::leader) fn apply_pipeline_specs(&mut self, before: &Desired, now: Moment) {
        let desired = self.replica.desired.clone();
        let gone = self.pipelines.all.keys().filter(|name| !desired.pipelines.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.end_pipeline(&name, now);
        }
        for (name, spec) in &desired.pipelines {
            match self.pipelines.all.get(name) {
                None => self.begin_pipeline(name, spec, now),
                Some(state) if Arc::ptr_eq(&state.spec, spec) || state.spec == *spec => {}
                Some(_) => self.change_pipeline(name, spec, now),
            }
        }
        let of = |desired: &Desired, name: &ClusterName| {
            desired.clusters.get(name).and_then(|cluster| cluster.class.clone())
        };
        let names: BTreeSet<_> = before.clusters.keys().chain(desired.clusters.keys()).collect();
        for name in names {
            if of(before, name) != of(&desired, name) {
                self.pipelines.recheck_waiting = true;
                self.break_overloaded(name, now);
            }
        }
    }

    fn begin_pipeline(&mut self, name: &PipelineName, spec: &Arc<Pipeline>, now: Moment) {
        let state = PipelineState::new(spec.clone());
        self.pipelines.all.insert(name.clone(), state);
        self.pipelines.recovering.insert(name.clone());
        self.pipelines.recheck_recovery = true;
        // Its shares may have been reported before it was desired.
        self.adopt_leases(name);
        self.reconcile_pipeline(name, now);
    }

    /// Adopts the shares that agents hold of a pipeline as its plan.
    fn adopt_leases(&mut self, name: &PipelineName) {
        let Some(state) = self.pipelines.all.get(name) else { return };
        let leases = state.nodes.keys().flat_map(|node| leases_of(&self.ledger, name, node));
        let leases = leases.filter(|(_, claim)| claim.phase == crate::ledger::Phase::Held);
        let leases: Vec<_> =
            leases.map(|(stream, claim)| (stream.clone(), claim.worker.clone())).collect();
        for (stream, worker) in leases {
            self.plan_share_where_held(&stream, &worker);
        }
    }

    fn end_pipeline(&mut self, name: &PipelineName, now: Moment) {
        if let Some(state) = self.pipelines.all.get(name)
            && self.pipelines.counts(name, state)
        {
            self.pipelines.count_all(name, false);
        }
        self.pipelines.clear_outstanding(name);
        let Some(state) = self.pipelines.all.remove(name) else { return };
        self.pipelines.update_indexes(name);
        self.pipelines.unreserve(state.reserves.clone());
        self.pipelines.recheck_waiting = true;
        for (node, state) in &state.nodes {
            self.end_binding(name, node, state.phase);
        }
        if state.phase.is_some() {
            let (pipeline, from) = (name.clone(), state.phase);
            let notice = Notice::Pipeline { pipeline, from, to: None, why: String::new() };
            self.replica.notice(notice);
        }
        for (node, state) in &state.nodes {
            self.reconcile_node(name, node, state, now);
        }
    }

    fn change_pipeline(&mut self, name: &PipelineName, spec: &Arc<Pipeline>, now: Moment) {
        let recovering = self.pipelines.recovering.contains(name);
        let Some(state) = self.pipelines.all.get_mut(name) else { return };
        state.spec = spec.clone();
        match state.phase {
            _ if recovering => {
                self.pipelines.count_all(name, false);
                let Some(state) = self.pipelines.all.get_mut(name) else { return };
                let fresh = PipelineState::new(spec.clone());
                let old = std::mem::replace(state, fresh);
                self.adopt_leases(name);
                for (node, state) in &old.nodes {
                    self.reconcile_node(name, node, state, now);
                }
                self.pipelines.recheck_recovery = true;
            }
            // Healing handles its shares.
            Some(PipelinePhase::Broken) => {}
            _ if state.in_force => state.changes = !is_in_force(state),
            _ => self.rename_bindings(name),
        }
        self.pipelines.update_indexes(name);
        self.pipelines.recheck_waiting = true;
        self.settle_change(name);
    }

    /// A change that is undone before it is in force waits for nothing.
    fn settle_change(&mut self, name: &PipelineName) {
        let Some(state) = self.pipelines.all.get(name) else { return };
        if let (true, false, Some(phase)) = (state.in_force, state.changes, state.phase) {
            self.set_pipeline(name, phase, String::new(), Vec::new());
        }
    }

    /// The nodes of a pipeline without workers have changed.
    fn rename_bindings(&mut self, name: &PipelineName) {
        let Some(state) = self.pipelines.all.get_mut(name) else { return };
        let fresh = PipelineState::new(state.spec.clone());
        let old = std::mem::replace(&mut state.nodes, fresh.nodes);
        for (node, state) in &mut state.nodes {
            state.phase = old.get(node).and_then(|before| before.phase);
        }
        let known = state.phase.is_some();
        for node in self.pipelines.node_names(name) {
            self.pipelines.note(name, &node);
        }
        for (node, before) in &old {
            if self.pipelines.node_mut(name, node).is_none() {
                self.end_binding(name, node, before.phase);
            }
        }
        if known {
            self.set_bindings(name, BindingPhase::Unset);
        }
    }
}

/// Whether the desired spec of a pipeline is in force.
pub(super) fn is_in_force(state: &PipelineState) -> bool {
    let same = |(name, node): (_, &crate::desired::Node)| {
        state.nodes.get(name).is_some_and(|before: &NodeState| {
            before.class == node.class && before.next == node.next && before.load == state.spec.load
        })
    };
    state.nodes.len() == state.spec.nodes.len() && state.spec.nodes.iter().all(same)
}
