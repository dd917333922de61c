//! Classes in figures, and how many workers each needs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leasehold_types::{ClusterName, Load, Moment, ShareKey, WorkerKey, WorkerName};

use super::Pipelines;
use super::class_capacity::ClassCapacity;
use crate::core::leader::Query;
use crate::core::{Core, ReplicaState};
use crate::desired::Class;
use crate::planner::pipelines::{needed, wanted};
use crate::view::ClassView;

/// The most shares that one query tries to place on other workers to find removable ones. That
/// takes some milliseconds, in which nothing else is planned. For a class with more shares a query
/// finds fewer workers.
const SPARED_MAX: usize = 10_000;

impl Core {
    /// All classes, by name.
    #[must_use]
    pub fn classes(&self, _now: Moment) -> Vec<ClassView> {
        class_views(self.replica(), self.query())
    }

    /// The least workers that each class must have with its shares where they are now: its present
    /// workers and those that pipelines wait for, or its present workers without the removable
    /// ones. Only a leader knows them; an ideal packing may need fewer.
    #[must_use]
    pub fn workers_required(&self, _now: Moment) -> BTreeMap<ClusterName, u32> {
        self.query().map(|query| query.workers_required()).unwrap_or_default()
    }

    /// The workers of a class that can be removed now, one after the other, the least loaded first:
    /// the shares of each fit on the workers that stay. There may be more (`SPARED_MAX`).
    #[must_use]
    pub fn removable(&self, class: &ClusterName, _now: Moment) -> Vec<WorkerName> {
        self.query().map_or(Vec::new(), |query| query.removable(class))
    }

    /// Whether this worker alone can be removed from its class now: its shares fit on the other
    /// workers.
    #[must_use]
    pub fn is_removable(&self, worker: &WorkerKey) -> bool {
        self.query().is_some_and(|query| query.is_removable(worker))
    }
}

impl ReplicaState {
    /// The load of every node that each class must process.
    fn loads(&self) -> BTreeMap<ClusterName, Vec<Load>> {
        let classes = self.desired().clusters.iter().filter(|(_, cluster)| cluster.class.is_some());
        let mut loads: BTreeMap<_, Vec<Load>> =
            classes.map(|(name, _)| (name.clone(), Vec::new())).collect();
        for pipeline in self.desired().pipelines.values() {
            for node in pipeline.nodes.values() {
                if let Some(loads) = loads.get_mut(&node.class) {
                    loads.push(pipeline.load);
                }
            }
        }
        loads
    }
}

impl Query<'_> {
    /// Adds what only a leader knows of classes.
    fn complete_classes(&self, views: &mut [ClassView]) {
        let waiting = self.pipelines.waits_by_class();
        for view in views {
            let loads = self.pipelines.shares.of_class(&view.name).map(|(_, shares)| shares.load());
            view.placed = loads.sum();
            view.workers = self.clusters.stream_owners(&view.name).len() as u32;
            (view.waiting, view.short) = waiting.get(&view.name).copied().unwrap_or_default();
        }
    }

    fn workers_required(&self) -> BTreeMap<ClusterName, u32> {
        let waiting = self.pipelines.waits_by_class();
        let clusters = self.replica.desired().clusters.iter();
        let classes = clusters.filter(|(_, cluster)| cluster.class.is_some());
        let held = |name: &ClusterName| {
            let workers = self.clusters.stream_owners(name).len() as u32;
            match waiting.get(name) {
                Some((_, short)) => workers.saturating_add(*short),
                None => workers - self.removable(name).len() as u32,
            }
        };
        classes.map(|(name, _)| (name.clone(), held(name))).collect()
    }

    /// The planned shares of a class's workers, and how many of them are served.
    pub(in crate::core::leader) fn share_counts(&self, class: &ClusterName) -> (usize, usize) {
        let planned = self
            .pipelines
            .shares
            .of_class(class)
            .map(|(_, worker_shares)| worker_shares.keys().len());
        let accounts = self.ledger.accounts().of(class);
        let claimed = accounts.map(|(_, account)| account.stream_count());
        (planned.sum(), claimed.sum())
    }

    fn removable(&self, class: &ClusterName) -> Vec<WorkerName> {
        let mut class_capacity = self.pipelines.class_capacity([class].into_iter(), self.facts());
        let Some(at) = class_capacity.class_at(class) else { return Vec::new() };
        let mut workers = class_capacity.workers[at].clone();
        workers.sort_by_cached_key(|worker| {
            (self.planned_load(class, worker), Reverse(worker.clone()))
        });
        let all = 0..class_capacity.free[at].len() as u32;
        let mut room: Load = all.map(|worker| class_capacity.free[at].room(worker)).sum();
        let mut spared = Vec::new();
        let mut tried = 0;
        // Shares that came from workers that are counted as removable already.
        let mut guests = BTreeMap::<WorkerName, Vec<ShareKey>>::new();
        for worker in workers {
            let Some(own) = class_capacity.worker_at(at, &worker) else { continue };
            // The next workers have more load, for which there is no room either.
            let (load, own) =
                (self.planned_load(class, &worker), class_capacity.free[at].room(own));
            if room.saturating_sub(own) < load {
                break;
            }
            let key = WorkerKey { cluster: class.clone(), worker: worker.clone() };
            let shares = self.pipelines.shares.keys_of(&key);
            let shares = shares.chain(guests.get(&worker).into_iter().flatten());
            let shares = self.pipelines.largest_first(shares);
            if tried > 0 && tried + shares.len() > SPARED_MAX {
                break;
            }
            tried += shares.len();
            if let Some(moves) =
                self.pipelines.move_all_from(&worker, class, &shares, &mut class_capacity)
            {
                let moved: Load = moves.iter().map(|(_, _, load)| *load).sum();
                room = room.saturating_sub(own + moved);
                guests.remove(&worker);
                for (share, to, _) in moves {
                    guests.entry(to).or_default().push(share);
                }
                spared.push(worker);
            }
        }
        spared
    }

    fn is_removable(&self, worker: &WorkerKey) -> bool {
        let WorkerKey { cluster: class, worker: name } = worker;
        let mut class_capacity = self.pipelines.class_capacity([class].into_iter(), self.facts());
        let at = class_capacity.class_at(class);
        let takes_part = at.is_some_and(|at| class_capacity.worker_at(at, name).is_some());
        let shares = self.pipelines.largest_first(self.pipelines.shares.keys_of(worker));
        takes_part
            && self.pipelines.move_all_from(name, class, &shares, &mut class_capacity).is_some()
    }

    /// The shares that would have to leave a worker.
    fn planned_load(&self, class: &ClusterName, worker: &WorkerName) -> Load {
        let key = WorkerKey { cluster: class.clone(), worker: worker.clone() };
        self.pipelines.shares.load_of(&key)
    }
}

