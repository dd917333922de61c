//! Plans the pools of clusters, and has the sizes that differ sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, WorkerKey, WorkerName};

use super::Leader;
use super::facts::Facts;
use super::pools::{PoolsPlan, pool_facts, takes_jobs};
use super::sliced_tasks::SlicedTask;
use crate::planner::pools::{self, PoolFacts, PoolInput, PoolWorker};
use crate::view::WhatIf;

/// In debug builds clusters of at most this many workers are planned a second time, from scratch.
const CHECKED_MAX: usize = 64;

impl Leader {
    /// A fact of a worker has changed that pools are planned by.
    pub(super) fn pool_changed(&mut self, key: &WorkerKey) {
        if let Some(cluster) = self.clusters.get_mut(&key.cluster) {
            cluster.pools_mut().worker_changed(&key.worker);
            self.plans.mark(key.cluster.clone());
        }
    }

    /// Has the workers checked whose accounts have changed.
    pub(super) fn mark_accounts(&mut self) {
        for key in self.ledger.take_changed() {
            self.pool_changed(&key);
        }
    }

    /// Other workers are avoided than `before`: their pools are planned, and the streams of their
    /// clusters.
    pub(in crate::core) fn avoidance_changed(&mut self, before: &BTreeSet<WorkerKey>, now: Moment) {
        let avoided = Arc::clone(self.replica.avoided());
        let mut changed = BTreeSet::new();
        for key in avoided.symmetric_difference(before) {
            self.pool_changed(key);
            changed.insert(&key.cluster);
        }
        for cluster in changed {
            self.plan_soon(cluster, now);
        }
    }

    /// Plans a cluster's pools as far as the budget goes; returns whether that is done.
    pub(super) fn plan_pools(&mut self, name: &ClusterName) -> bool {
        let Some(cluster) = self.clusters.get_mut(name) else { return true };
        let (avoided, budget) = self.replica.avoided_and_budget();
        match cluster.plan_pools(name, &self.ledger, avoided, budget) {
            PoolsPlan::Unchanged => true,
            PoolsPlan::Unfinished => false,
            PoolsPlan::Planned { changed, is_current } => {
                if cfg!(debug_assertions) && mutation::is_none() && is_current {
                    check_shares(name, self.facts());
                }
                let targets = SlicedTask::PoolTargets { cluster: name.clone(), workers: changed };
                self.sliced_tasks.add(targets);
                is_current
            }
        }
    }

    /// Has as many waiting workers checked as there are free slots. A worker that lacks none by now
    /// uses up no slot: it has got its slots otherwise, or is to have fewer than when it was noted.
    pub(super) fn hand_out_free(&mut self, name: &ClusterName) {
        let mut free = self.grant_rules().free_slots(name).unwrap_or(0);
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        while free > 0
            && let Some(worker) = cluster.pools_mut().next_waiting()
        {
            let key = WorkerKey { cluster: name.clone(), worker };
            if cluster.lacks_slots(&key.worker, self.ledger.account(&key)) {
                self.outgoing.mark(key);
                free -= 1;
            }
        }
    }

    /// Adopts the size that the plan wants for a worker's pool, and has it sent where it differs.
    pub(super) fn retarget(&mut self, key: WorkerKey) {
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else { return };
        if cluster.retarget(&key.worker, self.ledger.account(&key)) {
            self.outgoing.mark(key);
        }
    }
}

/// Checks that the kept shares of a cluster equal those of a plan from scratch.
fn check_shares(name: &ClusterName, facts: Facts<'_>) {
    let cluster = facts.clusters.get(name);
    let Some(cluster) = cluster.filter(|cluster| cluster.workers().len() <= CHECKED_MAX) else {
        return;
    };
    for (worker, share) in pool_shares(name, None, facts) {
        let kept = cluster.pools().share(&worker);
        debug_assert_eq!(kept, Some(share), "the share of {worker} in cluster {name}");
    }
}

/// The pool size of each worker that can take jobs, planned from scratch; with `what_if`, under
/// other circumstances.
pub(super) fn pool_shares(
    name: &ClusterName,
    what_if: Option<&WhatIf>,
    facts: Facts<'_>,
) -> BTreeMap<WorkerName, u32> {
    let Some(cluster) = facts.clusters.get(name) else { return BTreeMap::new() };
    let removed =
        |worker: &WorkerName| what_if.is_some_and(|what_if| what_if.remove.contains(worker));
    let in_force = WhatIf::default();
    let assumed = what_if.unwrap_or(&in_force);
    let order = assumed.rollout_order(name, cluster.spec());
    let mut workers: Vec<PoolWorker> = Vec::new();
    let (mut elsewhere, mut unreported) = (0u32, 0u32);
    for (key, account) in facts.ledger.accounts().of(name) {
        let state = cluster.workers().get(&key.worker);
        match state.filter(|worker| takes_jobs(worker, account)) {
            Some(_) | None if removed(&key.worker) => {}
            Some(worker) => {
                let avoided = facts.replica.avoided().contains(key);
                let facts = pool_facts(worker, account, order, avoided);
                workers.push(PoolWorker { name: key.worker.clone(), facts });
            }
            None if mutation::on(Mutation::GrowOverBudget) => {}
            None => {
                let open = account.unreported_slots();
                elsewhere = elsewhere.saturating_add(account.committed() - open);
                unreported = unreported.saturating_add(open);
            }
        }
    }
    let newest = workers.iter().map(|worker| worker.facts.generation).max().unwrap_or(0);
    let added = what_if.into_iter().flat_map(|what_if| what_if.add.iter()).map(|name| PoolWorker {
        name: name.clone(),
        facts: PoolFacts { avoided: false, generation: newest, present: 0, wanted: 0 },
    });
    workers.extend(added);
    let (jobs_max, per_worker_max) = assumed.budget(name, cluster.spec());
    let shares = pools::plan(&PoolInput {
        budget: jobs_max.saturating_sub(elsewhere),
        unreported,
        per_worker_max,
        workers: &workers,
    });
    workers.into_iter().map(|worker| worker.name).zip(shares).collect()
}
