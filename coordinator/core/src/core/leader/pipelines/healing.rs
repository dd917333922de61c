//! Loss and healing: a pipeline that loses a worker is Broken, and all Broken ones are placed again
//! in one pass.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Load, NodeName, PipelineName, ShareKey, WorkerKey};

use super::class_capacity::{ClassCapacity, MissingWorkers};
use super::placement::NodeParts;
use super::{PipelineChanges, Pipelines};
use crate::core::leader::facts::Facts;
use crate::view::{BindingPhase, PipelinePhase};

/// The most Broken pipelines that one pass heals, which takes some tens of milliseconds. The others
/// follow once the messages that came meanwhile are handled.
const HEALED_MAX: usize = 256;

impl Pipelines {
    /// A worker is lost: breaks each pipeline that it served, and no other.
    pub(in crate::core::leader) fn lose_worker(
        &mut self,
        key: &WorkerKey,
        facts: Facts<'_>,
    ) -> PipelineChanges {
        self.draining.remove(key);
        self.recheck_class(&key.cluster, facts.replica);
        let shares = self.shares.of(key).map(|worker_shares| worker_shares.keys().clone());
        if let Some(shares) = shares {
            self.lose(&shares, &format!("worker {key} is lost"), facts);
        }
        self.take_changes()
    }

    /// These shares have lost their workers.
    fn lose(&mut self, shares: &BTreeSet<ShareKey>, why: &str, facts: Facts<'_>) {
        let mut lost = BTreeMap::<&PipelineName, BTreeSet<NodeName>>::new();
        for share in shares {
            lost.entry(&share.pipeline).or_default().insert(share.node.clone());
            if self.recovering.contains(&share.pipeline) {
                self.disown(share);
            }
        }
        for (pipeline, nodes) in lost {
            if !self.recovering.contains(pipeline) {
                self.break_pipeline(pipeline, &nodes, why.into(), facts);
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
        facts: Facts<'_>,
    ) {
        self.count_all(name, false);
        if let Some(state) = self.all.get_mut(name) {
            (state.in_force, state.changes) = (false, false);
            self.broken.keep(name, state.share_owners().collect());
        }
        for node in self.node_names(name) {
            let to = if dead.contains(&node) { BindingPhase::DeadEnd } else { BindingPhase::Unset };
            self.set_binding(name, &node, to);
        }
        self.set_pipeline(name, PipelinePhase::Broken, why, Vec::new(), facts);
        self.reconcile_pipeline(name, facts);
    }

    /// Chooses workers for the Broken pipelines, all in one pass; returns whether there were any.
    /// Shares that Broken pipelines still hold count as used, so that none takes the place that
    /// another one keeps. A pipeline that does not fit is placed last, without regard to leases
    /// that other Broken pipelines still hold: those are revoked first.
    pub(super) fn heal(&mut self, facts: Facts<'_>) -> bool {
        let broken = self.broken.names().filter(|name| !self.is_held(name));
        let names: Vec<_> = broken.take(HEALED_MAX).cloned().collect();
        if names.is_empty() {
            return false;
        }
        let mut class_capacity = self.class_capacity_of(names.iter(), facts);
        if !mutation::on(Mutation::HealWithoutOutstanding) {
            self.count_outstanding(&mut class_capacity);
        }
        let mut unplaced = Vec::new();
        for name in names {
            match self.place_healed(&name, &mut class_capacity) {
                Ok(chosen) => self.put_in_force(&name, chosen, facts),
                Err(_) => unplaced.push(name),
            }
        }
        let mut class_capacity = self.class_capacity_of(unplaced.iter(), facts);
        for name in unplaced {
            match self.place_new(&name, &mut class_capacity) {
                Ok(chosen) => self.put_in_force(&name, chosen, facts),
                Err(waits) => {
                    self.withdraw(&name, waits, facts);
                    self.recheck_waiting = true;
                }
            }
        }
        true
    }

    /// The capacity of a class has changed, or the class is no longer defined: breaks pipelines on
    /// workers above the capacity, the last by name first.
    pub(super) fn break_overloaded(&mut self, class: &ClusterName, facts: Facts<'_>) {
        let capacity = facts.replica.class(class).map(|class| class.capacity);
        let why = match capacity {
            Some(capacity) => format!("a worker of class {class} takes {capacity} at the most"),
            None => format!("class {class} is no longer defined"),
        };
        let over = self.shares.of_class(class).filter(|(_, own)| exceeds(own.load(), capacity));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        for worker in over {
            while let Some(worker_shares) = self.shares.of(&worker)
                && exceeds(worker_shares.load(), capacity)
                && let Some(last) = worker_shares.keys().last().map(|share| &share.pipeline)
            {
                let shares = worker_shares.keys().iter().filter(|share| share.pipeline == *last);
                let shares = shares.cloned().collect();
                self.lose(&shares, &why, facts);
            }
        }
    }

    /// Counts the shares that Broken pipelines hold on workers that can serve them.
    fn count_outstanding(&self, class_capacity: &mut ClassCapacity) {
        for (worker, load) in self.broken.outstanding() {
            class_capacity.take(&worker.cluster, &worker.worker, load);
        }
    }

    /// Chooses a Broken pipeline's workers where its outstanding shares count as used.
    fn place_healed(
        &self,
        name: &PipelineName,
        class_capacity: &mut ClassCapacity,
    ) -> Result<BTreeMap<NodeName, NodeParts>, MissingWorkers> {
        let counted = !mutation::on(Mutation::HealWithoutOutstanding);
        let kept = if counted { self.broken.kept_by(name) } else { &[] };
        kept.iter().for_each(|(key, load)| class_capacity.give(&key.cluster, &key.worker, *load));
        let placed = self.place_new(name, class_capacity);
        if placed.is_err() {
            kept.iter()
                .for_each(|(key, load)| class_capacity.take(&key.cluster, &key.worker, *load));
        }
        placed
    }
}

fn exceeds(load: Load, capacity: Option<Load>) -> bool {
    capacity.is_none_or(|capacity| load > capacity)
}
