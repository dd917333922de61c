//! A load: which jobs arrive at which clusters, how long they run, how many documents come to which
//! pipelines, how workers start, and what happens to the fleet. People write it as a YAML file
//! beside their manifests.
//!
//! **Invariant**: a [`Load`] is valid: no later code checks its values.

mod arrivals;
mod check;
#[cfg(test)]
mod check_tests;
mod day_steps;
mod day_time;
mod distribution;
mod full_names;
mod samples;
mod spec;
mod worker_limit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{Class, Cluster, Desired, workers_for};
use leasehold_manifest::{CountOrPercent, Problem, YamlFile};
use leasehold_types::{ClusterName, Load as DocumentLoad, PipelineName, StreamKey};

pub(crate) use self::arrivals::Arrivals;
pub use self::distribution::Distribution;
use self::spec::LoadSpec;

/// The file of a load, read, and not yet compared with manifests.
#[derive(Debug)]
pub struct LoadFile(YamlFile<LoadSpec>);

/// What a fleet is to do, and what happens to it.
#[derive(Clone, Debug)]
pub struct Load {
    /// How long it is simulated.
    pub(crate) length: Duration,
    /// The manifests in force at the start: the clusters and classes that have a load, their stream
    /// sets, and the pipelines of these classes with the rates of the start.
    pub(crate) desired: Desired,
    /// The clusters and classes, in the order of the file.
    pub(crate) clusters: Vec<ClusterLoad>,
    /// When the rates of pipelines and the weights of streams change after the start, in the order
    /// of time.
    pub(crate) rate_changes: Vec<RateChange>,
    /// What happens, in the order of time.
    pub(crate) events: Vec<TimedEvent>,
}

/// Documents come to some pipelines at other rates from a time on, and some streams have other
/// weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateChange {
    /// After the start.
    pub(crate) at: Duration,
    pub(crate) rates: BTreeMap<PipelineName, DocumentLoad>,
    pub(crate) weights: BTreeMap<StreamKey, u32>,
}

/// The load of one cluster or class.
#[derive(Clone, Debug)]
pub(crate) struct ClusterLoad {
    pub(crate) name: ClusterName,
    pub(crate) spec: Arc<Cluster>,
    /// The number of workers, if the file names one; otherwise it follows the budget, or the load
    /// of the class.
    pub(crate) workers: Option<u32>,
    /// How long a worker takes from its pod's creation until it takes jobs.
    pub(crate) startup: Distribution,
    /// None if its workers only own streams or serve pipelines.
    pub(crate) jobs: Option<JobLoad>,
    /// How long a worker takes to release a stream or a share of a pipeline.
    pub(crate) stream_release: Duration,
    /// How long a worker has to be ready before a rollout deletes another one for it.
    pub(crate) min_ready: Duration,
    /// How long fewer workers of a class must have been enough before one is removed.
    pub(crate) stabilization: Duration,
}

/// The jobs of a cluster, and what else than Leasehold would run them.
#[derive(Clone, Debug)]
pub(crate) struct JobLoad {
    pub(crate) arrivals: Arrivals,
    pub(crate) durations: Distribution,
    pub(crate) deployment: DeploymentLoad,
    pub(crate) autoscaler: AutoscalerLoad,
}

/// A plain Deployment whose pods each have a fixed pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeploymentLoad {
    /// The most jobs of one pod.
    pub(crate) pool: u32,
    /// `terminationGracePeriodSeconds`.
    pub(crate) grace_period: Duration,
}

/// A HorizontalPodAutoscaler over such a Deployment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AutoscalerLoad {
    pub(crate) replicas_min: u32,
    /// None if it follows the budget.
    pub(crate) replicas_max: Option<u32>,
    /// The jobs that wait or run, for each pod, that it aims at.
    pub(crate) target: f64,
}

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(crate) struct TimedEvent {
    /// After the start.
    pub(crate) at: Duration,
    pub(crate) event: FleetEvent,
}

/// Something that happens to a fleet. Clusters are named by their places in [`Load::clusters`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum FleetEvent {
    /// All pods of a cluster are replaced, a few at a time.
    Rollout { cluster: usize, limits: RolloutLimits },
    /// A cluster has another number of workers.
    Scale { cluster: usize, workers: u32 },
    /// Machines are lost, each with a worker. Their pods are replaced `replaced_after` the loss.
    /// The platform says that nothing of them runs `gone_after` the loss, which is not earlier.
    Lose { cluster: usize, workers: u32, replaced_after: Duration, gone_after: Duration },
    /// The leading coordinator is killed, and another one takes over this much later.
    Failover { after: Duration },
    /// The API server does not answer for this long.
    Outage { lasts: Duration },
    /// A cluster has another budget.
    Budget { cluster: usize, jobs_max: u32 },
}

