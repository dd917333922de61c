//! The planned pool size of each worker of a cluster. Invariant: the cost of a turn grows with the
//! workers whose sizes change, and not with all workers of the cluster.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::message::Jobs;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, WorkerKey, WorkerName};

use super::Leader;
use super::sliced_tasks::SlicedTask;
use crate::desired::RolloutOrder;
use crate::ledger::Account;
use crate::observed::Worker;
use crate::planner::pools::{self, KeptShares, PoolFacts, PoolInput, PoolWorker};
use crate::view::WhatIf;

/// In debug builds clusters of at most this many workers are planned a second time, from scratch.
const CHECKED_MAX: usize = 64;
/// Shares that are changed per unit of work.
const RESHARED_PER_UNIT: usize = 8;

/// The pools of a cluster as they are planned.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    shares: KeptShares,
    /// The committed slots of each worker that can take jobs, and their sum.
    counted: BTreeMap<WorkerName, u32>,
    counted_sum: u64,
    /// Workers that have changed.
    stale: BTreeSet<WorkerName>,
    /// The changed workers that the next plan covers: those that are not read yet, and those that
    /// are. The plan is made when all are read.
    unread: BTreeSet<WorkerName>,
    read: Vec<WorkerName>,
    /// Workers that found fewer free slots than they may have, the newest generation first.
    short: BTreeSet<(Reverse<u64>, WorkerName)>,
    /// The cluster's spec has changed: the pools of all its workers are to be planned.
    all_stale: bool,
}

impl Pools {
    /// The cluster's budget has changed, or something else that concerns all its workers.
    pub(super) fn spec_changed(&mut self) {
        self.all_stale = true;
    }

    /// The workers of the cluster get slots in another order.
    pub(super) fn order_changed<'a>(&mut self, workers: impl Iterator<Item = &'a WorkerName>) {
        self.stale.extend(workers.cloned());
    }

    /// Sets the committed slots of a worker that takes jobs; none for a worker that takes no jobs.
    fn count(&mut self, worker: &WorkerName, committed: Option<u32>) {
        let before = match committed {
            Some(committed) => self.counted.insert(worker.clone(), committed),
            None => self.counted.remove(worker),
        };
        self.counted_sum += u64::from(committed.unwrap_or(0));
        self.counted_sum -= u64::from(before.unwrap_or(0));
    }
}

impl Leader {
    /// A fact of a worker has changed that pools are planned by.
    pub(super) fn pool_changed(&mut self, key: &WorkerKey) {
        if let Some(cluster) = self.clusters.get_mut(&key.cluster) {
            cluster.pools.stale.insert(key.worker.clone());
            self.plans.mark(key.cluster.clone());
        }
    }

    /// Has the workers checked whose accounts have changed.
    pub(super) fn note_accounts(&mut self) {
        for key in self.ledger.take_changed() {
            self.pool_changed(&key);
        }
    }

    /// Plans a cluster's pools as far as the budget goes; returns whether that is done.
    pub(super) fn plan_pools(&mut self, name: &ClusterName) -> bool {
        let Some(cluster) = self.clusters.get_mut(name) else { return true };
        let pools = &mut cluster.pools;
        if pools.unread.is_empty() {
            pools.unread = std::mem::take(&mut pools.stale);
        }
        let all = std::mem::take(&mut pools.all_stale);
        if pools.unread.is_empty() && pools.read.is_empty() && !all {
            return true;
        }
        // At least one worker is read, even if little budget is left.
        while let Some(worker) = pools.unread.pop_first() {
            let key = WorkerKey { cluster: name.clone(), worker: worker.clone() };
            let known = cluster.workers.get(&worker).zip(self.ledger.account(&key));
            let known = known.filter(|(worker, account)| takes_jobs(worker, account));
            let order = cluster.spec.rollout_order;
            let facts = known.map(|(worker, account)| pool_facts(worker, account, order));
            pools.shares.set(&worker, facts);
            pools.count(&worker, known.map(|(_, account)| account.committed()));
            pools.read.push(worker);
            self.replica.budget.spend(1);
            if !self.replica.budget.is_left() {
                break;
            }
        }
        if !pools.unread.is_empty() {
            pools.all_stale = all;
            return false;
        }
        let unreported = match () {
            () if mutation::on(Mutation::UnreportedTakesSlots) => 0,
            () if mutation::on(Mutation::GrowOverBudget) => 0,
            () => self.ledger.unreported(name),
        };
        let counted = pools.counted_sum + u64::from(unreported);
        let elsewhere = match mutation::on(Mutation::GrowOverBudget) {
            true => 0,
            false => u64::from(self.ledger.committed(name)).saturating_sub(counted),
        };
        let elsewhere = u32::try_from(elsewhere).unwrap_or(u32::MAX);
        let budget = cluster.spec.jobs_max.saturating_sub(elsewhere);
        let per_worker_max = cluster.spec.jobs_per_worker_max;
        let mut changed = std::mem::take(&mut pools.read);
        changed.extend(pools.shares.plan(budget, unreported, per_worker_max));
        if all {
            changed.extend(cluster.workers.keys().cloned());
        }
        let is_current = pools.stale.is_empty();
        if cfg!(debug_assertions) && mutation::is_none() && is_current {
            self.check_shares(name);
        }
        self.replica.budget.spend(changed.len() / RESHARED_PER_UNIT);
        let targets = SlicedTask::PoolTargets { cluster: name.clone(), workers: changed };
        self.sliced_tasks.add(targets);
        is_current
    }

    /// Has as many waiting workers checked as there are free slots.
    pub(super) fn hand_out_free(&mut self, name: &ClusterName) {
        let free = self.free_slots(name).unwrap_or(0);
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        for _ in 0..free {
            let Some((_, worker)) = cluster.pools.short.pop_first() else { break };
            self.outgoing.mark(WorkerKey { cluster: name.clone(), worker });
        }
    }

