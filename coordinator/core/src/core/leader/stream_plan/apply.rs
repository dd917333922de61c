//! Applies a plan of streams, stream by stream. A stream for which the plan no longer holds is left
//! as it is.

use std::sync::Arc;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, SetName};

use super::{Range, SetState, Stage, StreamPlan};
use crate::core::leader::clusters::Clusters;
use crate::core::leader::facts::Facts;
use crate::core::replica::{PlannedWorker, ReplicaState};
use crate::ledger::Ledger;
use crate::planner::streams::{Placement, Unplaced};

/// The effect of a plan on one stream.
struct Outcome {
    /// Where it is in its set as it is now, and as it was.
    at: usize,
    former: u32,
    on: Option<Arc<PlannedWorker>>,
    unplaced: Option<Unplaced>,
    /// It leaves a living worker.
    moves: bool,
}

impl StreamPlan {
    /// Applies a further slice of the plan to the sets; returns how many streams it handled.
    pub(super) fn apply_slice(
        &mut self,
        most: usize,
        replica: &mut ReplicaState,
        ledger: &Ledger,
        clusters: &Clusters,
        now: Moment,
    ) -> usize {
        let Some((at, range)) = self.next_slice(most, |set| set.which.len()) else { return 1 };
        let handled = 1 + range.len();
        let facts = Facts { replica, ledger, clusters };
        let (outcomes, is_stale) = self.outcomes(at, range.clone(), facts);
        self.is_stale |= is_stale;
        let set_plan = &mut self.sets[at];
        let Some(set) = replica.set_mut(&set_plan.name) else { return handled };
        set.mark_planned();
        let cooldown = set.spec().moves.cooldown;
        for outcome in outcomes {
            let planned = set.slot_mut(outcome.at);
            if planned.place(outcome.on, outcome.unplaced) {
                if outcome.moves {
                    planned.record_move(now);
                    set_plan.moves += 1;
                }
                set_plan.touched.push(outcome.former);
            }
            // If its cooldown had not ended when the plan began, the stream was frozen for this
            // plan.
            let thaws = planned.moved_at().map(|moved| moved + cooldown);
            self.thaw = self.thaw.into_iter().chain(thaws.filter(|at| *at > self.begun)).min();
        }
        if range.end == set_plan.which.len() {
            // If nothing may move at all now, the end of present moves allows the rest.
            set.set_limited(set_plan.moves >= set_plan.moves_max());
        }
        handled
    }

    /// The outcomes of a plan for some streams, and whether any of them has changed since the plan
    /// began.
    fn outcomes(&self, at: usize, range: Range, facts: Facts<'_>) -> (Vec<Outcome>, bool) {
        let (set_plan, Stage::Apply(placements)) = (&self.sets[at], &self.stage) else {
            return (Vec::new(), false);
        };
        let Some(set) = facts.replica.sets().get(&set_plan.name) else {
            return (Vec::new(), false);
        };
        if !set_plan.is_for(set) {
            return (Vec::new(), true);
        }
        let mut outcomes = Vec::with_capacity(range.len());
        let mut is_stale = false;
        for place in range {
            let (former, spec) = (set_plan.which[place], set_plan.specs[place]);
            let (on, unplaced) = match placements[at][place] {
                Placement::On(worker) => (Some(&self.owners[worker as usize]), None),
                Placement::Unplaced(why) => (None, Some(why)),
            };
            let position = set_plan.position(set, former as usize);
            let holds = position.is_some_and(|now| {
                let is_same = self.stream_spec(&set_plan.name, set, now, facts) == Ok(spec)
                    && (spec.present.is_some()
                        || self.knows_place_of(&set_plan.name, set, now, facts))
                    && on.is_none_or(|on| self.can_take(set, now, on, facts));
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
    fn knows_place_of(&self, name: &SetName, set: &SetState, at: usize, facts: Facts<'_>) -> bool {
        let Some(on) = self.place_of(name, set, at, facts) else { return true };
        self.index_of(&on).is_some() || !owns_streams(&self.cluster, &on, facts)
    }

    /// Whether a stream may be planned on a worker now.
    fn can_take(&self, set: &SetState, at: usize, on: &PlannedWorker, facts: Facts<'_>) -> bool {
        set.slot(at).on() == Some(on) || owns_streams(&self.cluster, on, facts)
    }
}

fn owns_streams(cluster: &ClusterName, on: &PlannedWorker, facts: Facts<'_>) -> bool {
    let worker = facts.clusters.get(cluster).and_then(|known| known.workers().get(&on.name));
    let owns = worker.is_some_and(|worker| worker.owns_streams());
    owns && facts.ledger.accounts().is_present(on.account_id, cluster, &on.name)
}
