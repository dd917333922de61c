//! Which pipelines are to be looked at, and when; and which states each has gone through since it
//! was shown. Each is looked at by one at a time.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_types::{Moment, PipelineName};

/// States of one pipeline that are remembered until they are shown.
const PHASES_MAX: usize = 8;
/// With more pipelines than this to be looked at, only the newest state of each is shown.
const QUEUED_WITH_PHASES_MAX: usize = 64;

/// From one state to the next.
type PhaseChange = (Option<PipelinePhase>, PipelinePhase);

/// The agenda.
#[derive(Debug, Default)]
pub(super) struct ReconcileQueue {
    at: BTreeMap<PipelineName, Moment>,
    by_time: BTreeSet<(Moment, PipelineName)>,
    phases: BTreeMap<PipelineName, Vec<PhaseChange>>,
    busy: BTreeSet<PipelineName>,
    rests: BTreeMap<PipelineName, Moment>,
}

impl ReconcileQueue {
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
        self.phases.remove(name);
    }

    /// A pipeline has gone from one state to another.
    pub(super) fn phase_change(&mut self, name: &PipelineName, phase_change: PhaseChange) {
        let phases = self.phases.entry(name.clone()).or_default();
        if phases.len() == PHASES_MAX {
            phases.remove(0);
        }
        phases.push(phase_change);
    }

    /// Takes up to `most` pipelines that are due; each is busy until [`ReconcileQueue::done`].
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
    pub(super) fn phases(
        &mut self,
        name: &PipelineName,
        shown: Option<PipelinePhase>,
        is: PipelinePhase,
    ) -> Vec<PipelinePhase> {
        let is_crowded = self.at.len() > QUEUED_WITH_PHASES_MAX;
        let Some(phases) = self.phases.get_mut(name) else { return Vec::new() };
        // What comes after the state that was seen is said by the next look.
        let Some(end) = phases.iter().rposition(|(_, to)| *to == is) else { return Vec::new() };
        let passed: Vec<PhaseChange> = phases.drain(..=end).collect();
        if phases.is_empty() {
            self.phases.remove(name);
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
        let mut queue = ReconcileQueue::default();
        queue.put(name("b"), Moment(5));
        queue.put(name("a"), Moment(9));
        queue.put(name("a"), Moment(7));
        queue.put(name("b"), Moment(6));
        assert_eq!(queue.next(), Some(Moment(5)));
        assert_eq!(queue.take(9, Moment(6)), [name("b")]);
        queue.put(name("b"), Moment(1));
        assert_eq!(queue.take(9, Moment(8)), [name("a")]);
        assert_eq!(queue.next(), None, "both are looked at");
        queue.done(&name("b"));
        assert_eq!(queue.take(9, Moment(8)), [name("b")], "it changed meanwhile");
        queue.done(&name("b"));
        queue.put(name("b"), Moment(8));
        queue.rest(&name("b"), Moment(20));
        queue.put(name("b"), Moment(9));
        assert_eq!(queue.next(), Some(Moment(20)), "it rests");
        assert_eq!(queue.take(9, Moment(20)), [name("b")]);
        queue.clear();
        assert!(!queue.is_busy(&name("b")), "whoever looked at it was ended");
        queue.put(name("b"), Moment(21));
        assert_eq!(queue.take(9, Moment(21)), [name("b")]);
    }

    fn go(queue: &mut ReconcileQueue, path: &[PipelinePhase]) {
        for phase_change in path.windows(2) {
            queue.phase_change(&name("a"), (Some(phase_change[0]), phase_change[1]));
        }
    }

    #[test]
    fn what_was_gone_through_is_shown_once_and_in_order() {
        let mut queue = ReconcileQueue::default();
        let it = name("a");
        queue.phase_change(&it, (None, Pending));
        go(&mut queue, &[Pending, Plotted]);
        assert_eq!(queue.phases(&it, None, Plotted), [Pending]);
        assert_eq!(queue.phases(&it, Some(Plotted), Plotted), []);
        go(&mut queue, &[Plotted, Ready, Broken, Plotted, Ready, Broken]);
        assert_eq!(queue.phases(&it, Some(Plotted), Ready), [Ready, Broken, Plotted]);
        assert_eq!(queue.phases(&it, Some(Ready), Broken), [], "the rest is for now");
        go(&mut queue, &[Broken, Plotted]);
        assert_eq!(queue.phases(&it, Some(Plotted), Plotted), [], "it was seen before it was told");
        go(&mut queue, &[Plotted, Broken, Pending]);
        (0..=QUEUED_WITH_PHASES_MAX)
            .for_each(|number| queue.put(name(&format!("p{number}")), Moment(0)));
        assert_eq!(queue.phases(&it, Some(Plotted), Pending), [], "there are too many");
    }
}
