//! Bindings that have changed.

use std::collections::BTreeSet;

use leasehold_types::{NodeName, PipelineName};

use crate::effect::Notice;

/// Which bindings are observed next, and which ones a notice has to name.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangedBindings {
    /// Those that have changed since they were last observed.
    unobserved: BTreeSet<(PipelineName, NodeName)>,
    /// Those whose change no notice has named yet.
    unnotified: BTreeSet<(PipelineName, NodeName)>,
}

impl ChangedBindings {
    /// A binding has changed: it is observed again, and a notice names it.
    pub(super) fn mark(&mut self, pipeline: &PipelineName, node: &NodeName) {
        self.mark_unobserved(pipeline, node);
        self.mark_unnotified(pipeline, node);
    }

    /// A binding is observed again. A notice follows only if something has changed.
    pub(super) fn mark_unobserved(&mut self, pipeline: &PipelineName, node: &NodeName) {
        self.unobserved.insert((pipeline.clone(), node.clone()));
    }

    /// A notice names the binding.
    pub(super) fn mark_unnotified(&mut self, pipeline: &PipelineName, node: &NodeName) {
        self.unnotified.insert((pipeline.clone(), node.clone()));
    }

    /// Takes the bindings that are to be observed.
    pub(super) fn take_unobserved(&mut self) -> BTreeSet<(PipelineName, NodeName)> {
        std::mem::take(&mut self.unobserved)
    }

    /// Takes the notices that are due.
    pub(super) fn take_notices(&mut self) -> impl Iterator<Item = Notice> + use<> {
        let unnotified = std::mem::take(&mut self.unnotified).into_iter();
        unnotified.map(|(pipeline, node)| Notice::Endpoints { pipeline, node })
    }

    /// Whether no binding is to be observed.
    pub(super) fn is_empty(&self) -> bool {
        self.unobserved.is_empty()
    }
}
