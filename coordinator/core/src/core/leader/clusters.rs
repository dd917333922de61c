//! The clusters of a leader and the workers in them.
//!
//! Invariant: a cluster stays as long as a manifest defines it or it has a worker; without a
//! manifest its budget is 0.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::{ClusterName, Incarnation, WorkerKey, WorkerName};

use super::plan_schedule::PlanSchedule;
use super::pools::{PoolSources, Pools, PoolsPlan};
use crate::core::turn_budget::TurnBudget;
use crate::desired::{Cluster, Desired};
use crate::ledger::{Account, Ledger};
use crate::observed::Worker;
use crate::ordered_table::OrderedTable;

/// All clusters, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Clusters {
    all: BTreeMap<ClusterName, ClusterState>,
}

/// A cluster and its workers.
#[derive(Clone, Debug)]
pub(super) struct ClusterState {
    /// The desired spec; without a budget if it is no longer desired.
    spec: Arc<Cluster>,
    is_defined: bool,
    workers: OrderedTable<WorkerName, Worker>,
    pools: Pools,
    schedule: PlanSchedule,
    hold_ended: bool,
}

impl Clusters {
    /// The same name, shared with those of its workers: names that share their text are compared
    /// without reading it.
    pub(super) fn shared_name(&self, name: ClusterName) -> ClusterName {
        self.all.get_key_value(&name).map_or(name, |(shared, _)| shared.clone())
    }

    pub(super) fn get(&self, name: &ClusterName) -> Option<&ClusterState> {
        self.all.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &ClusterName) -> Option<&mut ClusterState> {
        self.all.get_mut(name)
    }

    /// A worker, as observed in this term.
    pub(super) fn worker(&self, key: &WorkerKey) -> Option<&Worker> {
        self.all.get(&key.cluster)?.workers.get(&key.worker)
    }

    /// The same, to change it.
    pub(super) fn worker_mut(&mut self, key: &WorkerKey) -> Option<&mut Worker> {
        self.all.get_mut(&key.cluster)?.workers.get_mut(&key.worker)
    }

    /// How many workers all clusters have.
    pub(super) fn worker_count(&self) -> usize {
        self.all.values().map(|cluster| cluster.workers.len()).sum()
    }

    /// How many workers the clusters of a namespace have.
    pub(super) fn worker_count_in(&self, namespace: &str) -> usize {
        let own = self.all.iter().filter(|(name, _)| name.parts().0 == Some(namespace));
        own.map(|(_, cluster)| cluster.workers.len()).sum()
    }

    /// The workers of a cluster that can own streams, by name.
    pub(super) fn stream_owners(&self, name: &ClusterName) -> Vec<WorkerName> {
        let workers = self.all.get(name).into_iter().flat_map(|cluster| cluster.workers.iter());
        let owners = workers.filter(|(_, worker)| worker.owns_streams());
        owners.map(|(name, _)| name.clone()).collect()
    }

    /// A worker waits for free slots; `avoided` if others come first.
    pub(super) fn wait_for_slots(&mut self, key: &WorkerKey, avoided: bool) {
        let Some(cluster) = self.all.get_mut(&key.cluster) else { return };
        let Some(worker) = cluster.workers.get(&key.worker) else { return };
        cluster.pools.wait_for_slots((avoided, Reverse(worker.generation())), &key.worker);
    }

    /// The newest generation whose workers get slots before this one, where it might have more.
    pub(super) fn newer_generation(&self, key: &WorkerKey) -> Option<u64> {
        let ClusterState { spec, workers, pools, .. } = self.all.get(&key.cluster)?;
        let worker = workers.get(&key.worker)?;
        let newest = pools.newest_generation()?;
        let has_budget = spec.class.is_none() && spec.jobs_max > 0;
        let takes_jobs = has_budget && worker.is_working() && worker.is_connected();
        let has_all = worker.target().is_some_and(|size| size >= spec.jobs_per_worker_max);
        (takes_jobs && !has_all && newest > worker.generation()).then_some(newest)
    }

    /// Brings the clusters up to what is desired. Returns those that may need a plan.
    pub(super) fn apply(&mut self, desired: &Desired) -> Vec<ClusterName> {
        let mut changed = Vec::new();
        for (name, cluster) in &mut self.all {
            cluster.is_defined = desired.clusters.contains_key(name);
            if !cluster.is_defined {
                cluster.spec = Arc::new(Cluster { jobs_max: 0, ..(*cluster.spec).clone() });
                cluster.pools.spec_changed();
                changed.push(name.clone());
            }
        }
        for (name, spec) in &desired.clusters {
            let new = || ClusterState::new(spec.clone());
            let cluster = self.all.entry(name.clone()).or_insert_with(new);
            if cluster.spec != *spec || !cluster.hold_ended {
                cluster.pools.spec_changed();
                changed.push(name.clone());
            }
            if cluster.spec.rollout_order != spec.rollout_order {
                cluster.pools.order_changed(cluster.workers.keys());
            }
            cluster.spec = spec.clone();
        }
        self.all.retain(|_, cluster| cluster.is_defined || !cluster.workers.is_empty());
        changed
    }

