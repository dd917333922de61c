//! What a leader does when a manifest is put in force.

use leasehold_types::Moment;

use super::Leader;
use super::sliced_tasks::SlicedTask;
use crate::core::replica::ManifestChange;

impl Leader {
    /// The term begins with the manifest that is in force.
    pub(in crate::core) fn begin_with_desired(&mut self, now: Moment) {
        self.apply_cluster_specs();
        self.replica.forget_plans();
        let clusters: Vec<_> = self.replica.clusters_with_sets().cloned().collect();
        for cluster in &clusters {
            self.plan_now(cluster, now);
        }
        let desired = self.replica.desired().clone();
        self.apply_pipeline_specs(&desired, now);
    }

    /// Another manifest was put in force.
    pub(in crate::core) fn apply_manifest(&mut self, enforced: ManifestChange, now: Moment) {
        let ManifestChange { before, clusters, altered, gone } = enforced;
        self.apply_cluster_specs();
        self.reschedule_give_ups(&before);
        if !gone.is_empty() {
            let claims = self.ledger.claim_table();
            self.replica.keep_handovers(gone, |set| claims.count(set) > 0);
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
        for name in self.clusters.apply(self.replica.desired()) {
            self.plans.mark(name);
        }
    }
}
