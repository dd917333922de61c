//! Decides when the pools and streams of a cluster are planned. During a hold nothing is planned,
//! so a failover moves nothing.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, WorkerKey, WorkerName};

use super::{Leader, PlanDue, Timer};
use crate::effect::Notice;

/// Continuous joins and drains delay a plan for at most this many settle times.
const SETTLE_TIMES_MAX: u32 = 5;
/// Moves for balance wait for missing workers at most this many lease times.
const BALANCE_WAITS_TTLS: u32 = 2;

impl Leader {
    /// Handles the clusters that have changed, as far as the budget goes: plans their pools, and
    /// queues their streams for a plan if that is due.
    pub(super) fn plan(&mut self, now: Moment) {
        self.note_accounts();
        while self.replica.budget.is_left()
            && let Some(name) = self.due.next()
        {
            let held = self.ledger.held_by(&name, self.replica.heard).is_some();
            // The cluster is due again when a worker that it waits for has reported, is gone or is
            // late.
            if held {
                continue;
            }
            self.replica.budget.spend(1);
            self.end_hold(&name, now);
            let held_back = self.ended_during_hold.remove(&name).into_iter().flatten();
            for stream in held_back.filter(|_| !mutation::on(Mutation::HeldBackForgotten)) {
                self.timers.set(self.replica.heard, Timer::Claim(stream));
            }
            if !self.plan_pools(&name) {
                self.due.insert(name.clone());
            }
            let Some(cluster) = self.clusters.get_mut(&name) else { continue };
            let is_due = cluster.plan.is_some_and(|plan| plan.at <= now);
            if is_due && !std::mem::replace(&mut cluster.plan_waits, true) {
                self.plan_queue.push_back(name);
            }
        }
    }

    /// Plans a cluster's streams at once.
    pub(super) fn plan_now(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let due = cluster.plan.get_or_insert(PlanDue { at: now, first: now });
        due.at = due.at.min(now);
        self.due.insert(name.clone());
    }

    /// Plans a cluster's streams at `at`, unless they are planned before that. Other changes are
    /// planned without waiting for it.
    pub(super) fn plan_again_at(&mut self, name: &ClusterName, at: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        cluster.plan_again = cluster.plan_again.into_iter().chain([at]).min();
        self.timers.set(at, Timer::Plan(name.clone()));
    }

    /// Plans a cluster's streams once its joins and drains have settled.
    pub(super) fn plan_soon(&mut self, name: &ClusterName, now: Moment) {
        let sets = self.replica.sets_of(name).filter_map(|set| self.replica.sets.get(set));
        let Some(settle) = sets.map(|set| set.spec.moves.settle).max() else { return };
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let at = match cluster.plan {
            None => now + settle,
            Some(due) if due.at <= now => due.at,
            Some(due) => (now + settle).min(due.first + settle * SETTLE_TIMES_MAX).max(due.at),
        };
        let first = cluster.plan.map_or(now, |due| due.first);
        cluster.plan = Some(PlanDue { at, first });
        self.timers.set(at, Timer::Plan(name.clone()));
    }

    /// A timer to plan has run; later joins may have delayed the plan.
    pub(super) fn plan_due(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get(name) else { return };
        if cluster.plan_again.is_some_and(|at| at <= now) {
            return self.plan_now(name, now);
        }
        match cluster.plan {
            Some(due) if due.at > now => {
                self.timers.set(due.at, Timer::Plan(name.clone()));
            }
            Some(_) => {
                self.due.insert(name.clone());
            }
            None => {}
        }
    }

    /// Whether a plan made now moves nothing for balance. A disconnected worker may turn out lost.
    /// Then its streams need workers, and earlier moves to a worker that has joined were in vain.
    /// So moves wait while its leases last, and for workers that disconnect meanwhile as long
    /// again.
    pub(super) fn balance_waits(&mut self, name: &ClusterName, now: Moment) -> bool {
        let Some(cluster) = self.clusters.get_mut(name) else { return false };
        let mut workers = cluster.workers.values();
        if !workers.any(|worker| worker.owns_streams() && !worker.is_connected()) {
            cluster.balance_waits = None;
            return false;
        }
        let since = *cluster.balance_waits.get_or_insert(now);
        let until = since + cluster.spec.ttl * BALANCE_WAITS_TTLS;
        let waits = now < until;
        if waits {
            self.plan_again_at(name, until);
        }
        waits
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
            self.timers.set(self.replica.heard, Timer::Silence(key));
        }
        self.replica.notice(Notice::HoldEnded(name.clone()));
        self.plan_now(name, now);
        self.recheck_blocked(now);
    }

    /// The workers that can own streams, by name.
    pub(super) fn stream_owners(&self, name: &ClusterName) -> Vec<WorkerName> {
        let workers = self.clusters.get(name).into_iter().flat_map(|it| it.workers.iter());
        workers.filter(|(_, it)| it.owns_streams()).map(|(worker, _)| worker.clone()).collect()
    }
}
