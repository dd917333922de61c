//! Applies a plan of streams, stream by stream. A stream for which the plan no longer holds is left
//! as it is.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, SetName};

use super::{Range, SetPlan, SetState, Stage, StreamPlan};
use crate::core::Leader;
use crate::core::leader::facts::Facts;
use crate::core::leader::sliced_tasks::SlicedTask;
use crate::core::replica::PlannedWorker;
use crate::planner::streams::{Placement, Unplaced};

/// The effect of a plan on one stream.
struct Outcome {
    /// Where it is in its set as it is now, and as it was.
    at: usize,
    former: u32,
    on: Option<PlannedWorker>,
    unplaced: Option<Unplaced>,
    /// It leaves a living worker.
    moves: bool,
}

impl Leader {
    /// Applies a further slice of the plan; returns how many streams it handled.
    pub(super) fn apply_slice(&mut self, plan: &mut StreamPlan, most: usize, now: Moment) -> usize {
        let Some((at, range)) = plan.next_slice(most, |set| set.which.len()) else { return 1 };
        let handled = 1 + range.len();
        let (outcomes, is_stale) = self.facts().outcomes(plan, at, range.clone());
        plan.is_stale |= is_stale;
        let set_plan = &mut plan.sets[at];
        let Some(set) = self.replica.sets.get_mut(&set_plan.name) else { return handled };
        set.is_planned = true;
        let cooldown = set.spec.moves.cooldown;
        for outcome in outcomes {
            let planned = &mut set.streams[outcome.at];
            planned.unplaced = outcome.unplaced;
            if planned.on != outcome.on {
                if outcome.moves {
                    planned.moved_at = Some(now);
                    set_plan.moves += 1;
                }
                planned.on = outcome.on;
                set_plan.touched.push(outcome.former);
            }
            // If its cooldown had not ended when the plan began, the stream was frozen for this
            // plan.
            let thaws = planned.moved_at.map(|moved| moved + cooldown);
            plan.thaw = plan.thaw.into_iter().chain(thaws.filter(|at| *at > plan.begun)).min();
        }
        if range.end == set_plan.which.len() {
            // If nothing may move at all now, the end of present moves allows the rest.
            set.limited = set_plan.moves >= set_plan.moves_max();
        }
        handled
    }

    /// The plan is applied: the streams that it changes are reconciled.
    pub(super) fn end_plan(&mut self, plan: StreamPlan, now: Moment) {
        let StreamPlan { cluster, sets, is_stale, thaw, .. } = plan;
        for SetPlan { name: set, spec, touched: streams, .. } in sets {
            if streams.is_empty() {
                self.replica.drop_spec(&set, spec);
            } else {
                self.sliced_tasks.add(SlicedTask::ReplannedStreams { set, spec, streams, next: 0 });
            }
        }
        if mutation::on(Mutation::PlanStale) {
            self.forget_plan_due(&cluster);
        }
        if is_stale {
            self.plan_now(&cluster, now);
        }
        if let Some(at) = thaw {
            self.plan_again_at(&cluster, at);
        }
    }

    /// See the mutation.
    fn forget_plan_due(&mut self, name: &ClusterName) {
        self.plans.stop_waiting(name);
        if let Some(cluster) = self.clusters.get_mut(name) {
            cluster.schedule_mut().begin_plan();
        }
    }
}

impl Facts<'_> {
    /// The outcomes of a plan for some streams, and whether any of them has changed since the plan
    /// began.
    fn outcomes(&self, plan: &StreamPlan, at: usize, range: Range) -> (Vec<Outcome>, bool) {
        let (set_plan, Stage::Apply(placements)) = (&plan.sets[at], &plan.stage) else {
            return (Vec::new(), false);
        };
        let Some(set) = self.replica.sets.get(&set_plan.name) else { return (Vec::new(), false) };
        if !set_plan.is_for(set) {
            return (Vec::new(), true);
        }
        let mut outcomes = Vec::with_capacity(range.len());
        let mut is_stale = false;
        for place in range {
            let (former, spec) = (set_plan.which[place], set_plan.specs[place]);
            let (on, unplaced) = match placements[at][place] {
                Placement::On(worker) => (Some(&plan.owners[worker as usize]), None),
                Placement::Unplaced(why) => (None, Some(why)),
            };
            let position = set_plan.position(set, former as usize);
            let holds = position.is_some_and(|now| {
                let is_same = self.stream_spec(plan, &set_plan.name, set, now) == Ok(spec)
                    && (spec.present.is_some() || self.is_known_to(plan, &set_plan.name, set, now))
                    && on.is_none_or(|on| self.can_take(plan, set, now, on));
                is_same || mutation::on(Mutation::PlanStale)
            });
            let Some(now) = position.filter(|_| holds) else {
                is_stale = true;
                continue;
            };
            let moves = spec.present.is_some() && on.is_some();
            outcomes.push(Outcome { at: now, former, on: on.cloned(), unplaced, moves });
        }
        (outcomes, is_stale)
    }

    /// Whether a stream is not on a worker that the plan does not know.
    fn is_known_to(&self, plan: &StreamPlan, name: &SetName, set: &SetState, at: usize) -> bool {
        let Some(on) = self.place_of(plan, name, set, at) else { return true };
        plan.index.contains_key(&*on) || !self.owns_streams(&plan.cluster, &on)
    }

    /// Whether a stream may be planned on a worker now.
    fn can_take(&self, plan: &StreamPlan, set: &SetState, at: usize, on: &PlannedWorker) -> bool {
        set.streams[at].on.as_ref() == Some(on) || self.owns_streams(&plan.cluster, on)
    }

    fn owns_streams(&self, cluster: &ClusterName, on: &PlannedWorker) -> bool {
        let worker = self.clusters.get(cluster).and_then(|cluster| cluster.workers().get(&on.name));
        let owns = worker.is_some_and(|worker| worker.owns_streams());
        owns && self.ledger.life_of(cluster, &on.name) == Some(on.life)
    }
}
