//! The phases that each pipeline has gone through since its status was written, so that a short one
//! is shown, too.

use std::collections::BTreeMap;

use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_types::PipelineName;

/// Changes of one pipeline that are remembered until they are shown.
const CHANGES_MAX: usize = 8;

/// From one phase to the next.
type PhaseChange = (Option<PipelinePhase>, PipelinePhase);

/// The changes of phase that no status shows yet.
#[derive(Debug, Default)]
pub(super) struct PhaseHistory(BTreeMap<PipelineName, Vec<PhaseChange>>);

impl PhaseHistory {
    /// Records that a pipeline has gone from one phase to another.
    pub(super) fn record(&mut self, name: &PipelineName, change: PhaseChange) {
        let changes = self.0.entry(name.clone()).or_default();
        if changes.len() == CHANGES_MAX {
            changes.remove(0);
        }
        changes.push(change);
    }

    /// Forgets a pipeline that the core no longer has.
    pub(super) fn forget(&mut self, name: &PipelineName) {
        self.0.remove(name);
    }

    /// Forgets every change.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes the phases that a pipeline went through between the one that is shown and the one that
    /// it is in, both left out; none of them where `only_newest`.
    pub(super) fn take(
        &mut self,
        name: &PipelineName,
        shown: Option<PipelinePhase>,
        is: PipelinePhase,
        only_newest: bool,
    ) -> Vec<PipelinePhase> {
        let Some(changes) = self.0.get_mut(name) else { return Vec::new() };
        // Later changes are shown by the next reconciliation.
        let Some(end) = changes.iter().rposition(|(_, to)| *to == is) else { return Vec::new() };
        let passed: Vec<PhaseChange> = changes.drain(..=end).collect();
        if changes.is_empty() {
            self.0.remove(name);
        }
        // A notice may arrive after the phase was read: then no change starts from the shown one.
        let start = passed.iter().position(|(from, _)| *from == shown).filter(|_| !only_newest);
        passed[start.unwrap_or(end)..end].iter().map(|(_, to)| *to).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::PipelinePhase::{Broken, Pending, Plotted, Ready};
    use super::*;

    fn name(text: &str) -> PipelineName {
        PipelineName::in_namespace("ns", text).expect("a name")
    }

    fn go(history: &mut PhaseHistory, path: &[PipelinePhase]) {
        for phase_change in path.windows(2) {
            history.record(&name("a"), (Some(phase_change[0]), phase_change[1]));
        }
    }

    #[test]
    fn shows_each_phase_once_and_in_order() {
        let mut history = PhaseHistory::default();
        let pipeline = name("a");
        history.record(&pipeline, (None, Pending));
        go(&mut history, &[Pending, Plotted]);
        assert_eq!(history.take(&pipeline, None, Plotted, false), [Pending]);
        assert_eq!(history.take(&pipeline, Some(Plotted), Plotted, false), []);
        go(&mut history, &[Plotted, Ready, Broken, Plotted, Ready, Broken]);
        assert_eq!(history.take(&pipeline, Some(Plotted), Ready, false), [Ready, Broken, Plotted]);
        assert_eq!(history.take(&pipeline, Some(Ready), Broken, false), [], "the rest is for now");
        go(&mut history, &[Broken, Plotted]);
        assert_eq!(
            history.take(&pipeline, Some(Plotted), Plotted, false),
            [],
            "the phase was observed before its notice"
        );
        go(&mut history, &[Plotted, Broken, Pending]);
        assert_eq!(history.take(&pipeline, Some(Plotted), Pending, true), [], "there are too many");
    }
}
