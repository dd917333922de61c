//! From what is desired and observed to what the plan wants, cluster by cluster. During a hold
//! nothing is planned, so a failover moves nothing.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, WorkerKey, WorkerName};

use super::{Core, PlanDue, Timer};
use crate::effect::{Effect, Notice};

/// Joins and drains that keep coming are gathered for at most so many times the settle time.
const SETTLE_TIMES_MAX: u32 = 5;

impl Core {
    /// Looks at the clusters for which something has changed, as far as the budget goes: plans
    /// their pools, and has their streams planned where that is due.
    pub(super) fn plan(&mut self, now: Moment) {
        self.note_accounts();
        while self.budget.is_left()
            && let Some(name) = self.due.next()
        {
            let held =
                self.ledger().is_some_and(|ledger| ledger.held_by(&name, self.heard).is_some());
            // It is due again when a worker that it waits for has reported, is gone or late.
            if held {
                continue;
            }
            self.budget.spend(1);
            self.end_hold(&name, now);
            let held_back = self.held_back.remove(&name).into_iter().flatten();
            for stream in held_back.filter(|_| !mutation::on(Mutation::HeldBackForgotten)) {
                self.timers.insert((self.heard, Timer::Claim(stream)));
            }
            if !self.plan_pools(&name) {
                self.due.insert(name.clone());
            }
            let Some(cluster) = self.clusters.get_mut(&name) else { continue };
            let is_due = cluster.plan.is_some_and(|plan| plan.at <= now);
            if is_due && !std::mem::replace(&mut cluster.plan_waits, true) {
                self.plans.push_back(name);
            }
        }
    }

    /// Plans a cluster's streams at `at`, unless they are planned before that anyway.
    pub(super) fn plan_at(&mut self, name: &ClusterName, at: Moment, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let due = cluster.plan.get_or_insert(PlanDue { at, first: now });
        due.at = due.at.min(at);
        self.timers.insert((due.at, Timer::Plan(name.clone())));
        if due.at <= now {
            self.due.insert(name.clone());
        }
    }

    /// Plans a cluster's streams once its joins and drains have settled.
    pub(super) fn plan_soon(&mut self, name: &ClusterName, now: Moment) {
        let sets = self.sets_of(name).filter_map(|set| self.sets.get(set));
        let Some(settle) = sets.map(|set| set.spec.moves.settle).max() else { return };
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let at = match cluster.plan {
            None => now + settle,
            Some(due) if due.at <= now => due.at,
            Some(due) => (now + settle).min(due.first + settle * SETTLE_TIMES_MAX).max(due.at),
        };
        let first = cluster.plan.map_or(now, |due| due.first);
        cluster.plan = Some(PlanDue { at, first });
        self.timers.insert((at, Timer::Plan(name.clone())));
    }

    /// A reminder to plan: later joins may have put it off.
    pub(super) fn plan_due(&mut self, name: &ClusterName, now: Moment) {
        let due = self.clusters.get(name).and_then(|cluster| cluster.plan);
        let Some(due) = due else { return };
        if due.at > now {
            self.timers.insert((due.at, Timer::Plan(name.clone())));
        } else {
            self.due.insert(name.clone());
        }
    }

    fn end_hold(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        if std::mem::replace(&mut cluster.hold_ended, true) {
            return;
        }
        let lost = cluster.workers.iter().filter(|(_, worker)| worker.lost);
        let lost: Vec<_> = lost.map(|(worker, _)| worker.clone()).collect();
        for worker in lost {
            let key = WorkerKey { cluster: name.clone(), worker };
            self.timers.insert((self.heard, Timer::Silence(key)));
        }
        self.effects.push_back(Effect::Notice(Notice::HoldEnded(name.clone())));
        self.plan_at(name, now, now);
        self.wake_wants(now);
    }

    /// The workers that can own streams, by name.
    pub(super) fn stream_owners(&self, name: &ClusterName) -> Vec<WorkerName> {
        let workers = self.clusters.get(name).into_iter().flat_map(|it| it.workers.iter());
        workers.filter(|(_, it)| it.owns_streams()).map(|(worker, _)| worker.clone()).collect()
    }
}