    /// The clusters of these names, without their workers.
    pub(super) fn without_workers(&self, which: impl Fn(&ClusterName) -> bool) -> Self {
        let all = self.all.iter().filter(|(name, _)| which(name));
        let all = all.map(|(name, cluster)| {
            let is_defined = cluster.is_defined;
            (name.clone(), ClusterState { is_defined, ..ClusterState::new(cluster.spec.clone()) })
        });
        Self { all: all.collect() }
    }
}

impl ClusterState {
    /// A defined cluster without workers, on hold.
    fn new(spec: Arc<Cluster>) -> Self {
        Self {
            spec,
            is_defined: true,
            workers: OrderedTable::default(),
            pools: Pools::default(),
            schedule: PlanSchedule::default(),
            hold_ended: false,
        }
    }

    /// The desired spec; without a budget if it is no longer desired.
    pub(super) fn spec(&self) -> &Arc<Cluster> {
        &self.spec
    }

    /// Whether a manifest defines it.
    pub(super) fn is_defined(&self) -> bool {
        self.is_defined
    }

    /// Its workers, by name.
    pub(super) fn workers(&self) -> &OrderedTable<WorkerName, Worker> {
        &self.workers
    }

    /// The worker of this name, which is added if it is not known.
    pub(super) fn worker_or_new(
        &mut self,
        name: &WorkerName,
        incarnation: Incarnation,
    ) -> &mut Worker {
        self.workers.get_or_insert_with(name, || Worker::new(incarnation))
    }

    pub(super) fn insert_worker(&mut self, name: WorkerName, worker: Worker) {
        self.workers.insert(name, worker);
    }

    pub(super) fn remove_worker(&mut self, name: &WorkerName) -> Option<Worker> {
        self.workers.remove(name)
    }

    /// The hold has ended. Returns whether that is new.
    pub(super) fn end_hold(&mut self) -> bool {
        !std::mem::replace(&mut self.hold_ended, true)
    }

    /// When its streams are planned.
    pub(super) fn schedule(&self) -> &PlanSchedule {
        &self.schedule
    }

    /// The same, to change it.
    pub(super) fn schedule_mut(&mut self) -> &mut PlanSchedule {
        &mut self.schedule
    }

    /// The planned pools of its workers.
    pub(super) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The same, to change them.
    pub(super) fn pools_mut(&mut self) -> &mut Pools {
        &mut self.pools
    }

    /// Plans the pools of its workers, as far as the budget goes.
    pub(super) fn plan_pools(
        &mut self,
        name: &ClusterName,
        ledger: &Ledger,
        avoided: &BTreeSet<WorkerKey>,
        budget: &mut TurnBudget,
    ) -> PoolsPlan {
        let (spec, workers) = (&*self.spec, &self.workers);
        let sources = PoolSources { name, spec, workers, ledger, avoided };
        self.pools.plan(&sources, budget)
    }

    /// Whether the worker with this account can be sent slots, and is to have more than it has.
    pub(super) fn lacks_slots(&self, name: &WorkerName, account: Option<&Account>) -> bool {
        let worker = self.workers.get(name);
        let worker = worker.filter(|worker| worker.is_working() && worker.is_connected());
        let target = worker.and_then(Worker::target);
        target.zip(account).is_some_and(|(target, account)| account.size_kept() < target)
    }

    /// Adopts the size that the plan wants for a worker's pool. Returns whether it is to be sent,
    /// because the worker with this account has another one.
    pub(super) fn retarget(&mut self, name: &WorkerName, account: Option<&Account>) -> bool {
        let Some(worker) = self.workers.get_mut(name) else { return false };
        let share = self.pools.adopt_share(name);
        // A silent worker cannot be sent anything, so it keeps its size. What a worker has is not
        // known before its first report to this leader, so its target waits for a plan after it.
        let present = if worker.is_working() { account.map_or(0, Account::size) } else { 0 };
        worker.set_target(share.or(worker.has_reported().then_some(present)));
        let Some(target) = worker.target() else { return false };
        let pool = account.and_then(Account::pool);
        let size = pool.map_or(0, |pool| pool.size);
        let floor = self.spec.floor.min(target);
        let floor_differs = pool.is_some_and(|pool| pool.floor != floor);
        let unsure = account.is_some_and(Account::is_size_unsure);
        size != target || floor_differs || unsure
    }
}
