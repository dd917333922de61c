//! The rules on the events of a load.

use std::time::Duration;

use leasehold_manifest::CountOrPercent;
use leasehold_types::duration;
use leasehold_types::limits::{JOBS_MAX, WORKERS_MAX};

use super::super::full_names::{self, Unfound};
use super::super::spec::{BudgetSpec, EventSpec, RolloutSpec};
use super::super::{ClusterLoad, FleetEvent, RolloutLimits, TimedEvent};
use super::Checker;

const ROLLOUT_LIMIT: CountOrPercent = CountOrPercent::Percent(25);
/// A node counts as away after 50 s, and its pods are evicted 5 minutes later.
const REPLACED_AFTER: Duration = Duration::from_secs(350);
/// How long a failover takes where nothing is given.
const FAILOVER_AFTER: Duration = Duration::from_secs(2);

impl Checker<'_> {
    pub(super) fn event(
        &mut self,
        index: usize,
        spec: &EventSpec,
        clusters: &[ClusterLoad],
    ) -> Option<TimedEvent> {
        let field = format!("events[{index}]");
        let (at, length) = (spec.at.0, self.file.value.length.0);
        if at >= length {
            let message = format!("is not before the end ({}): lower it", duration::format(length));
            self.blame(&format!("{field}.at"), message);
        }
        let EventSpec { rollout, scale, lose, failover, outage, budget, .. } = spec;
        let event = match (rollout, scale, lose, failover, outage, budget) {
            (Some(rollout), None, None, None, None, None) => {
                self.rollout(&format!("{field}.rollout"), rollout, clusters)?
            }
            (None, Some(scale), None, None, None, None) => {
                let field = format!("{field}.scale");
                let cluster = self.place(&field, &scale.cluster, clusters)?;
                let workers = self.workers(&field, scale.workers)?;
                self.within_class(&format!("{field}.workers"), workers, &clusters[cluster].spec);
                FleetEvent::Scale { cluster, workers }
            }
            (None, None, Some(lose), None, None, None) => {
                let field = format!("{field}.lose");
                let cluster = self.place(&field, &lose.cluster, clusters)?;
                let workers = self.workers(&field, lose.workers)?;
                let replaced_after = lose.replaced_after.map_or(REPLACED_AFTER, |after| after.0);
                let gone_after = lose.gone_after.map_or(replaced_after, |after| after.0);
                if gone_after < replaced_after {
                    let replaced = duration::format(replaced_after);
                    let message = format!("is before replacedAfter ({replaced}): raise it");
                    self.blame(&format!("{field}.goneAfter"), message);
                }
                FleetEvent::Lose { cluster, workers, replaced_after, gone_after }
            }
            (None, None, None, Some(failover), None, None) => {
                let after = failover.after.map_or(FAILOVER_AFTER, |after| after.0);
                FleetEvent::Failover { after }
            }
            (None, None, None, None, Some(outage), None) => {
                let lasts = self.above_zero(&format!("{field}.outage.for"), outage.lasts)?;
                FleetEvent::Outage { lasts }
            }
            (None, None, None, None, None, Some(budget)) => {
                self.budget(&format!("{field}.budget"), budget, clusters)?
            }
            _ => {
                let message = "must have exactly one of: rollout, scale, lose, failover, outage, \
                               budget";
                self.blame(&field, message);
                return None;
            }
        };
        Some(TimedEvent { at, event })
    }

    fn rollout(
        &mut self,
        field: &str,
        spec: &RolloutSpec,
        clusters: &[ClusterLoad],
    ) -> Option<FleetEvent> {
        let cluster = self.place(field, &spec.cluster, clusters)?;
        let max_surge = spec.max_surge.unwrap_or(ROLLOUT_LIMIT);
        let max_unavailable = spec.max_unavailable.unwrap_or(ROLLOUT_LIMIT);
        if max_surge.is_zero() && max_unavailable.is_zero() {
            let message = "is 0 like maxSurge, so that no rollout could ever begin: raise one";
            self.blame(&format!("{field}.maxUnavailable"), message);
        }
        Some(FleetEvent::Rollout { cluster, limits: RolloutLimits { max_surge, max_unavailable } })
    }

    fn budget(
        &mut self,
        field: &str,
        spec: &BudgetSpec,
        clusters: &[ClusterLoad],
    ) -> Option<FleetEvent> {
        let cluster = self.place(field, &spec.cluster, clusters)?;
        let jobs_max = spec.max_jobs;
        if clusters[cluster].class().is_some() {
            let message = "names a WorkerClass, which has no budget: name a WorkerCluster, or \
                           remove the event";
            self.blame(&format!("{field}.cluster"), message);
            return None;
        }
        if clusters[cluster].jobs.is_none() {
            let message = "names a WorkerCluster whose manifest has no maxJobs, so that no job \
                           runs there: remove the event, or add maxJobs to the manifest";
            self.blame(&format!("{field}.cluster"), message);
            return None;
        }
        if jobs_max > JOBS_MAX {
            let message = format!("is {jobs_max}, but must be from 0 to {JOBS_MAX}");
            self.blame(&format!("{field}.maxJobs"), message);
            return None;
        }
        Some(FleetEvent::Budget { cluster, jobs_max })
    }

    fn workers(&mut self, field: &str, workers: u32) -> Option<u32> {
        let is_good = workers > 0 && workers as usize <= WORKERS_MAX;
        if !is_good {
            let message = format!("is {workers}, but must be from 1 to {WORKERS_MAX}");
            self.blame(&format!("{field}.workers"), message);
        }
        is_good.then_some(workers)
    }

    /// The place of a cluster that an event names.
    fn place(&mut self, field: &str, name: &str, clusters: &[ClusterLoad]) -> Option<usize> {
        let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        let message = match full_names::find(name, &names) {
            Ok(place) => return Some(place),
            Err(Unfound::Ambiguous(message)) => message,
            Err(Unfound::Unknown) => {
                let meant = full_names::known_names(name, &names, ", or use");
                format!("is {name}, which is not among clusters above: add it{meant}")
            }
        };
        self.blame(&format!("{field}.cluster"), message);
        None
    }
}
