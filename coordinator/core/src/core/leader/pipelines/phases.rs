//! The states of pipelines and bindings. Each change of a state gives a notice, and nothing else
//! does.

use leasehold_types::{NodeName, PipelineName};

use super::class_rooms::{MissingWorkers, rebalances};
use super::state::Pipelines;
use crate::core::Leader;
use crate::effect::Notice;
use crate::view::{BindingPhase, PipelinePhase};

impl Leader {
    /// Sets the state of a binding.
    pub(super) fn set_binding(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
        to: BindingPhase,
    ) {
        let Some(state) = self.pipelines.node_mut(pipeline, node) else { return };
        let from = state.phase.replace(to);
        if from == Some(to) {
            return;
        }
        self.pipelines.note(pipeline, node);
        let (pipeline, node) = (pipeline.clone(), node.clone());
        let notice = Notice::Binding { pipeline, node, from, to: Some(to) };
        self.replica.notice(notice);
    }

    /// Sets the state of all of a pipeline's bindings.
    pub(super) fn set_bindings(&mut self, pipeline: &PipelineName, to: BindingPhase) {
        for node in self.pipelines.node_names(pipeline) {
            self.set_binding(pipeline, &node, to);
        }
    }

    /// Sets the state of a pipeline, and its reason. The states of its bindings are set already.
    pub(super) fn set_pipeline(
        &mut self,
        pipeline: &PipelineName,
        to: PipelinePhase,
        why: String,
        waits: MissingWorkers,
    ) {
        let Some(state) = self.pipelines.all.get_mut(pipeline) else { return };
        let from = state.phase.replace(to);
        let same = from == Some(to) && state.reason == why;
        let settled = to == PipelinePhase::Ready && from != Some(to);
        // Only shares of Ready pipelines are moved to make room; others may have waited for that.
        let classes: Vec<_> = state.classes().filter(|_| settled).cloned().collect();
        let mut specs = classes.iter().filter_map(|class| self.replica.class(class));
        self.pipelines.recheck_waiting |= specs.any(rebalances);
        let Some(state) = self.pipelines.all.get_mut(pipeline) else { return };
        (state.reason, state.waits) = (why.clone(), waits);
        self.pipelines.update_indexes(pipeline);
        if same {
            return;
        }
        let notice = Notice::Pipeline { pipeline: pipeline.clone(), from, to: Some(to), why };
        self.replica.notice(notice);
    }

    /// A binding has ended.
    pub(super) fn end_binding(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
        from: Option<BindingPhase>,
    ) {
        let (pipeline, node) = (pipeline.clone(), node.clone());
        self.pipelines.unnotified.insert((pipeline.clone(), node.clone()));
        if from.is_some() {
            let notice = Notice::Binding { pipeline, node, from, to: None };
            self.replica.notice(notice);
        }
    }

    /// Gives a notice for every binding that has changed.
    pub(in crate::core::leader) fn notify_endpoints(&mut self) {
        for (pipeline, node) in std::mem::take(&mut self.pipelines.unnotified) {
            let notice = Notice::Endpoints { pipeline, node };
            self.replica.notice(notice);
        }
    }
}

impl Pipelines {
    /// The nodes of a pipeline as it is in force.
    pub(super) fn node_names(&self, pipeline: &PipelineName) -> Vec<NodeName> {
        let state = self.all.get(pipeline);
        state.map_or(Vec::new(), |state| state.nodes.keys().cloned().collect())
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