/// How many pods a rollout may add and miss, as a Deployment's `rollingUpdate` says it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RolloutLimits {
    pub(crate) max_surge: CountOrPercent,
    pub(crate) max_unavailable: CountOrPercent,
}

impl LoadFile {
    /// Reads a file that has this name in problems.
    ///
    /// # Errors
    /// Every value that does not fit, by line.
    pub fn read(file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        YamlFile::read(file, text).map(Self)
    }

    /// The files of durations that it names, as they are written.
    #[must_use]
    pub fn csv_files(&self) -> BTreeSet<&str> {
        let clusters = self.0.value.clusters.iter();
        let durations = clusters.flat_map(|cluster| [&cluster.startup, &cluster.durations]);
        let csv = durations.flatten().filter_map(|duration| duration.csv.as_ref());
        csv.map(|csv| csv.file.as_str()).collect()
    }

    /// The load beside these manifests. `csv` has the text of each file of durations, by its name
    /// as it is written.
    ///
    /// # Errors
    /// Everything that is wrong with its values, by line.
    pub fn resolve(
        &self,
        desired: &Desired,
        csv: &BTreeMap<String, String>,
    ) -> Result<Load, Vec<Problem>> {
        check::resolve(&self.0, desired, csv)
    }
}

impl RateChange {
    /// Puts the changed rates and weights into the manifests.
    pub(crate) fn put_into(&self, desired: &mut Desired) {
        for (name, rate) in &self.rates {
            if let Some(pipeline) = desired.pipelines.get_mut(name) {
                Arc::make_mut(pipeline).load = *rate;
            }
        }
        for (name, set) in &mut desired.sets {
            let own = self.weights.iter().filter(|(stream, _)| stream.set == *name);
            let own: BTreeMap<_, _> =
                own.map(|(stream, weight)| (&stream.stream, *weight)).collect();
            if own.is_empty() {
                continue;
            }
            let streams = Arc::make_mut(&mut Arc::make_mut(set).streams);
            for stream in streams {
                stream.weight = own.get(&stream.name).copied().unwrap_or(stream.weight);
            }
        }
    }
}

impl ClusterLoad {
    /// What it has as a class; none for a cluster with a budget.
    pub(crate) fn class(&self) -> Option<&Class> {
        self.spec.class.as_ref()
    }

    /// The number of workers under a budget: that of the file, or as many as a workload gets that
    /// is made from the manifest. Of a class that is scaled by its load it is the least.
    pub(crate) fn workers_for(&self, budget: u32) -> u32 {
        self.workers.unwrap_or_else(|| match self.class() {
            Some(class) => class.workers_min,
            None => workers_for(budget, self.spec.jobs_per_worker_max),
        })
    }
}

impl DeploymentLoad {
    /// The most pods whose pools are together within a budget, and not more than `workers`; at
    /// least one.
    pub(crate) fn replicas_for(&self, budget: u32, workers: u32) -> u32 {
        replicas_for(self.pool, budget, workers)
    }
}

/// The pool of a pod where none is given: a worker's part of the budget, rounded down or up, so
/// that the pods use more of it; at least 1. Of the two that use as much it is the smaller one.
fn default_pool(budget: u32, workers: u32) -> u32 {
    let workers = workers.max(1);
    let down = (budget / workers).max(1);
    let up = budget.div_ceil(workers).max(1);
    let used = |pool: u32| pool * replicas_for(pool, budget, workers);
    if used(up) > used(down) { up } else { down }
}

/// See [`DeploymentLoad::replicas_for`].
fn replicas_for(pool: u32, budget: u32, workers: u32) -> u32 {
    (budget / pool).min(workers).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_have_the_pool_that_uses_more_of_the_budget() {
        // Six pods of one job use 6 of 10, and five of two jobs all.
        for ((budget, workers), (pool, replicas)) in [
            ((10, 6), (2, 5)),
            ((10, 3), (3, 3)),
            ((20, 5), (4, 5)),
            ((9, 2), (4, 2)),
            ((3, 7), (1, 3)),
        ] {
            let found = default_pool(budget, workers);
            let deployment = DeploymentLoad { pool: found, grace_period: Duration::ZERO };
            let found = (found, deployment.replicas_for(budget, workers));
            assert_eq!(found, (pool, replicas), "{budget} jobs on {workers} workers");
        }
    }
}
