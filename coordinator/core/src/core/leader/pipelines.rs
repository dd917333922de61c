//! Pipelines: which worker serves which part of which node, and the states of pipelines and
//! bindings. One owner has all of them, so no two race. It reads the ledger and the workers, and
//! answers with what the leader has to do.
//!
//! Invariant: the shares that count in the plan are those of pipelines in force, and those that
//! agents have reported while their pipeline is being recovered.

mod broken;
mod changed_bindings;
mod changes;
mod class_capacity;
mod class_views;
mod explain;
mod healing;
mod observation;
mod phases;
mod placement;
mod recovery;
mod routes;
mod share_moves;
mod spec_changes;
mod state;
mod tables;
mod views;
mod what_if;
mod worker_shares;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::share::TableVersion;
use leasehold_types::{ClusterName, PipelineName, ShareKey, StreamKey, WorkerKey};

use super::facts::Facts;
use super::planned_lease::PlannedLease;
use crate::core::replica::ReplicaState;
use crate::effect::Notice;
use crate::ledger::Ledger;
use crate::view::PipelinePhase;
use broken::BrokenPipelines;
use changed_bindings::ChangedBindings;
pub(super) use changes::{PipelineChanges, Reroute};
pub(super) use routes::{RouteBudget, SnapshotShare};
use state::PipelineState;
pub use what_if::PipelinesWhatIf;
use worker_shares::SharesByWorker;

/// All pipelines of a term.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipelines {
    all: BTreeMap<PipelineName, PipelineState>,
    /// The shares that count in the plan.
    shares: SharesByWorker,
    /// Pipelines of which agents may still report shares; new pipelines are among them.
    recovering: BTreeSet<PipelineName>,
    /// Some of them may be recovered now.
    recheck_recovery: bool,
    /// Pending pipelines, and those with a change that is not in force yet.
    waiting: BTreeSet<PipelineName>,
    broken: BrokenPipelines,
    /// Draining workers with shares.
    draining: BTreeSet<WorkerKey>,
    /// The waiting pipelines are to be placed again.
    recheck_waiting: bool,
    /// The clusters in which nothing is planned yet.
    on_hold: BTreeSet<ClusterName>,
    bindings: ChangedBindings,
    /// The newest version of any node's table.
    table_version: TableVersion,
    /// What follows from the change that is being made.
    changes: PipelineChanges,
}

impl Pipelines {
    /// Plans the pipelines that have changed, until nothing more follows. Nothing is planned in
    /// clusters that are `held`.
    pub(super) fn plan(
        &mut self,
        on_hold: BTreeSet<ClusterName>,
        facts: Facts<'_>,
    ) -> PipelineChanges {
        self.recover_known(on_hold, facts);
        let mut healed = false;
        loop {
            // Moves shares first: a share that its draining worker has given back would count as
            // lost.
            if self.recheck_waiting {
                self.move_shares_of_draining(facts);
            }
            self.observe(facts);
            // The next pass heals what breaks later and what exceeds `HEALED_MAX`.
            if !healed && self.heal(facts) {
                healed = true;
                continue;
            }
            if std::mem::take(&mut self.recheck_waiting) {
                self.place_waiting(facts);
                continue;
            }
            if !self.has_changed() {
                break;
            }
        }
        self.changes.more_to_heal = healed && !self.is_healed();
        self.take_changes()
    }

    /// Whether any binding is to be observed.
    pub(super) fn has_changed(&self) -> bool {
        !self.bindings.is_empty()
    }

    /// The planned lease of a share; none if its node is in no plan.
    pub(super) fn planned_lease(&self, key: &ShareKey) -> Option<PlannedLease<'_>> {
        let state = self.all.get(&key.pipeline)?;
        let node = state.nodes.get(&key.node)?;
        let counts = self.counts(&key.pipeline, state);
        let share = node.shares.get(&key.index).filter(|_| counts);
        let broken = state.phase == Some(PipelinePhase::Broken);
        Some(PlannedLease {
            cluster: &node.class,
            on: share.map(|share| &share.on),
            load: share.map(|share| share.load),
            stays: broken || self.recovering.contains(&key.pipeline),
            pinned: false,
        })
    }

    /// The leases of a share have changed.
    pub(super) fn leases_changed(&mut self, stream: &StreamKey) {
        if let Some(key) = ShareKey::of(stream)
            && self.all.contains_key(&key.pipeline)
        {
            self.bindings.mark(&key.pipeline, &key.node);
        }
    }

    /// The leases of a worker are to be looked at again: those after it must know how it changed.
    pub(super) fn worker_changed(&mut self, key: &WorkerKey, ledger: &Ledger) {
        for stream in ledger.streams_of(key, None) {
            self.leases_changed(stream);
        }
    }

    /// A class has changed in a way that pipelines may have waited for.
    pub(super) fn recheck_class(&mut self, class: &ClusterName, replica: &ReplicaState) {
        self.recheck_waiting |= replica.class(class).is_some();
    }

    /// A worker has begun to drain, has reported that it drains, or works again.
    pub(super) fn drain_changed(&mut self, key: &WorkerKey, facts: Facts<'_>) {
        let leaves = facts.observed(key).is_some_and(|worker| !worker.is_working());
        if !leaves {
            self.draining.remove(key);
        } else if facts.replica.class(&key.cluster).is_some() {
            self.draining.insert(key.clone());
            self.recheck_waiting = true;
            self.worker_changed(key, facts.ledger);
        }
    }

    /// The notices of bindings that have changed since the last plan.
    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        self.notify_endpoints();
        std::mem::take(&mut self.changes.notices)
    }

    /// Whether all Broken pipelines are placed, but for those of held classes.
    fn is_healed(&self) -> bool {
        self.broken.names().all(|name| self.is_held(name))
    }

    /// Whether nothing is planned for a pipeline yet, because one of its classes is held.
    fn is_held(&self, name: &PipelineName) -> bool {
        let state = self.all.get(name).filter(|_| !self.on_hold.is_empty());
        state.is_some_and(|state| state.classes().any(|class| self.on_hold.contains(class)))
    }

    /// Whether its shares count in the plan.
    fn counts(&self, name: &PipelineName, state: &PipelineState) -> bool {
        state.in_force || self.recovering.contains(name)
    }

    fn take_changes(&mut self) -> PipelineChanges {
        std::mem::take(&mut self.changes)
    }
}
