//! The planned pool size of each worker of a cluster. Invariant: the cost of a turn grows with the
//! workers whose sizes change, and not with all workers of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::message::Jobs;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, WorkerKey, WorkerName};

use crate::core::turn_budget::TurnBudget;
use crate::desired::{Cluster, RolloutOrder};
use crate::ledger::{Account, Ledger};
use crate::observed::Worker;
use crate::ordered_table::OrderedTable;
use crate::planner::pools::{KeptShares, PoolFacts, PoolRank};

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
    /// Workers that found fewer free slots than they may have, in the order of their ranks.
    short: BTreeSet<(PoolRank, WorkerName)>,
    /// The cluster's spec has changed: the pools of all its workers are to be planned.
    all_stale: bool,
}

/// What the pools of a cluster are planned from.
#[derive(Clone, Copy)]
pub(super) struct PoolSources<'a> {
    pub(super) name: &'a ClusterName,
    pub(super) spec: &'a Cluster,
    pub(super) workers: &'a OrderedTable<WorkerName, Worker>,
    pub(super) ledger: &'a Ledger,
    pub(super) avoided: &'a BTreeSet<WorkerKey>,
}

/// How far a plan of pools has come.
#[derive(Debug)]
pub(super) enum PoolsPlan {
    /// No worker has changed.
    Unchanged,
    /// The budget of the turn is spent, and the plan is continued in the next one.
    Unfinished,
    /// The sizes of these workers may have changed.
    Planned {
        changed: Vec<WorkerName>,
        /// No worker has changed since the plan began.
        is_current: bool,
    },
}

impl<'a> PoolSources<'a> {
    /// What the pool of a worker is planned by, and its committed slots; none if it takes no jobs.
    fn facts_of(&self, worker: &WorkerName) -> Option<(PoolFacts, u32)> {
        let key = WorkerKey { cluster: self.name.clone(), worker: worker.clone() };
        let known = self.workers.get(worker).zip(self.ledger.account(&key));
        let (worker, account) = known.filter(|(worker, account)| takes_jobs(worker, account))?;
        let avoided = self.avoided.contains(&key);
        let facts = pool_facts(worker, account, self.spec.rollout_order, avoided);
        Some((facts, account.committed()))
    }
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

    /// A fact of a worker has changed that pools are planned by.
    pub(super) fn worker_changed(&mut self, worker: &WorkerName) {
        self.stale.insert(worker.clone());
    }

    /// Plans the pools of the workers that have changed, as far as the budget goes.
    pub(super) fn plan(
        &mut self,
        sources: &PoolSources<'_>,
        turn_budget: &mut TurnBudget,
    ) -> PoolsPlan {
        let PoolSources { name, spec, ledger, .. } = *sources;
        if self.unread.is_empty() {
            self.unread = std::mem::take(&mut self.stale);
        }
        let all = std::mem::take(&mut self.all_stale);
        if self.unread.is_empty() && self.read.is_empty() && !all {
            return PoolsPlan::Unchanged;
        }
        // At least one worker is read, even if little budget is left.
        while let Some(worker) = self.unread.pop_first() {
            let known = sources.facts_of(&worker);
            self.shares.set(&worker, known.map(|(facts, _)| facts));
            self.count(&worker, known.map(|(_, committed)| committed));
            self.read.push(worker);
            turn_budget.spend(1);
            if !turn_budget.is_left() {
                break;
            }
        }
        if !self.unread.is_empty() {
            self.all_stale = all;
            return PoolsPlan::Unfinished;
        }
        let are_ignored =
            mutation::on(Mutation::UnreportedTakesSlots) || mutation::on(Mutation::GrowOverBudget);
        let unreported = if are_ignored { 0 } else { ledger.accounts().unreported_slots(name) };
        let counted = self.counted_sum + u64::from(unreported);
        let elsewhere = if mutation::on(Mutation::GrowOverBudget) {
            0
        } else {
            u64::from(ledger.accounts().committed(name)).saturating_sub(counted)
        };
        let elsewhere = u32::try_from(elsewhere).unwrap_or(u32::MAX);
        let budget = spec.jobs_max.saturating_sub(elsewhere);
        let mut changed = std::mem::take(&mut self.read);
        changed.extend(self.shares.plan(budget, unreported, spec.jobs_per_worker_max));
        if all {
            changed.extend(sources.workers.keys().cloned());
        }
        turn_budget.spend(changed.len() / RESHARED_PER_UNIT);
        PoolsPlan::Planned { changed, is_current: self.stale.is_empty() }
    }

    /// The size that the plan wants for a worker's pool.
    pub(super) fn share(&self, worker: &WorkerName) -> Option<u32> {
        self.shares.share(worker)
    }

    /// The same; the worker's target is that size from now on.
    pub(super) fn adopt_share(&mut self, worker: &WorkerName) -> Option<u32> {
        let share = self.shares.share(worker);
        self.shares.adopt(worker);
        share
    }

    /// The newest generation of the workers that take jobs.
    pub(super) fn newest_generation(&self) -> Option<u64> {
        self.shares.newest_generation()
    }

    /// A worker of this rank has found fewer free slots than it may have.
    pub(super) fn wait_for_slots(&mut self, rank: PoolRank, worker: &WorkerName) {
        self.short.insert((rank, worker.clone()));
    }

    /// Takes the worker that gets free slots next.
    pub(super) fn next_waiting(&mut self) -> Option<WorkerName> {
        self.short.pop_first().map(|(_, worker)| worker)
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

/// What the pool of a worker is planned by that can take jobs.
pub(super) fn pool_facts(
    worker: &Worker,
    account: &Account,
    order: RolloutOrder,
    avoided: bool,
) -> PoolFacts {
    let present = account.size();
    let wanted = worker.target().unwrap_or(present);
    let generation = match order {
        RolloutOrder::Newest if mutation::on(Mutation::GenerationsPassedOver) => 0,
        RolloutOrder::Fair if mutation::on(Mutation::OrderPassedOver) => worker.generation(),
        RolloutOrder::Newest => worker.generation(),
        RolloutOrder::Fair => 0,
    };
    PoolFacts { avoided, generation, present, wanted }
}

/// Whether a worker can take jobs now.
pub(super) fn takes_jobs(worker: &Worker, account: &Account) -> bool {
    worker.is_working()
        && worker.is_connected()
        && !worker.is_lost()
        && account.unaccounted().is_none()
        && account.jobs() != Jobs::Unknown
}
