//! The states of pipelines and bindings as a leader tells them (S15): each follows from the one
//! before it, a pipeline's from its bindings', and Ready rests on what agents have taken.

use std::collections::BTreeMap;

use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::view::{BindingPhase, PipelinePhase};
use leasehold_types::{NodeName, PipelineName, ShareKey};

use super::world::World;

/// What one leader has told in its term.
#[derive(Debug, Default)]
pub(super) struct Told {
    pipelines: BTreeMap<PipelineName, PipelinePhase>,
    bindings: BTreeMap<(PipelineName, NodeName), BindingPhase>,
}

impl Told {
    fn bindings_of(&self, pipeline: &PipelineName) -> impl Iterator<Item = BindingPhase> {
        let all = self.bindings.iter().filter(move |((of, _), _)| of == pipeline);
        all.map(|(_, phase)| *phase)
    }

    /// What is wrong with a binding's new state, if anything is.
    fn binding(
        &mut self,
        key: (PipelineName, NodeName),
        from: Option<BindingPhase>,
        to: Option<BindingPhase>,
    ) -> Option<String> {
        let before = self.bindings.get(&key).copied();
        let wrong = before != from || from == to;
        let wrong = wrong.then(|| format!("{key:?}: from {from:?} to {to:?} after {before:?}"));
        match to {
            Some(to) => self.bindings.insert(key, to),
            None => self.bindings.remove(&key),
        };
        wrong
    }

    /// What is wrong with a pipeline's new state, if anything is.
    fn pipeline(
        &mut self,
        name: &PipelineName,
        from: Option<PipelinePhase>,
        to: Option<PipelinePhase>,
    ) -> Option<String> {
        let before = self.pipelines.get(name).copied();
        let bindings: Vec<_> = self.bindings_of(name).collect();
        let all = |wanted: &[BindingPhase]| bindings.iter().all(|phase| wanted.contains(phase));
        let agrees = match to {
            None => bindings.is_empty(),
            Some(PipelinePhase::Pending) => all(&[BindingPhase::Unset]),
            Some(PipelinePhase::Plotted) => {
                all(&[BindingPhase::Pending, BindingPhase::Ready]) && !all(&[BindingPhase::Ready])
            }
            Some(PipelinePhase::Ready) => all(&[BindingPhase::Ready]),
            Some(PipelinePhase::Broken) => all(&[BindingPhase::DeadEnd, BindingPhase::Unset]),
        };
        // The same state again is told where its reason is another.
        let follows = before == from && to.or(from).is_some();
        match to {
            Some(to) => self.pipelines.insert(name.clone(), to),
            None => self.pipelines.remove(name),
        };
        let wrong = !agrees || !follows;
        wrong.then(|| format!("{name}: from {from:?} to {to:?} after {before:?} with {bindings:?}"))
    }
}

impl World {
    /// Follows what a replica tells of its pipelines.
    pub(super) fn observe_state(&mut self, replica: usize, notice: &Notice) {
        let told = self.observer.told.entry(replica).or_default();
        let wrong = match notice {
            Notice::Elected(_) => {
                *told = Told::default();
                None
            }
            Notice::Binding { pipeline, node, from, to } => {
                told.binding((pipeline.clone(), node.clone()), *from, *to)
            }
            Notice::Pipeline { pipeline, from, to, .. } => {
                let wrong = told.pipeline(pipeline, *from, *to);
                self.cover.hit(name_of(*from, *to));
                let ready = *to == Some(PipelinePhase::Ready);
                wrong.or_else(|| ready.then(|| self.not_ready(replica, pipeline))?)
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.fail("S15", || format!("c{replica} tells of {wrong}"));
        }
    }

    /// What keeps a pipeline that is told Ready from being served, if anything does.
    fn not_ready(&self, replica: usize, pipeline: &PipelineName) -> Option<String> {
        self.true_leader().filter(|(leader, _)| *leader == replica)?;
        let view = self.replicas[replica].core.as_ref()?.pipeline(pipeline)?;
        // More may have happened by now than was told.
        (view.phase == PipelinePhase::Ready).then_some(())?;
        let mut shares = view
            .bindings
            .iter()
            .flat_map(|binding| binding.shares.iter().map(move |share| (binding, share)));
        shares.find_map(|(binding, share)| {
            // What is given back is listed, too.
            (!share.draining).then_some(())?;
            let (pipeline, node) = (pipeline.clone(), binding.node.clone());
            let key = ShareKey { pipeline, node, index: share.index };
            let taken = self.observer.token_taken(&key.stream());
            let is_so = share.applied && share.token.is_some() && share.token == taken;
            (!is_so).then(|| format!("{key} as Ready: {share:?}, taken was {taken:?}"))
        })
    }
}

fn name_of(from: Option<PipelinePhase>, to: Option<PipelinePhase>) -> &'static str {
    use PipelinePhase::{Broken, Pending, Plotted, Ready};
    match (from, to) {
        (None, Some(Pending)) => "pipeline: new, Pending",
        (None, Some(Plotted)) => "pipeline: adopted, Plotted",
        (None, Some(Ready)) => "pipeline: adopted, Ready",
        (None, Some(Broken)) => "pipeline: adopted, Broken",
        (Some(Pending), Some(Plotted)) => "pipeline: Pending to Plotted",
        (Some(Plotted), Some(Ready)) => "pipeline: Plotted to Ready",
        (Some(Plotted), Some(Pending)) => "pipeline: Plotted to Pending",
        (Some(Plotted), Some(Broken)) => "pipeline: Plotted to Broken",
        (Some(Ready), Some(Plotted)) => "pipeline: Ready to Plotted",
        (Some(Ready), Some(Pending)) => "pipeline: Ready to Pending",
        (Some(Ready), Some(Broken)) => "pipeline: Ready to Broken",
        (Some(Broken), Some(Plotted)) => "pipeline: Broken to Plotted",
        (Some(Broken), Some(Pending)) => "pipeline: Broken to Pending",
        (Some(Broken), Some(Ready)) => "pipeline: Broken to Ready",
        (Some(_), None) => "pipeline: deleted",
        (from, to) if from == to => "pipeline: for another reason",
        _ => "pipeline: another change",
    }
}
