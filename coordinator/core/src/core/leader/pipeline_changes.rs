//! Has the pipelines planned and changed, and applies what follows to the leader's other owners.

use leasehold_types::{Moment, WorkerKey};

use super::facts::Facts;
use super::pipelines::{PipelineChanges, Pipelines, Reroute};
use super::{Leader, Timer};
use crate::desired::Desired;

impl Leader {
    /// Plans the pipelines that have changed.
    pub(super) fn plan_pipelines(&mut self, now: Moment) {
        let on_hold = self.ledger.unreported().clusters_on_hold(self.replica.heard());
        self.change_pipelines(now, |pipelines, facts| pipelines.plan(on_hold, facts));
    }

    /// Applies the changes of the desired pipelines and classes.
    pub(super) fn apply_pipeline_specs(&mut self, before: &Desired, now: Moment) {
        self.change_pipelines(now, |pipelines, facts| pipelines.apply_specs(before, facts));
    }

    /// A worker is lost: the pipelines that it served are Broken.
    pub(super) fn lose_worker(&mut self, key: &WorkerKey, now: Moment) {
        self.change_pipelines(now, |pipelines, facts| pipelines.lose_worker(key, facts));
    }

    /// A worker has begun to drain, has reported that it drains, or works again.
    pub(super) fn drain_changed(&mut self, key: &WorkerKey) {
        let Self { replica, ledger, clusters, pipelines, .. } = self;
        if let Some(worker) = clusters.worker_mut(key) {
            worker.drain_mut().record_start(replica.heard());
        }
        pipelines.drain_changed(key, Facts { replica, ledger, clusters });
    }

    /// What plans and rules are made from.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts { replica: &self.replica, ledger: &self.ledger, clusters: &self.clusters }
    }

    /// Changes the pipelines, and applies what follows.
    fn change_pipelines(
        &mut self,
        now: Moment,
        change: impl FnOnce(&mut Pipelines, Facts<'_>) -> PipelineChanges,
    ) {
        let Self { replica, ledger, clusters, pipelines, .. } = self;
        let changes = change(pipelines, Facts { replica, ledger, clusters });
        let PipelineChanges { notices, shares, reroutes, more_to_heal } = changes;
        for notice in notices {
            self.replica.notice(notice);
        }
        for Reroute { share, worker: key, changed_table } in reroutes {
            let Some(worker) = self.worker_mut(&key) else { continue };
            let session = worker.session_mut().filter(|session| session.takes_tables());
            match session.zip(changed_table) {
                Some((session, node)) => session.tables_mut().mark(node),
                None => worker.streams_mut().reroute(share),
            }
            self.outgoing.mark(key);
        }
        for stream in shares {
            self.compare_claims(&stream, now);
        }
        if more_to_heal {
            self.timers.set(now, Timer::Heal);
        }
    }
}
