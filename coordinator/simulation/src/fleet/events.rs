//! What happens to a fleet beside its jobs: the events of the load, outages, and autoscaling.

use anyhow::Result;

use super::{Fleet, Scaling, Step};
use crate::autoscaler::SYNC_PERIOD;
use crate::load::FleetEvent;
use crate::slots::Slots;

impl<S: Slots> Fleet<'_, S> {
    /// Whether the API server takes part in a step: somebody changes an object there, or the
    /// platform reads what became of a node.
    pub(super) fn needs_api_server(&self, step: Step) -> bool {
        match step {
            Step::Replace(_) | Step::Gone(_) | Step::EditManifests(_) => true,
            Step::Event(index) => match self.load.events[index].event {
                FleetEvent::Rollout { .. }
                | FleetEvent::Scale { .. }
                | FleetEvent::Budget { .. } => true,
                FleetEvent::Lose { .. }
                | FleetEvent::Failover { .. }
                | FleetEvent::Outage { .. } => false,
            },
            // An autoscaler looks again and again, whether the API server is there or not.
            Step::Scale(_)
            | Step::ScaleClass(_)
            | Step::ChangeRates(_)
            | Step::Arrive(_)
            | Step::EndJob(..)
            | Step::Ready(_)
            | Step::Available(_)
            | Step::ApiServerBack => false,
        }
    }

    /// The event of this number happens.
    pub(super) fn take_event(&mut self, index: usize) -> Result<()> {
        match self.load.events[index].event {
            FleetEvent::Rollout { cluster, limits } => {
                self.clusters[cluster].deployment.begin_rollout(limits);
                self.reconcile(cluster)
            }
            FleetEvent::Scale { cluster, workers } => {
                self.clusters[cluster].workers = Some(workers);
                self.set_replicas(cluster)
            }
            FleetEvent::Lose { cluster, workers, replaced_after, gone_after } => {
                for pod in self.lose_pods(cluster, workers)? {
                    self.schedule.add(self.now + replaced_after, Step::Replace(pod));
                    self.schedule.add(self.now + gone_after, Step::Gone(pod));
                }
                Ok(())
            }
            FleetEvent::Failover { after } => {
                self.slots.fail_over(after, self.now);
                Ok(())
            }
            FleetEvent::Outage { lasts } => {
                let back_at = self.now + lasts;
                if self.away_until.is_none() {
                    self.slots.begin_outage(self.now);
                }
                self.away_until = self.away_until.max(Some(back_at));
                self.schedule.add(back_at, Step::ApiServerBack);
                Ok(())
            }
            FleetEvent::Budget { cluster, jobs_max } => {
                self.clusters[cluster].recorder.set_budget(jobs_max, self.now);
                self.slots.set_budget(cluster, jobs_max, self.now)?;
                self.set_replicas(cluster)
            }
        }
    }

    /// Follows the budget and the number of workers of a cluster.
    fn set_replicas(&mut self, cluster: usize) -> Result<()> {
        if self.clusters[cluster].class.is_some() {
            return self.scale_class(cluster);
        }
        let state = &mut self.clusters[cluster];
        let budget = state.recorder.budget();
        let workers = state.workers.unwrap_or_else(|| state.load.workers_for(budget));
        let replicas = match &state.load.jobs {
            Some(jobs) if self.scaling != Scaling::Workers => {
                jobs.deployment.replicas_for(budget, workers)
            }
            Some(_) | None => workers,
        };
        match (&mut state.autoscaler, &state.load.jobs) {
            (Some(autoscaler), Some(jobs)) => {
                let most = jobs.autoscaler.replicas_max.unwrap_or(replicas);
                autoscaler.set_replicas_max(most);
                let present = state.deployment.replicas();
                state.deployment.set_replicas(present.min(most));
            }
            _ => state.deployment.set_replicas(replicas),
        }
        self.reconcile(cluster)
    }

    /// The API server answers again, unless another outage lasts longer: what has waited happens.
    pub(super) fn end_outage(&mut self) -> Result<()> {
        if self.away_until.is_none_or(|until| until > self.now) {
            return Ok(());
        }
        self.away_until = None;
        self.slots.end_outage(self.now)?;
        for step in std::mem::take(&mut self.delayed) {
            self.schedule.add(self.now, step);
        }
        (0..self.clusters.len()).try_for_each(|cluster| self.reconcile(cluster))
    }

    /// The autoscaler of a cluster looks at its metric.
    pub(super) fn autoscale(&mut self, cluster: usize) -> Result<()> {
        self.schedule.add(self.now + SYNC_PERIOD, Step::Scale(cluster));
        let state = &mut self.clusters[cluster];
        if let (None, Some(autoscaler)) = (self.away_until, &mut state.autoscaler) {
            let present = state.deployment.replicas();
            let replicas = autoscaler.replicas(state.recorder.jobs(), present, self.now);
            state.deployment.set_replicas(replicas);
        }
        self.reconcile(cluster)
    }
}
