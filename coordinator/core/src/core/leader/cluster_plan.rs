//! Decides when the pools and streams of a cluster are planned. During a hold nothing is planned,
//! so a failover moves nothing.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, WorkerKey};

use super::plan_schedule::PlanTimer;
use super::{Leader, Timer};
use crate::effect::Notice;

impl Leader {
    /// Handles the clusters that have changed, as far as the budget goes: plans their pools, and
    /// queues their streams for a plan if that is due.
    pub(super) fn plan(&mut self, now: Moment) {
        self.mark_accounts();
        while self.replica.budget().is_left()
            && let Some(name) = self.plans.next_marked()
        {
            let on_hold = self.ledger.unreported().hold_of(&name, self.replica.heard()).is_some();
            // The cluster is due again when a worker that it waits for has reported, is gone or is
            // late.
            if on_hold {
                continue;
            }
            self.replica.budget_mut().spend(1);
            self.end_hold(&name, now);
            let held_back = self.pending_frees.take_held_back(&name).into_iter();
            for stream in held_back.filter(|_| !mutation::on(Mutation::HeldBackForgotten)) {
                self.timers.set(self.replica.heard(), Timer::Claim(stream));
            }
            if !self.plan_pools(&name) {
                self.plans.mark(name.clone());
            }
            let Some(cluster) = self.clusters.get_mut(&name) else { continue };
            if cluster.schedule_mut().begin_waiting(now) {
                self.plans.enqueue(name);
            }
        }
    }

    /// Plans a cluster's streams at once.
    pub(super) fn plan_now(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        cluster.schedule_mut().plan_now(now);
        self.plans.mark(name.clone());
    }

    /// Plans a cluster's streams at `at`, unless they are planned before that. Other changes are
    /// planned without waiting for it.
    pub(super) fn plan_again_at(&mut self, name: &ClusterName, at: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        cluster.schedule_mut().plan_again_at(at);
        self.timers.set(at, Timer::Plan(name.clone()));
    }

    /// Plans a cluster's streams once its joins and drains have settled.
    pub(super) fn plan_soon(&mut self, name: &ClusterName, now: Moment) {
        let sets = self.replica.sets_of(name).filter_map(|set| self.replica.sets().get(set));
        let Some(settle) = sets.map(|set| set.spec().moves.settle).max() else { return };
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let at = cluster.schedule_mut().plan_soon(settle, now);
        self.timers.set(at, Timer::Plan(name.clone()));
    }

    /// A timer to plan has run.
    pub(super) fn plan_due(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get(name) else { return };
        match cluster.schedule().timer_due(now) {
            PlanTimer::PlanNow => self.plan_now(name, now),
            PlanTimer::Due => self.plans.mark(name.clone()),
            PlanTimer::PutOff(at) => self.timers.set(at, Timer::Plan(name.clone())),
            PlanTimer::NotNeeded => {}
        }
    }

    /// Whether rebalancing is paused: a disconnected worker may turn out lost, and a rebalance now
    /// would be undone. It pauses for at most twice the cluster's `ttl`.
    pub(super) fn pauses_balance(&mut self, name: &ClusterName, now: Moment) -> bool {
        let Some(cluster) = self.clusters.get_mut(name) else { return false };
        let is_disconnected = cluster
            .workers()
            .values()
            .any(|worker| worker.owns_streams() && !worker.is_connected());
        let ttl = cluster.spec().ttl;
        let until = cluster.schedule_mut().pause_balance(is_disconnected, ttl, now);
        if let Some(until) = until {
            self.plan_again_at(name, until);
        }
        until.is_some()
    }

    fn end_hold(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        if !cluster.end_hold() {
            return;
        }
        let lost = cluster.workers().iter().filter(|(_, worker)| worker.is_lost());
        let lost: Vec<_> = lost.map(|(worker, _)| worker.clone()).collect();
        for worker in lost {
            let key = WorkerKey { cluster: name.clone(), worker };
            self.timers.set(self.replica.heard(), Timer::Silence(key));
        }
        self.replica.notice(Notice::HoldEnded(name.clone()));
        self.plan_now(name, now);
        self.recheck_blocked(now);
    }
}