    /// The newest generation whose workers get slots before this one, where it might have more.
    pub(super) fn newer_generation(&self, key: &WorkerKey) -> Option<u64> {
        let cluster = self.clusters.get(&key.cluster)?;
        let worker = cluster.workers.get(&key.worker)?;
        let newest = cluster.pools.shares.newest_generation()?;
        let has_budget = cluster.spec.class.is_none() && cluster.spec.jobs_max > 0;
        let takes_jobs = has_budget && worker.is_working() && worker.is_connected();
        let has_all = worker.target.is_some_and(|size| size >= cluster.spec.jobs_per_worker_max);
        (takes_jobs && !has_all && newest > worker.generation).then_some(newest)
    }

    /// Lets a worker wait for free slots.
    pub(super) fn wait_for_slots(&mut self, key: &WorkerKey) {
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else { return };
        let Some(worker) = cluster.workers.get(&key.worker) else { return };
        cluster.pools.short.insert((Reverse(worker.generation), key.worker.clone()));
    }

    /// Adopts the size that the plan wants for a worker's pool, and has it sent where it differs.
    pub(super) fn retarget(&mut self, key: WorkerKey) {
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else { return };
        let Some(worker) = cluster.workers.get_mut(&key.worker) else { return };
        let account = self.ledger.account(&key);
        let share = cluster.pools.shares.share(&key.worker);
        cluster.pools.shares.adopt(&key.worker);
        // A silent worker cannot be sent anything, so it keeps its size. What a worker has is not
        // known before its first report to this leader, so its target waits for a plan after it.
        let present = if worker.is_working() { account.map_or(0, Account::size) } else { 0 };
        worker.target = share.or(worker.reported.then_some(present));
        let Some(target) = worker.target else { return };
        let pool = account.and_then(|account| account.pool);
        let size = pool.map_or(0, |pool| pool.size);
        let floor = cluster.spec.floor.min(target);
        let floor_differs = pool.is_some_and(|pool| pool.floor != floor);
        let unsure = account.is_some_and(|account| account.size_unsure);
        if size != target || floor_differs || unsure {
            self.outgoing.mark(key);
        }
    }

    /// Checks that the kept shares equal those of a plan from scratch.
    fn check_shares(&self, name: &ClusterName) {
        let Some(cluster) = self.clusters.get(name) else { return };
        if cluster.workers.len() > CHECKED_MAX {
            return;
        }
        for (worker, share) in self.pool_shares(name, None) {
            let kept = cluster.pools.shares.share(&worker);
            debug_assert_eq!(kept, Some(share), "the share of {worker} in cluster {name}");
        }
    }

    /// The pool size of each worker that can take jobs, planned from scratch; with `what_if`, under
    /// other circumstances.
    pub(super) fn pool_shares(
        &self,
        name: &ClusterName,
        what_if: Option<&WhatIf>,
    ) -> BTreeMap<WorkerName, u32> {
        let Some(cluster) = self.clusters.get(name) else { return BTreeMap::new() };
        let ledger = &self.ledger;
        let removed = |worker: &WorkerName| what_if.is_some_and(|it| it.remove.contains(worker));
        let in_force = WhatIf::default();
        let assumed = what_if.unwrap_or(&in_force);
        let order = assumed.rollout_order(name, &cluster.spec);
        let mut workers: Vec<PoolWorker> = Vec::new();
        let (mut elsewhere, mut unreported) = (0u32, 0u32);
        for (key, account) in ledger.accounts_of(name) {
            let state = cluster.workers.get(&key.worker);
            match state.filter(|worker| takes_jobs(worker, account)) {
                Some(_) | None if removed(&key.worker) => {}
                Some(worker) => {
                    let facts = pool_facts(worker, account, order);
                    workers.push(PoolWorker { name: key.worker.clone(), facts });
                }
                None if mutation::on(Mutation::GrowOverBudget) => {}
                None => {
                    let open = account.unreported();
                    elsewhere = elsewhere.saturating_add(account.committed() - open);
                    unreported = unreported.saturating_add(open);
                }
            }
        }
        let newest = workers.iter().map(|worker| worker.facts.generation).max().unwrap_or(0);
        let added = what_if.into_iter().flat_map(|it| it.add.iter()).map(|name| PoolWorker {
            name: name.clone(),
            facts: PoolFacts { generation: newest, present: 0, wanted: 0 },
        });
        workers.extend(added);
        let (jobs_max, per_worker_max) = assumed.budget(name, &cluster.spec);
        let shares = pools::plan(&PoolInput {
            budget: jobs_max.saturating_sub(elsewhere),
            unreported,
            per_worker_max,
            workers: &workers,
        });
        workers.into_iter().map(|worker| worker.name).zip(shares).collect()
    }
}

/// What the pool of a worker is planned by that can take jobs.
fn pool_facts(worker: &Worker, account: &Account, order: RolloutOrder) -> PoolFacts {
    let present = account.size();
    let wanted = worker.target.unwrap_or(present);
    let generation = match order {
        RolloutOrder::Newest if mutation::on(Mutation::GenerationsPassedOver) => 0,
        RolloutOrder::Fair if mutation::on(Mutation::OrderPassedOver) => worker.generation,
        RolloutOrder::Newest => worker.generation,
        RolloutOrder::Fair => 0,
    };
    PoolFacts { generation, present, wanted }
}

/// Whether a worker can take jobs now.
pub(super) fn takes_jobs(worker: &Worker, account: &Account) -> bool {
    worker.is_working()
        && worker.is_connected()
        && !worker.lost
        && account.unknown.is_none()
        && account.jobs != Jobs::Unknown
}
