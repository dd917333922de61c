//! Loss and healing: a pipeline that loses a worker is Broken, and all Broken ones are placed again
//! in one pass.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Load, Moment, NodeName, PipelineName, ShareKey, WorkerKey};

use super::class_rooms::{ClassRooms, MissingWorkers};
use super::phases::waits_for;
use super::placement::NodeParts;
use super::state::Pipelines;
use crate::core::Leader;
use crate::view::{BindingPhase, PipelinePhase};

/// The most Broken pipelines that one pass heals, which takes some tens of milliseconds. The others
/// follow once the messages that came meanwhile are handled.
const HEALED_MAX: usize = 256;

impl Leader {
    /// A worker is lost: breaks each pipeline that it served, and no other.
    pub(in crate::core::leader) fn lose_worker(&mut self, key: &WorkerKey, now: Moment) {
        self.pipelines.draining.remove(key);
        self.recheck_class(&key.cluster);
        let shares =
            self.pipelines.worker_shares.get(key).map(|worker_shares| worker_shares.shares.clone());
        self.lose(&shares.unwrap_or_default(), &format!("worker {key} is lost"), now);
    }

    /// These shares have lost their workers.
    fn lose(&mut self, shares: &BTreeSet<ShareKey>, why: &str, now: Moment) {
        let mut lost = BTreeMap::<&PipelineName, BTreeSet<NodeName>>::new();
        for share in shares {
            lost.entry(&share.pipeline).or_default().insert(share.node.clone());
            if self.pipelines.recovering.contains(&share.pipeline) {
                self.pipelines.disown(share);
            }
        }
        for (pipeline, nodes) in lost {
            if !self.pipelines.recovering.contains(pipeline) {
                self.break_pipeline(pipeline, &nodes, why.into(), now);
            }
        }
    }

    /// A pipeline in force has lost workers of these nodes. None of its shares counts in the plan;
    /// a worker that still has one keeps it until the pipeline is placed again.
    pub(super) fn break_pipeline(
        &mut self,
        name: &PipelineName,
        dead: &BTreeSet<NodeName>,
        why: String,
        now: Moment,
    ) {
        self.pipelines.count_all(name, false);
        self.pipelines.keep_outstanding(name);
        if let Some(state) = self.pipelines.all.get_mut(name) {
            (state.in_force, state.changes) = (false, false);
        }
        for node in self.pipelines.node_names(name) {
            let to = if dead.contains(&node) { BindingPhase::DeadEnd } else { BindingPhase::Unset };
            self.set_binding(name, &node, to);
        }
        self.set_pipeline(name, PipelinePhase::Broken, why, Vec::new());
        self.reconcile_pipeline(name, now);
    }

    /// Chooses workers for the Broken pipelines, all in one pass; returns whether there were any.
    /// Shares that Broken pipelines still hold count as used, so that none takes the place that
    /// another one keeps. A pipeline that finds no room so is placed after all others, in the room
    /// that the plan alone leaves: then the pipelines that it displaces give their shares back
    /// first.
    pub(super) fn heal(&mut self, now: Moment) -> bool {
        let broken = self.pipelines.broken.iter().filter(|name| !self.pipelines.is_held(name));
        let names: Vec<_> = broken.take(HEALED_MAX).cloned().collect();
        if names.is_empty() {
            return false;
        }
        let mut class_rooms =
            self.pipelines.class_rooms_of(&self.replica, &self.clusters, names.iter());
        if !mutation::on(Mutation::HealWithoutOutstanding) {
            self.pipelines.count_outstanding(&mut class_rooms);
        }
        let mut unplaced = Vec::new();
        for name in names {
            match self.pipelines.place_healed(&name, &mut class_rooms) {
                Ok(chosen) => self.put_pipeline_in_force(&name, chosen, now),
                Err(_) => unplaced.push(name),
            }
        }
        let mut class_rooms =
            self.pipelines.class_rooms_of(&self.replica, &self.clusters, unplaced.iter());
        for name in unplaced {
            match self.pipelines.place_new(&name, &mut class_rooms) {
                Ok(chosen) => self.put_pipeline_in_force(&name, chosen, now),
                Err(waits) => {
                    let why = waits_for(&waits);
                    self.withdraw_pipeline(&name, waits, why, now);
                    self.pipelines.recheck_waiting = true;
                }
            }
        }
        true
    }

    /// The capacity of a class has changed, or the class is no longer defined: breaks pipelines on
    /// workers above the capacity, the last by name first.
    pub(super) fn break_overloaded(&mut self, class: &ClusterName, now: Moment) {
        let capacity = self.replica.class(class).map(|class| class.capacity);
        let why = match capacity {
            Some(capacity) => format!("a worker of class {class} takes {capacity} at the most"),
            None => format!("class {class} is no longer defined"),
        };
        let over =
            self.pipelines.shares_by_worker(class).filter(|(_, it)| exceeds(it.load, capacity));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        for worker in over {
            while let Some(worker_shares) = self.pipelines.worker_shares.get(&worker)
                && exceeds(worker_shares.load, capacity)
                && let Some(last) = worker_shares.shares.last().map(|share| share.pipeline.clone())
            {
                let shares = worker_shares.shares.iter().filter(|share| share.pipeline == last);
                let shares = shares.cloned().collect();
                self.lose(&shares, &why, now);
            }
        }
    }
}

impl Pipelines {
    /// Counts the shares that Broken pipelines hold on workers that can serve them.
    pub(super) fn count_outstanding(&self, class_rooms: &mut ClassRooms) {
        for (worker, load) in &self.outstanding {
            class_rooms.take(&worker.cluster, &worker.worker, *load);
        }
    }

    /// Chooses a Broken pipeline's workers in rooms in which its outstanding shares count as used.
    pub(super) fn place_healed(
        &self,
        name: &PipelineName,
        class_rooms: &mut ClassRooms,
    ) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
        let counted = !mutation::on(Mutation::HealWithoutOutstanding);
        let state = self.all.get(name).filter(|_| counted);
        let held = state.map_or(&[][..], |state| &state.outstanding);
        held.iter().for_each(|(key, load)| class_rooms.give(&key.cluster, &key.worker, *load));
        let placed = self.place_new(name, class_rooms);
        if placed.is_err() {
            held.iter().for_each(|(key, load)| class_rooms.take(&key.cluster, &key.worker, *load));
        }
        placed
    }
}

fn exceeds(load: Load, capacity: Option<Load>) -> bool {
    capacity.is_none_or(|capacity| load > capacity)
}
