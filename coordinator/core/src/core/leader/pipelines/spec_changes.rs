//! Applies changes of the desired pipelines and classes.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_types::{ClusterName, PipelineName};

use super::routes::leases_of;
use super::state::PipelineState;
use super::{PipelineChanges, Pipelines};
use crate::core::leader::facts::Facts;
use crate::desired::{Desired, Pipeline};
use crate::effect::Notice;
use crate::ledger::Phase;
use crate::view::{BindingPhase, PipelinePhase};

impl Pipelines {
    /// Applies the changes of pipelines and classes.
    pub(in crate::core::leader) fn apply_specs(
        &mut self,
        before: &Desired,
        facts: Facts<'_>,
    ) -> PipelineChanges {
        let desired = &**facts.replica.desired();
        let gone = self.all.keys().filter(|name| !desired.pipelines.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.end_pipeline(&name, facts);
        }
        for (name, spec) in &desired.pipelines {
            match self.all.get(name) {
                None => self.begin_pipeline(name, spec, facts),
                Some(state) if Arc::ptr_eq(&state.spec, spec) || state.spec == *spec => {}
                Some(_) => self.change_pipeline(name, spec, facts),
            }
        }
        let of = |desired: &Desired, name: &ClusterName| {
            desired.clusters.get(name).and_then(|cluster| cluster.class.clone())
        };
        let names: BTreeSet<_> = before.clusters.keys().chain(desired.clusters.keys()).collect();
        for name in names {
            if of(before, name) != of(desired, name) {
                self.recheck_waiting = true;
                self.break_overloaded(name, facts);
            }
        }
        self.take_changes()
    }

    fn begin_pipeline(&mut self, name: &PipelineName, spec: &Arc<Pipeline>, facts: Facts<'_>) {
        self.all.insert(name.clone(), PipelineState::new(spec.clone()));
        self.recovering.insert(name.clone());
        self.recheck_recovery = true;
        // Its shares may have been reported before it was desired.
        self.adopt_leases(name, facts);
        self.reconcile_pipeline(name, facts);
    }

    /// Adopts the shares that agents hold of a pipeline as its plan.
    fn adopt_leases(&mut self, name: &PipelineName, facts: Facts<'_>) {
        for node in self.node_names(name) {
            for (stream, claim) in leases_of(facts.ledger, name, &node) {
                if claim.phase == Phase::Held {
                    self.plan_where_held(stream, &claim.worker, facts);
                }
            }
        }
    }

    fn end_pipeline(&mut self, name: &PipelineName, facts: Facts<'_>) {
        if let Some(state) = self.all.get(name)
            && self.counts(name, state)
        {
            self.count_all(name, false);
        }
        self.broken.release(name);
        let Some(state) = self.all.remove(name) else { return };
        self.update_indexes(name);
        self.recheck_waiting = true;
        for (node, state) in &state.nodes {
            self.end_binding(name, node, state.phase);
        }
        if state.phase.is_some() {
            let (pipeline, from) = (name.clone(), state.phase);
            let notice = Notice::Pipeline { pipeline, from, to: None, why: String::new() };
            self.changes.notices.push(notice);
        }
        for (node, state) in &state.nodes {
            self.reconcile_node(name, node, state, facts);
        }
    }

    fn change_pipeline(&mut self, name: &PipelineName, spec: &Arc<Pipeline>, facts: Facts<'_>) {
        let recovering = self.recovering.contains(name);
        let Some(state) = self.all.get_mut(name) else { return };
        state.spec = spec.clone();
        match state.phase {
            _ if recovering => {
                self.count_all(name, false);
                let Some(state) = self.all.get_mut(name) else { return };
                let old = std::mem::replace(state, PipelineState::new(spec.clone()));
                self.adopt_leases(name, facts);
                for (node, state) in &old.nodes {
                    self.reconcile_node(name, node, state, facts);
                }
                self.recheck_recovery = true;
            }
            // Healing handles its shares.
            Some(PipelinePhase::Broken) => {}
            _ if state.in_force => state.changes = !state.is_as_desired(),
            _ => self.rename_bindings(name),
        }
        self.update_indexes(name);
        self.recheck_waiting = true;
        self.settle_change(name, facts);
    }

    /// A change that is undone before it is in force waits for nothing.
    fn settle_change(&mut self, name: &PipelineName, facts: Facts<'_>) {
        let Some(state) = self.all.get(name) else { return };
        if let (true, false, Some(phase)) = (state.in_force, state.changes, state.phase) {
            self.set_pipeline(name, phase, String::new(), Vec::new(), facts);
        }
    }

    /// The nodes of a pipeline without workers have changed.
    fn rename_bindings(&mut self, name: &PipelineName) {
        let Some(state) = self.all.get_mut(name) else { return };
        let old = state.clear_nodes();
        let known = state.phase.is_some();
        for node in state.nodes.keys() {
            self.bindings.mark(name, node);
        }
        self.end_former_bindings(name, &old);
        if known {
            self.set_bindings(name, BindingPhase::Unset);
        }
    }
}
