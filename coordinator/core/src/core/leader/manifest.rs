//! What a leader does when a manifest is put in force.

use std::sync::Arc;

use leasehold_types::Moment;

use super::sliced_tasks::SlicedTask;
use super::{ClusterState, Leader};
use crate::core::replica::ManifestChange;
use crate::desired::Cluster;

impl Leader {
    /// The term begins with the manifest that is in force.
    pub(in crate::core) fn begin_with_desired(&mut self, now: Moment) {
        self.apply_cluster_specs();
        self.replica.forget_plans();
        let clusters: Vec<_> = self.replica.cluster_sets.keys().cloned().collect();
        for cluster in &clusters {
            self.plan_now(cluster, now);
        }
        let desired = self.replica.desired.clone();
        self.apply_pipeline_specs(&desired, now);
    }

    /// Another manifest was put in force.
    pub(in crate::core) fn apply_manifest(&mut self, enforced: ManifestChange, now: Moment) {
        let ManifestChange { before, clusters, altered, gone } = enforced;
        self.apply_cluster_specs();
        self.reschedule_give_ups(&before);
        if !gone.is_empty() {
            let former = &mut self.replica.former_handovers;
            former.extend(gone);
            former.retain(|set, _| self.ledger.claimed(set) > 0);
        }
        for cluster in &clusters {
            self.plan_now(cluster, now);
        }
        // A stream that is no longer desired is in no plan: its owner is asked to give it back.
        if !altered.is_empty() {
            self.sliced_tasks.add(SlicedTask::ClaimsOfSets { sets: altered, slot: 0 });
        }
        self.recheck_blocked(now);
        self.apply_pipeline_specs(&before, now);
        self.sliced_tasks.add(SlicedTask::Connections { after: None });
    }

    /// Brings the clusters up to what is desired.
    pub(super) fn apply_cluster_specs(&mut self) {
        let desired = self.replica.desired.clone();
        for (name, state) in &mut self.clusters {
            state.defined = desired.clusters.contains_key(name);
            if !state.defined {
                state.spec = Arc::new(Cluster { jobs_max: 0, ..(*state.spec).clone() });
                state.pools.spec_changed();
                self.plans.mark(name.clone());
            }
        }
        for (name, spec) in &desired.clusters {
            let cluster = || ClusterState::new(spec.clone());
            let state = self.clusters.entry(name.clone()).or_insert_with(cluster);
            if state.spec != *spec || !state.hold_ended {
                state.pools.spec_changed();
                self.plans.mark(name.clone());
            }
            if state.spec.rollout_order != spec.rollout_order {
                state.pools.order_changed(state.workers.keys());
            }
            state.spec = spec.clone();
        }
        self.clusters.retain(|_, state| state.defined || !state.workers.is_empty());
    }
}
