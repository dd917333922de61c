//! A plan under other circumstances, which is shown and never applied. The core is only read, slice
//! by slice, to copy the plan's input; the plan is made from the copy.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_types::{ClusterName, Epoch, Moment, SetName, StreamKey, WorkerName};

use super::{SetState, Stage, StreamPlan, begin_plan, stream_owners};
use crate::core::Core;
use crate::core::leader::Query;
use crate::core::leader::views::reason;
use crate::core::replica::{PlannedWorker, SetPreview};
use crate::desired::StreamSet;
use crate::exposure::AccountId;
use crate::view::{PlanView, PlannedMove, PlannedPool, WhatIf};

/// The account of a worker that is only assumed. Ids of accounts begin at 1.
const NO_ACCOUNT: AccountId = AccountId(0);

/// A plan that is being made for a [`WhatIf`].
#[derive(Clone, Debug)]
pub struct WhatIfPlan {
    /// The term whose state it copies.
    epoch: Epoch,
    pools: Vec<PlannedPool>,
    /// The assumed sets that are still to be read, the next one last.
    unread: Vec<(SetName, SetPreview)>,
    /// Those that are read: they count in place of the sets that are in force.
    assumed: BTreeMap<SetName, SetState>,
    /// The sets in force whose streams may go, the next one last, and how many were looked at.
    going: Vec<(SetName, usize)>,
    /// Streams that the cluster would not have any more.
    gone: Vec<PlannedMove>,
    plan: Box<StreamPlan>,
    /// Per set, the worker that each stream of the plan has now.
    present: Vec<Vec<Option<WorkerName>>>,
}

impl WhatIfPlan {
    /// A plan of a cluster under other circumstances, before the input of its streams is gathered.
    /// None if no manifest defines the cluster, in force or assumed, or this replica does not lead.
    #[must_use]
    pub fn begin(core: &Core, name: &ClusterName, what_if: &WhatIf, now: Moment) -> Option<Self> {
        core.query()?.begin_what_if(name, what_if, now)
    }

    /// Gathers at most `most` more streams. Returns whether the input is whole; none if the term
    /// has ended in which the plan began.
    #[must_use]
    pub fn gather(&mut self, core: &Core, most: usize) -> Option<bool> {
        let query = core.query().filter(|query| query.ledger.epoch() == self.epoch)?;
        Some(query.gather_what_if(self, most))
    }
}

impl Query<'_> {
    fn begin_what_if(
        &self,
        name: &ClusterName,
        what_if: &WhatIf,
        now: Moment,
    ) -> Option<WhatIfPlan> {
        let desired = what_if.desired.as_deref();
        let known = [Some(&**self.replica.desired()), desired];
        known.into_iter().flatten().find(|desired| desired.clusters.contains_key(name))?;
        let pools = self.planned_pools(name, what_if);
        let mut owners = stream_owners(name, self.facts());
        owners.retain(|worker| !what_if.remove.contains(&worker.name));
        let assumed = |name: &WorkerName| {
            Arc::new(PlannedWorker { name: name.clone(), account_id: NO_ACCOUNT })
        };
        owners.extend(what_if.add.iter().map(assumed));
        // The sort is stable: an added worker with the name of a present one changes nothing.
        owners.sort_by(|one, two| one.name.cmp(&two.name));
        owners.dedup_by(|later, first| later.name == first.name);
        let in_force = self.replica.sets_of(name);
        let in_force: Vec<_> =
            in_force.filter_map(|set| self.replica.sets().get_key_value(set)).collect();
        let sets: Vec<(&SetName, &Arc<StreamSet>)> = match desired {
            None => in_force.iter().map(|(name, set)| (*name, set.spec())).collect(),
            Some(desired) => desired.sets.iter().filter(|(_, set)| set.cluster == *name).collect(),
        };
        let is_in_force = |name: &SetName, spec: &Arc<StreamSet>| {
            self.replica.sets().get(name).is_some_and(|set| Arc::ptr_eq(set.spec(), spec))
        };
        let unread = sets.iter().filter(|(name, spec)| !is_in_force(name, spec));
        let unread = unread.map(|(name, spec)| ((*name).clone(), SetPreview::new(spec))).collect();
        let stays = |name: &SetName, set: &SetState| {
            sets.iter().any(|(other, spec)| *other == name && Arc::ptr_eq(spec, set.spec()))
        };
        let going = in_force.into_iter().filter(|(name, set)| !stays(name, set));
        let going = going.map(|(name, _)| (name.clone(), 0)).collect();
        let plan = begin_plan(name, owners, self.replica.avoided(), sets.into_iter(), now);
        Some(WhatIfPlan {
            epoch: self.ledger.epoch(),
            pools,
            unread,
            assumed: BTreeMap::new(),
            going,
            gone: Vec::new(),
            present: vec![Vec::new(); plan.sets.len()],
            plan,
        })
    }

    /// Reads further of the next assumed set.
    fn read_assumed(&self, what_if: &mut WhatIfPlan, most: usize) {
        let Some((name, preview)) = what_if.unread.last_mut() else { return };
        preview.read(self.replica.sets().get(name), most);
        if preview.is_whole()
            && let Some((name, preview)) = what_if.unread.pop()
        {
            what_if.assumed.insert(name, preview.into_state());
        }
    }

    /// Looks at further streams of the next set whose streams may go.
    fn find_gone(&self, what_if: &mut WhatIfPlan, most: usize) {
        let WhatIfPlan { assumed, going, gone, plan, .. } = what_if;
        let Some((name, at)) = going.last_mut() else { return };
        let set = self.replica.sets().get(name);
        let streams = set.map_or(0, |set| set.len());
        let end = at.saturating_add(most).min(streams);
        let next = assumed.get(name).filter(|next| next.spec().cluster == plan.cluster);
        if let Some(set) = set {
            for at in (*at).min(end)..end {
                let stream = &set.spec().streams[at].name;
                let goes = next.is_none_or(|next| next.position(stream).is_none());
                if let Some(on) =
                    set.slot(at).planned_on(&set.spec().cluster, self.ledger).filter(|_| goes)
                {
                    let (set, stream) = (name.clone(), stream.clone());
                    let from = Some(on.name.clone());
                    gone.push(PlannedMove { set, stream, from, to: None });
                }
            }
        }
        *at = end;
        if end == streams {
            going.pop();
        }
    }

    fn gather_what_if(&self, what_if: &mut WhatIfPlan, most: usize) -> bool {
        if !what_if.unread.is_empty() {
            self.read_assumed(what_if, most);
            return false;
        }
        if !what_if.going.is_empty() {
            self.find_gone(what_if, most);
            return false;
        }
        let WhatIfPlan { plan, present, assumed, .. } = what_if;
        if plan.has_whole_input() {
            return true;
        }
        let set = plan.set;
        plan.gather_slice(assumed, most, self.facts());
        if let Some((gathered, present)) = plan.sets.get(set).zip(present.get_mut(set))
            && let Some(state) =
                assumed.get(&gathered.name).or_else(|| self.replica.sets().get(&gathered.name))
        {
            present.extend(gathered.which[present.len()..].iter().map(|at| {
                let now = gathered.position(state, *at as usize)?;
                let on = state.slot(now).planned_on(&state.spec().cluster, self.ledger)?;
                Some(on.name.clone())
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
        view.moves.extend(self.gone);
        view
    }
}
