//! The states of bindings and pipelines that are in force, from what agents have reported.

use std::collections::BTreeSet;

use leasehold_types::PipelineName;

use super::Pipelines;
use super::routes::share_states;
use crate::core::leader::facts::Facts;
use crate::view::{BindingPhase, PipelinePhase};

impl Pipelines {
    /// Sets the states of bindings and pipelines from what is observed.
    pub(super) fn observe(&mut self, facts: Facts<'_>) {
        self.notify_endpoints();
        let mut pipelines = BTreeSet::new();
        for (pipeline, node) in self.bindings.take_unobserved() {
            if self.recovering.contains(&pipeline) {
                continue;
            }
            self.renew_table(&pipeline, &node, facts);
            pipelines.insert(pipeline);
        }
        for name in pipelines {
            self.observe_one(&name, facts);
        }
        self.notify_endpoints();
    }

    fn observe_one(&mut self, name: &PipelineName, facts: Facts<'_>) {
        let Some(state) = self.all.get(name).filter(|state| state.in_force) else {
            return;
        };
        let mut served = Vec::new();
        let mut deserted = BTreeSet::new();
        for (node, state) in &state.nodes {
            let shares = share_states(name, node, state, facts);
            if shares.iter().any(|share| share.deserted) {
                deserted.insert(node.clone());
            }
            served.push((node.clone(), shares.iter().all(|share| share.served)));
        }
        if !deserted.is_empty() {
            let why = "a worker that drains has given its share back, and no other has room";
            return self.break_pipeline(name, &deserted, why.into(), facts);
        }
        let (reason, waits, changes) = (state.reason.clone(), state.waits.clone(), state.changes);
        let all = served.iter().all(|(_, served)| *served);
        for (node, served) in served {
            let to = if served { BindingPhase::Ready } else { BindingPhase::Pending };
            self.set_binding(name, &node, to);
        }
        let to = if all { PipelinePhase::Ready } else { PipelinePhase::Plotted };
        let (why, waits) = if changes { (reason, waits) } else { Default::default() };
        self.set_pipeline(name, to, why, waits, facts);
    }
}
