//! Moves single shares of pipelines that stay in force: away from draining workers and, if a class
//! allows it, to make room for a pipeline that fits nowhere.

use std::cmp::Reverse;

use leasehold_types::{ClusterName, Load, ShareKey, WorkerKey, WorkerName};

use super::Pipelines;
use super::class_capacity::{ClassCapacity, PlannedNode};
use super::placement::NodeParts;
use super::state::PlannedShare;
use crate::core::leader::facts::Facts;
use crate::planner::pipelines::{MovableShare, make_room};
use crate::view::PipelinePhase;

/// More than any room: a worker with this load takes nothing else.
const FULL: Load = Load::MAX;

impl Pipelines {
    /// Plans each share of draining workers on another worker. Where there is no room, it stays.
    pub(super) fn move_shares_of_draining(&mut self, facts: Facts<'_>) {
        // One `ClassCapacity` serves all draining workers of a class: none of them is in it.
        let mut known: Option<(ClusterName, ClassCapacity)> = None;
        for key in self.draining.clone() {
            let class = &key.cluster;
            if self.on_hold.contains(class) || self.shares.of(&key).is_none() {
                continue;
            }
            let (_, class_capacity) = match known.take() {
                Some((of, class_capacity)) if of == *class => known.insert((of, class_capacity)),
                Some(_) | None => {
                    let class_capacity = self.class_capacity([class].into_iter(), facts);
                    known.insert((class.clone(), class_capacity))
                }
            };
            for share in self.largest_first(self.shares.keys_of(&key)) {
                if !self.all.get(&share.pipeline).is_some_and(|state| state.in_force) {
                    continue;
                }
                match self.find_other_worker(&share, class_capacity) {
                    Some(to) => self.move_share(&share, class, to),
                    // A worker that has not taken the share yet never will.
                    None => self.bindings.mark_unobserved(&share.pipeline, &share.node),
                }
            }
        }
    }

    /// Plans a share on another worker.
    fn move_share(&mut self, key: &ShareKey, class: &ClusterName, to: WorkerName) {
        let Some(node) = self.node_mut(&key.pipeline, &key.node) else { return };
        let Some(share) = node.shares.get_mut(&key.index) else { return };
        let before = share.clone();
        share.on = to;
        let after = share.clone();
        self.shares.remove(key, class, &before);
        self.shares.add(key, class, &after);
        self.bindings.mark(&key.pipeline, &key.node);
        self.changes.shares.insert(key.stream());
    }

    /// Makes room for a pipeline that fits nowhere by moving the fewest shares in classes that
    /// allow it. Makes the moves only if all its nodes fit then.
    pub(super) fn place_with_moves(
        &mut self,
        requests: &[PlannedNode],
        class_capacity: &mut ClassCapacity,
    ) -> Option<Vec<NodeParts>> {
        let mut trial = class_capacity.clone();
        let mut moves = Vec::new();
        let mut placed = Vec::new();
        for request in requests {
            let one = std::slice::from_ref(request);
            if let Ok(parts) = trial.place(one) {
                placed.extend(parts);
                continue;
            }
            let class =
                trial.class_at(&request.class).filter(|_| trial.rebalances(&request.class))?;
            let (shares, tenants) = self.tenants(&request.class, class, &trial, &moves);
            for (tenant, to) in make_room(&trial.free[class], &tenants, request.load)? {
                let MovableShare { worker, load, .. } = tenants[tenant];
                trial.free[class].give(worker, load);
                trial.free[class].take(to, load);
                let to = trial.workers[class][to as usize].clone();
                moves.push((shares[tenant].clone(), request.class.clone(), to));
            }
            placed.extend(trial.place(one).ok()?);
        }
        *class_capacity = trial;
        for (share, class, to) in moves {
            self.move_share(&share, &class, to);
        }
        Some(placed)
    }

    /// Shares in the order in which they are placed: the largest first, then by name.
    pub(super) fn largest_first<'a>(
        &self,
        shares: impl IntoIterator<Item = &'a ShareKey>,
    ) -> Vec<ShareKey> {
        let mut shares: Vec<_> = shares.into_iter().cloned().collect();
        shares.sort_by_cached_key(|share| {
            let planned = self.planned_share(share);
            Reverse(planned.map(|planned| planned.load))
        });
        shares
    }

    pub(super) fn planned_share(&self, share: &ShareKey) -> Option<&PlannedShare> {
        let state = self.all.get(&share.pipeline)?;
        state.nodes.get(&share.node)?.shares.get(&share.index)
    }

    /// The worker that can take a share: preferably one without another share of the node.
    pub(super) fn find_other_worker(
        &self,
        share: &ShareKey,
        class_capacity: &mut ClassCapacity,
    ) -> Option<WorkerName> {
        let state = self.all.get(&share.pipeline)?;
        let node = state.nodes.get(&share.node)?;
        let load = node.shares.get(&share.index)?.load;
        let request = [PlannedNode { class: node.class.clone(), load, has: Vec::new() }];
        let serving = node.shares.values().map(|share| share.on.clone());
        let serving: std::collections::BTreeSet<_> = serving.collect();
        serving.iter().for_each(|worker| class_capacity.take(&node.class, worker, FULL));
        let alone = class_capacity.place(&request);
        serving.iter().for_each(|worker| class_capacity.give(&node.class, worker, FULL));
        let placed = alone.or_else(|_| class_capacity.place(&request)).ok()?;
        placed.into_iter().flatten().next().map(|(worker, _)| worker)
    }

    /// The shares on the workers of a class. Those of Ready pipelines may move, once.
    pub(super) fn tenants(
        &self,
        class: &ClusterName,
        at: usize,
        class_capacity: &ClassCapacity,
        moved: &[(ShareKey, ClusterName, WorkerName)],
    ) -> (Vec<ShareKey>, Vec<MovableShare>) {
        let mut shares = Vec::new();
        let mut tenants = Vec::new();
        for (WorkerKey { worker, .. }, worker_shares) in self.shares.of_class(class) {
            let Some(worker) = class_capacity.worker_at(at, worker) else { continue };
            for share in worker_shares.keys() {
                let state = self.all.get(&share.pipeline);
                let ready =
                    state.is_some_and(|pipeline| pipeline.phase == Some(PipelinePhase::Ready));
                let Some(planned) = self.planned_share(share) else { continue };
                let movable = ready && !moved.iter().any(|(other, ..)| other == share);
                if movable {
                    shares.push(share.clone());
                    tenants.push(MovableShare { worker, load: planned.load, movable });
                }
            }
        }
        (shares, tenants)
    }
}