impl Pipelines {
    /// How many pipelines wait for each class, and the most additional workers that one of them
    /// needs.
    pub(super) fn waits_by_class(&self) -> BTreeMap<ClusterName, (usize, u32)> {
        let mut waiting = BTreeMap::<ClusterName, (usize, u32)>::new();
        let names = self.waiting.iter();
        let waits = names.filter_map(|name| self.all.get(name)).flat_map(|state| &state.waits);
        for (class, workers) in waits {
            let (count, short) = waiting.entry(class.clone()).or_default();
            *count += 1;
            *short = (*short).max(*workers);
        }
        waiting
    }

    /// Takes a worker out of its class, and returns where each of its shares would go. None if a
    /// share fits nowhere; then the free capacity is as before.
    pub(super) fn move_all_from(
        &self,
        worker: &WorkerName,
        class: &ClusterName,
        shares: &[ShareKey],
        class_capacity: &mut ClassCapacity,
    ) -> Option<Vec<(ShareKey, WorkerName, Load)>> {
        class_capacity.take(class, worker, Load::MAX);
        let mut moves = Vec::new();
        for share in shares {
            let load = self.planned_share(share).map_or(Load::ZERO, |planned| planned.load);
            let Some(to) = self.find_other_worker(share, class_capacity) else {
                moves.iter().for_each(|(_, to, load)| class_capacity.give(class, to, *load));
                class_capacity.give(class, worker, Load::MAX);
                return None;
            };
            moves.push((share.clone(), to, load));
        }
        Some(moves)
    }
}

/// All classes, by name; with what only a leader knows, where there is one.
pub(super) fn class_views(replica: &ReplicaState, query: Option<Query<'_>>) -> Vec<ClassView> {
    let views = replica
        .loads()
        .into_iter()
        .filter_map(|(name, loads)| Some(class_view(replica.class(&name)?, name, loads)));
    let mut views: Vec<_> = views.collect();
    if let Some(query) = query {
        query.complete_classes(&mut views);
    }
    views
}

/// A class as far as every replica knows it.
fn class_view(class: &Class, name: ClusterName, loads: Vec<Load>) -> ClassView {
    let request = loads.iter().copied().sum();
    let workers_needed = needed(class.capacity, loads);
    ClassView {
        capacity: class.capacity,
        request,
        placed: Load::ZERO,
        workers: 0,
        workers_needed,
        workers_wanted: wanted(class, request, workers_needed),
        workers_min: class.workers_min,
        workers_max: class.workers_max,
        waiting: 0,
        short: 0,
        name,
    }
}
