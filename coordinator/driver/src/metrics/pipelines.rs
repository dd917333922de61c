//! Tallies the states of pipelines from the leader's notices, so that a collection of metrics need
//! not walk over all pipelines.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_types::{Moment, PipelineName};

/// A change of a pipeline's state that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PipelineTransition {
    /// It has become Broken.
    Broken,
    /// It is Ready again, this long after it became Broken.
    Healed(Duration),
}

/// The states of pipelines, from the notices of one term.
#[derive(Debug, Default)]
pub(super) struct PipelineTally {
    phases: HashMap<PipelineName, PipelinePhase>,
    broken_since: HashMap<PipelineName, Moment>,
}

impl PipelineTally {
    /// Updates the tally with a notice.
    pub(super) fn update(&mut self, notice: &Notice, now: Moment) -> Option<PipelineTransition> {
        match notice {
            // Each term reports every state again.
            Notice::Elected(_) | Notice::Deposed(_) => {
                *self = Self::default();
                None
            }
            Notice::Pipeline { pipeline, to: None, .. } => {
                self.phases.remove(pipeline);
                self.broken_since.remove(pipeline);
                None
            }
            Notice::Pipeline { pipeline, to: Some(phase), .. } => {
                self.set_phase(pipeline, *phase, now)
            }
            _ => None,
        }
    }

    fn set_phase(
        &mut self,
        name: &PipelineName,
        phase: PipelinePhase,
        now: Moment,
    ) -> Option<PipelineTransition> {
        let before = self.phases.insert(name.clone(), phase);
        match phase {
            PipelinePhase::Broken if before != Some(PipelinePhase::Broken) => {
                self.broken_since.entry(name.clone()).or_insert(now);
                Some(PipelineTransition::Broken)
            }
            PipelinePhase::Ready => {
                let since = self.broken_since.remove(name)?;
                Some(PipelineTransition::Healed(now.since(since)))
            }
            PipelinePhase::Broken | PipelinePhase::Pending | PipelinePhase::Plotted => None,
        }
    }

    /// The number of pipelines in this state.
    fn count(&self, phase: PipelinePhase) -> usize {
        self.phases.values().filter(|present| **present == phase).count()
    }

    /// The number in each state, of `all` pipelines. A pipeline without a notice is Pending.
    pub(super) fn counts(&self, all: usize) -> [(&'static str, usize); 4] {
        let [plotted, ready, broken] =
            [PipelinePhase::Plotted, PipelinePhase::Ready, PipelinePhase::Broken]
                .map(|phase| self.count(phase));
        let pending = all.saturating_sub(plotted + ready + broken);
        [("pending", pending), ("plotted", plotted), ("ready", ready), ("broken", broken)]
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::Epoch;

    use super::*;

    fn seconds(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(seconds)
    }

    fn notice(name: &str, to: Option<PipelinePhase>) -> Notice {
        let pipeline = PipelineName::new(name).expect("a name");
        Notice::Pipeline { pipeline, from: None, to, why: String::new() }
    }

    #[test]
    fn heal_time_is_measured_from_the_first_break() {
        use PipelinePhase::{Broken, Pending, Plotted, Ready};
        let mut tally = PipelineTally::default();
        assert_eq!(tally.update(&notice("a", Some(Ready)), seconds(1)), None);
        assert_eq!(
            tally.update(&notice("a", Some(Broken)), seconds(2)),
            Some(PipelineTransition::Broken)
        );
        assert_eq!(tally.update(&notice("b", Some(Plotted)), seconds(2)), None);
        let counts = [("pending", 3), ("plotted", 1), ("ready", 0), ("broken", 1)];
        assert_eq!(tally.counts(5), counts);
        assert_eq!(tally.update(&notice("a", Some(Pending)), seconds(3)), None);
        assert_eq!(tally.update(&notice("a", Some(Plotted)), seconds(4)), None);
        assert_eq!(
            tally.update(&notice("a", Some(Broken)), seconds(5)),
            Some(PipelineTransition::Broken)
        );
        let healed = Some(PipelineTransition::Healed(Duration::from_secs(7)));
        assert_eq!(tally.update(&notice("a", Some(Ready)), seconds(9)), healed);
        assert_eq!(tally.update(&notice("a", Some(Ready)), seconds(10)), None);
    }

    #[test]
    fn deleted_pipelines_and_earlier_terms_are_not_counted() {
        let mut tally = PipelineTally::default();
        let broken = Some(PipelinePhase::Broken);
        tally.update(&notice("a", broken), seconds(1));
        tally.update(&notice("a", None), seconds(2));
        assert_eq!(tally.update(&notice("a", Some(PipelinePhase::Ready)), seconds(3)), None);
        tally.update(&notice("b", broken), seconds(4));
        tally.update(&Notice::Elected(Epoch(2)), seconds(5));
        assert_eq!(tally.counts(1)[0], ("pending", 1));
        assert_eq!(tally.update(&notice("b", Some(PipelinePhase::Ready)), seconds(6)), None);
    }
}
