//! The free room of the workers of some classes, as input of the planner. Workers that drain, are
//! lost or have not reported are left out.

use leasehold_types::{ClusterName, Load, WorkerKey, WorkerName};

use super::Pipelines;
use crate::core::leader::facts::Facts;
use crate::desired::{Class, Rebalance};
use crate::planner::pipelines::{CapacityShortage, FreeCapacity, NodeRequest, Part, place};

/// Classes with the room of their workers.
#[derive(Clone, Debug)]
pub(super) struct ClassCapacity {
    /// By name.
    pub(super) classes: Vec<ClusterName>,
    /// Of each class, by name.
    pub(super) workers: Vec<Vec<WorkerName>>,
    /// Those of each class that get nothing new while others have room, as indices.
    avoided: Vec<Vec<u32>>,
    pub(super) free: Vec<FreeCapacity>,
    pub(super) rebalances: Vec<bool>,
}

/// The requirements of one node.
#[derive(Clone, Debug)]
pub(super) struct PlannedNode {
    pub(super) class: ClusterName,
    pub(super) load: Load,
    /// The parts that it has already.
    pub(super) has: Vec<(WorkerName, Load)>,
}

/// The classes that a pipeline waits for, and how many workers of each; 0 for a class that no
/// manifest defines.
pub(super) type MissingWorkers = Vec<(ClusterName, u32)>;

impl Pipelines {
    /// The room in these classes.
    pub(super) fn class_capacity<'a>(
        &self,
        classes: impl Iterator<Item = &'a ClusterName>,
        facts: Facts<'_>,
    ) -> ClassCapacity {
        let mut names: Vec<_> = classes.cloned().collect();
        names.sort();
        names.dedup();
        let mut class_capacity = ClassCapacity {
            classes: Vec::new(),
            workers: Vec::new(),
            avoided: Vec::new(),
            free: Vec::new(),
            rebalances: Vec::new(),
        };
        for name in names {
            let Some(class) = facts.replica.class(&name) else { continue };
            let workers = facts.clusters.stream_owners(&name);
            let key =
                |worker: &WorkerName| WorkerKey { cluster: name.clone(), worker: worker.clone() };
            let used = workers.iter().map(|worker| self.shares.load_of(&key(worker)));
            let is_avoided = |worker: &WorkerName| facts.replica.avoided().contains(&key(worker));
            let avoided = (0..).zip(&workers).filter(|(_, worker)| is_avoided(worker));
            class_capacity.avoided.push(avoided.map(|(at, _)| at).collect());
            class_capacity.free.push(FreeCapacity::new(
                class.capacity,
                class.spread,
                used.collect(),
            ));
            class_capacity.rebalances.push(rebalances(class));
            class_capacity.workers.push(workers);
            class_capacity.classes.push(name);
        }
        class_capacity
    }
}

impl ClassCapacity {
    /// The index of a class; none if no manifest defines it.
    pub(super) fn class_at(&self, class: &ClusterName) -> Option<usize> {
        self.classes.binary_search(class).ok()
    }

    /// Whether shares of a class may move to make room for others.
    pub(super) fn rebalances(&self, class: &ClusterName) -> bool {
        self.class_at(class).is_some_and(|at| self.rebalances[at])
    }

    /// The index of a worker in its class; none if it can take nothing.
    pub(super) fn worker_at(&self, class: usize, worker: &WorkerName) -> Option<u32> {
        self.workers[class].binary_search(worker).ok().map(|at| at as u32)
    }

    /// Takes a load off a worker.
    pub(super) fn give(&mut self, class: &ClusterName, worker: &WorkerName, load: Load) {
        let at = self.class_at(class).and_then(|at| Some((at, self.worker_at(at, worker)?)));
        if let Some((class, worker)) = at {
            self.free[class].give(worker, load);
        }
    }

    /// Counts a load on a worker.
    pub(super) fn take(&mut self, class: &ClusterName, worker: &WorkerName, load: Load) {
        let at = self.class_at(class).and_then(|at| Some((at, self.worker_at(at, worker)?)));
        if let Some((class, worker)) = at {
            self.free[class].take(worker, load);
        }
    }

    /// Places all of the requests, or none of them; on workers to avoid only what fits nowhere
    /// else.
    pub(super) fn place(
        &mut self,
        requests: &[PlannedNode],
    ) -> Result<Vec<Vec<(WorkerName, Load)>>, MissingWorkers> {
        let unknown = requests.iter().filter(|request| self.class_at(&request.class).is_none());
        let mut unknown: MissingWorkers =
            unknown.map(|request| (request.class.clone(), 0)).collect();
        if !unknown.is_empty() {
            unknown.sort();
            unknown.dedup();
            return Err(unknown);
        }
        let classes: Vec<_> =
            requests.iter().filter_map(|request| self.class_at(&request.class)).collect();
        let prefers: Vec<_> = classes
            .iter()
            .zip(requests)
            .map(|(class, request)| self.prefers(*class, request))
            .collect();
        let nodes: Vec<_> = classes
            .iter()
            .zip(requests)
            .zip(&prefers)
            .map(|((class, request), prefers)| NodeRequest {
                class: *class,
                load: request.load,
                prefers,
            })
            .collect();
        let placed = match self.place_elsewhere(&nodes) {
            Some(placed) => placed,
            None => place(&mut self.free, &nodes).map_err(|short| self.waits(&short))?,
        };
        let named = |(class, parts): (&usize, Vec<Part>)| {
            let name = |part: Part| (self.workers[*class][part.worker as usize].clone(), part.load);
            parts.into_iter().map(name).collect()
        };
        Ok(classes.iter().zip(placed).map(named).collect())
    }

    /// Places all nodes, with nothing on workers to avoid but what is there already; none if that
    /// is impossible, or no worker is to be avoided.
    fn place_elsewhere(&mut self, nodes: &[NodeRequest<'_>]) -> Option<Vec<Vec<Part>>> {
        let mut closed = Vec::new();
        for (class, avoided) in self.avoided.iter().enumerate() {
            for worker in avoided.iter().copied() {
                let here = nodes.iter().filter(|node| node.class == class);
                let kept = here.flat_map(|node| node.prefers).filter(|part| part.worker == worker);
                let kept: Load = kept.map(|part| part.load).sum();
                closed.push((class, worker, self.free[class].room(worker).saturating_sub(kept)));
            }
        }
        if closed.is_empty() {
            return None;
        }
        closed.iter().for_each(|(class, worker, load)| self.free[*class].take(*worker, *load));
        let placed = place(&mut self.free, nodes).ok();
        closed.iter().for_each(|(class, worker, load)| self.free[*class].give(*worker, *load));
        placed
    }

    /// The parts of a node on workers that can keep them, one per worker.
    fn prefers(&self, class: usize, request: &PlannedNode) -> Vec<Part> {
        let mut parts = std::collections::BTreeMap::<u32, Load>::new();
        for (worker, load) in &request.has {
            if let Some(worker) = self.worker_at(class, worker) {
                *parts.entry(worker).or_default() += *load;
            }
        }
        parts.into_iter().map(|(worker, load)| Part { worker, load }).collect()
    }

    fn waits(&self, short: &[CapacityShortage]) -> MissingWorkers {
        short.iter().map(|short| (self.classes[short.class].clone(), short.workers)).collect()
    }
}

/// Whether shares of a class may move to make room for others.
pub(super) fn rebalances(class: &Class) -> bool {
    class.rebalance == Rebalance::WhenBlocked
}
