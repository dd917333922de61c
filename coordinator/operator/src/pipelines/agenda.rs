//! Which pipelines are to be looked at, and when; and which states each has gone through since it
//! was shown. Each is looked at by one at a time.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_types::{Moment, PipelineName};

/// States of one pipeline that are remembered until they are shown.
const STEPS_MAX: usize = 8;
/// With more pipelines than this to be looked at, only the newest state of each is shown.
const CROWD: usize = 64;

/// From one state to the next.
type Step = (Option<PipelinePhase>, PipelinePhase);

/// The agenda.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    at: BTreeMap<PipelineName, Moment>,
    by_time: BTreeSet<(Moment, PipelineName)>,
    steps: BTreeMap<PipelineName, Vec<Step>>,
    busy: BTreeSet<PipelineName>,
    rests: BTreeMap<PipelineName, Moment>,
}

impl Agenda {
    /// Has a pipeline looked at, no later than at `at`, or when it has rested.
    pub(super) fn put(&mut self, name: PipelineName, at: Moment) {
        let at = self.rests.get(&name).map_or(at, |until| at.max(*until));
        if let Some(before) = self.at.get(&name) {
            if *before <= at {
                return;
            }
            self.by_time.remove(&(*before, name.clone()));
        }
        self.at.insert(name.clone(), at);
        self.by_time.insert((at, name));
    }

    /// Has nobody look at a pipeline before `until`.
    pub(super) fn rest(&mut self, name: &PipelineName, until: Moment) {
        self.rests.insert(name.clone(), until);
        if self.at.get(name).is_some_and(|at| *at < until) {
            self.strike(name);
            self.put(name.clone(), until);
        }
    }

    /// A pipeline is there no more.
    pub(super) fn end(&mut self, name: &PipelineName) {
        self.steps.remove(name);
    }

    /// A pipeline has gone from one state to another.
    pub(super) fn step(&mut self, name: &PipelineName, step: Step) {
        let steps = self.steps.entry(name.clone()).or_default();
        if steps.len() == STEPS_MAX {
            steps.remove(0);
        }
        steps.push(step);
    }

    /// Takes up to `most` pipelines that are due; each is busy until [`Agenda::done`].
    pub(super) fn take(&mut self, most: usize, now: Moment) -> Vec<PipelineName> {
        let due = self.by_time.iter().take_while(|(at, _)| *at <= now);
        let free = due.map(|(_, name)| name).filter(|name| !self.busy.contains(*name));
        let taken: Vec<_> = free.take(most).cloned().collect();
        for name in &taken {
            self.strike(name);
            self.rests.remove(name);
            self.busy.insert(name.clone());
        }
        taken
    }

    /// Whether somebody looks at a pipeline.
    pub(super) fn is_busy(&self, name: &PipelineName) -> bool {
        self.busy.contains(name)
    }

    /// Nobody looks at a pipeline any more.
    pub(super) fn done(&mut self, name: &PipelineName) {
        self.busy.remove(name);
    }

    /// The states that a pipeline went through on its way from the one that is shown to the one
    /// that it is in, both left out.
    pub(super) fn steps(
        &mut self,
        name: &PipelineName,
        shown: Option<PipelinePhase>,
        is: PipelinePhase,
    ) -> Vec<PipelinePhase> {
        let is_crowded = self.at.len() > CROWD;
        let Some(steps) = self.steps.get_mut(name) else { return Vec::new() };
        // What comes after the state that was seen is said by the next look.
        let Some(end) = steps.iter().rposition(|(_, to)| *to == is) else { return Vec::new() };
        let passed: Vec<Step> = steps.drain(..=end).collect();
        if steps.is_empty() {
            self.steps.remove(name);
        }
        // What was told late, after it was seen, begins elsewhere.
        let start = passed.iter().position(|(from, _)| *from == shown).filter(|_| !is_crowded);
        let way = &passed[start.unwrap_or(end)..end];
        way.iter().map(|(_, to)| *to).collect()
    }

    /// When the next pipeline is due that nobody looks at.
    pub(super) fn next(&self) -> Option<Moment> {
        let mut free = self.by_time.iter().filter(|(_, name)| !self.busy.contains(name));
        free.next().map(|(at, _)| *at)
    }

    /// Forgets all, and who is looked at.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn strike(&mut self, name: &PipelineName) {
        if let Some(at) = self.at.remove(name) {
            self.by_time.remove(&(at, name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PipelinePhase::{Broken, Pending, Plotted, Ready};
    use super::*;

    fn name(text: &str) -> PipelineName {
        PipelineName::in_namespace("ns", text).expect("a name")
    }

    #[test]
    fn the_longest_due_come_first_and_each_is_looked_at_by_one() {
        let mut agenda = Agenda::default();
        agenda.put(name("b"), Moment(5));
        agenda.put(name("a"), Moment(9));
        agenda.put(name("a"), Moment(7));
        agenda.put(name("b"), Moment(6));
        assert_eq!(agenda.next(), Some(Moment(5)));
        assert_eq!(agenda.take(9, Moment(6)), [name("b")]);
        agenda.put(name("b"), Moment(1));
        assert_eq!(agenda.take(9, Moment(8)), [name("a")]);
        assert_eq!(agenda.next(), None, "both are looked at");
        agenda.done(&name("b"));
        assert_eq!(agenda.take(9, Moment(8)), [name("b")], "it changed meanwhile");
        agenda.done(&name("b"));
        agenda.put(name("b"), Moment(8));
        agenda.rest(&name("b"), Moment(20));
        agenda.put(name("b"), Moment(9));
        assert_eq!(agenda.next(), Some(Moment(20)), "it rests");
        assert_eq!(agenda.take(9, Moment(20)), [name("b")]);
        agenda.clear();
        assert!(!agenda.is_busy(&name("b")), "whoever looked at it was ended");
        agenda.put(name("b"), Moment(21));
        assert_eq!(agenda.take(9, Moment(21)), [name("b")]);
    }

    fn go(agenda: &mut Agenda, path: &[PipelinePhase]) {
        for step in path.windows(2) {
            agenda.step(&name("a"), (Some(step[0]), step[1]));
        }
    }

    #[test]
    fn what_was_gone_through_is_shown_once_and_in_order() {
        let mut agenda = Agenda::default();
        let it = name("a");
        agenda.step(&it, (None, Pending));
        go(&mut agenda, &[Pending, Plotted]);
        assert_eq!(agenda.steps(&it, None, Plotted), [Pending]);
        assert_eq!(agenda.steps(&it, Some(Plotted), Plotted), []);
        go(&mut agenda, &[Plotted, Ready, Broken, Plotted, Ready, Broken]);
        assert_eq!(agenda.steps(&it, Some(Plotted), Ready), [Ready, Broken, Plotted]);
        assert_eq!(agenda.steps(&it, Some(Ready), Broken), [], "the rest is for now");
        go(&mut agenda, &[Broken, Plotted]);
        assert_eq!(agenda.steps(&it, Some(Plotted), Plotted), [], "it was seen before it was told");
        go(&mut agenda, &[Plotted, Broken, Pending]);
        (0..=CROWD).for_each(|number| agenda.put(name(&format!("p{number}")), Moment(0)));
        assert_eq!(agenda.steps(&it, Some(Plotted), Pending), [], "there are too many");
    }
}
