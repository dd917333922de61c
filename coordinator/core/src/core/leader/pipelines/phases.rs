//! The states of pipelines and bindings. Each change of a state gives a notice, and nothing else
//! does.

use leasehold_types::{NodeName, PipelineName};

use super::Pipelines;
use super::class_capacity::{MissingWorkers, rebalances};
use crate::core::leader::facts::Facts;
use crate::effect::Notice;
use crate::view::{BindingPhase, PipelinePhase};

impl Pipelines {
    /// Sets the state of a binding.
    pub(super) fn set_binding(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
        to: BindingPhase,
    ) {
        let Some(state) = self.node_mut(pipeline, node) else { return };
        let from = state.phase.replace(to);
        if from == Some(to) {
            return;
        }
        self.bindings.mark(pipeline, node);
        let (pipeline, node) = (pipeline.clone(), node.clone());
        self.changes.notices.push(Notice::Binding { pipeline, node, from, to: Some(to) });
    }

    /// Sets the state of all of a pipeline's bindings.
    pub(super) fn set_bindings(&mut self, pipeline: &PipelineName, to: BindingPhase) {
        for node in self.node_names(pipeline) {
            self.set_binding(pipeline, &node, to);
        }
    }

    /// The nodes of a pipeline as it is in force.
    pub(super) fn node_names(&self, pipeline: &PipelineName) -> Vec<NodeName> {
        let state = self.all.get(pipeline);
        state.map_or(Vec::new(), |state| state.nodes.keys().cloned().collect())
    }

    /// Sets the state of a pipeline, and its reason. The states of its bindings are set already.
    pub(super) fn set_pipeline(
        &mut self,
        pipeline: &PipelineName,
        to: PipelinePhase,
        why: String,
        waits: MissingWorkers,
        facts: Facts<'_>,
    ) {
        let Some(state) = self.all.get_mut(pipeline) else { return };
        let from = state.phase.replace(to);
        let same = from == Some(to) && state.reason == why;
        let settled = to == PipelinePhase::Ready && from != Some(to);
        // Only shares of Ready pipelines are moved to make room; others may have waited for that.
        let class_rebalances = |class| facts.replica.class(class).is_some_and(rebalances);
        self.recheck_waiting |= settled && state.classes().any(class_rebalances);
        (state.reason, state.waits) = (why.clone(), waits);
        self.update_indexes(pipeline);
        if same {
            return;
        }
        let notice = Notice::Pipeline { pipeline: pipeline.clone(), from, to: Some(to), why };
        self.changes.notices.push(notice);
    }

    /// A binding has ended.
    pub(super) fn end_binding(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
        from: Option<BindingPhase>,
    ) {
        self.bindings.mark_unnotified(pipeline, node);
        if from.is_some() {
            let (pipeline, node) = (pipeline.clone(), node.clone());
            self.changes.notices.push(Notice::Binding { pipeline, node, from, to: None });
        }
    }

    /// Gives a notice for every binding that has changed.
    pub(super) fn notify_endpoints(&mut self) {
        self.changes.notices.extend(self.bindings.take_notices());
    }
}

/// The workers that a pipeline waits for, as text.
pub(super) fn waits_for(waits: &MissingWorkers) -> String {
    let wait = |(class, workers): &(_, u32)| match workers {
        0 => format!("class {class}, which no manifest defines"),
        1 => format!("1 worker more of class {class}"),
        workers => format!("{workers} workers more of class {class}"),
    };
    let waits: Vec<_> = waits.iter().map(wait).collect();
    format!("it waits for {}", waits.join(" and "))
}
