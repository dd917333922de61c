//! A plan under other circumstances, which is shown and never applied. The core is only read, slice
//! by slice, to copy the plan's input; the plan is made from the copy.

use leasehold_types::{ClusterName, Epoch, Moment, StreamKey, WorkerName};

use super::{Stage, StreamPlan};
use crate::core::leader::views::reason;
use crate::core::replica::PlannedWorker;
use crate::core::{Core, Leader};
use crate::exposure::Life;
use crate::view::{PlanView, PlannedMove, PlannedPool, WhatIf};

/// The life of a worker that is only assumed. Lives of accounts begin at 1.
const NO_ACCOUNT: Life = Life(0);

/// A plan that is being made for a [`WhatIf`].
#[derive(Clone, Debug)]
pub struct WhatIfPlan {
    /// The term whose state it copies.
    epoch: Epoch,
    pools: Vec<PlannedPool>,
    plan: Box<StreamPlan>,
    /// Per set, the worker that each stream of the plan has now.
    present: Vec<Vec<Option<WorkerName>>>,
}

impl Core {
    /// A plan of a cluster under other circumstances, before the input of its streams is gathered.
    /// None if no manifest defines the cluster, or this replica does not lead.
    #[must_use]
    pub fn begin_what_if(
        &self,
        name: &ClusterName,
        what_if: &WhatIf,
        now: Moment,
    ) -> Option<WhatIfPlan> {
        self.leader()?.begin_what_if(name, what_if, now)
    }

    /// Gathers at most `most` more streams. Returns whether the input is whole; none if the term
    /// has ended in which the plan began.
    #[must_use]
    pub fn gather_what_if(&self, plan: &mut WhatIfPlan, most: usize) -> Option<bool> {
        let leader = self.leader().filter(|leader| leader.ledger.epoch() == plan.epoch)?;
        Some(leader.gather_what_if(plan, most))
    }
}

impl Leader {
    fn begin_what_if(
        &self,
        name: &ClusterName,
        what_if: &WhatIf,
        now: Moment,
    ) -> Option<WhatIfPlan> {
        self.replica.desired.clusters.get(name)?;
        let pools = self.planned_pools(name, what_if);
        let mut owners = self.planned_workers(name);
        owners.retain(|worker| !what_if.remove.contains(&worker.name));
        let added = what_if.add.iter();
        owners.extend(added.map(|name| PlannedWorker { name: name.clone(), life: NO_ACCOUNT }));
        // The sort is stable: an added worker with the name of a present one changes nothing.
        owners.sort_by(|one, two| one.name.cmp(&two.name));
        owners.dedup_by(|later, first| later.name == first.name);
        let plan = self.begin_plan(name, owners, now);
        let present = vec![Vec::new(); plan.sets.len()];
        Some(WhatIfPlan { epoch: self.ledger.epoch(), pools, plan, present })
    }

    fn gather_what_if(&self, what_if: &mut WhatIfPlan, most: usize) -> bool {
        let WhatIfPlan { plan, present, .. } = what_if;
        if plan.has_whole_input() {
            return true;
        }
        let set = plan.set;
        self.gather_slice(plan, most);
        if let Some((gathered, present)) = plan.sets.get(set).zip(present.get_mut(set))
            && let Some(state) = self.replica.sets.get(&gathered.name)
        {
            present.extend(gathered.which[present.len()..].iter().map(|at| {
                let now = gathered.position(state, *at as usize)?;
                Some(self.planned_on(state, &state.streams[now])?.name.clone())
            }));
        }
        plan.has_whole_input()
    }
}

impl StreamPlan {
    /// Whether all of the input is gathered, and the next step would be to place it.
    fn has_whole_input(&self) -> bool {
        matches!(self.stage, Stage::Count) && self.set == self.sets.len() || self.is_gathered()
    }
}

impl WhatIfPlan {
    /// Continues the placing for at most `units` units of work, once the input is whole. Returns
    /// whether the plan is made.
    #[must_use]
    pub fn place(&mut self, units: usize) -> bool {
        if !matches!(self.plan.stage, Stage::Apply(_)) {
            self.plan.place(units);
        }
        matches!(self.plan.stage, Stage::Apply(_))
    }

    /// The plan, once it is made.
    #[must_use]
    pub fn into_view(self) -> PlanView {
        let mut view = PlanView { pools: self.pools, ..PlanView::default() };
        for (planned, from) in self.plan.planned().zip(self.present.into_iter().flatten()) {
            let key = StreamKey { set: planned.set.clone(), stream: planned.stream.name.clone() };
            let to = planned.on.ok().cloned();
            if let Err(why) = planned.on {
                view.unplaced.push((key.clone(), reason(why).into()));
            }
            if from != to {
                let StreamKey { set, stream } = key;
                view.moves.push(PlannedMove { set, stream, from, to });
            }
        }
        view
    }
}
