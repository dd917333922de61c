//! From the file of a load to a valid one. Every value that breaks a rule is named with its place,
//! and with what to do.

mod durations;
mod events;
mod rates;
mod weights;

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_manifest::{Problem, YamlFile};
use leasehold_types::limits::{JOBS_PER_WORKER_MAX, WORKERS_MAX};
use leasehold_types::{ClusterName, duration};

use super::full_names::{self, Unfound};
use super::spec::{ClusterSpec, LoadSpec};
use super::worker_limit::first_excess;
use super::{
    AutoscalerLoad, ClusterLoad, DeploymentLoad, Distribution, JobLoad, Load, TimedEvent,
    default_pool,
};

/// The fields of a cluster that say something about its jobs.
const JOB_FIELDS: [&str; 4] = ["arrivals", "durations", "deployment", "autoscaler"];
/// The longest simulation.
const LENGTH_MAX: Duration = Duration::from_secs(31 * 24 * 3600);
/// The most jobs that arrive in one.
const ARRIVALS_MAX: f64 = 5_000_000.0;
/// How long a worker takes to start where nothing is given: a guess.
const STARTUP: Duration = Duration::from_secs(30);
/// What Kubernetes takes where nothing is given.
const GRACE_PERIOD: Duration = Duration::from_secs(30);
/// What a manifest of a class has where nothing is given.
const STABILIZATION: Duration = Duration::from_secs(300);

/// The load of this file beside these manifests; `csv` has the text of each file of durations.
///
/// # Errors
/// Everything that is wrong.
pub(super) fn resolve(
    file: &YamlFile<LoadSpec>,
    desired: &Desired,
    csv: &BTreeMap<String, String>,
) -> Result<Load, Vec<Problem>> {
    let mut checker = Checker { file, desired, csv, problems: Vec::new() };
    let load = checker.load();
    match load {
        Some(load) if checker.problems.is_empty() => Ok(load),
        _ => Err(checker.problems),
    }
}

/// Collects the problems of one file.
struct Checker<'a> {
    file: &'a YamlFile<LoadSpec>,
    desired: &'a Desired,
    csv: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn blame(&mut self, field: &str, message: impl Into<String>) {
        self.problems.push(self.file.problem(field, message));
    }

    fn load(&mut self) -> Option<Load> {
        let spec = &self.file.value;
        let length = spec.length.0;
        if length.is_zero() || length > LENGTH_MAX {
            let longest = duration::format(LENGTH_MAX);
            self.blame("for", format!("must be above 0 and at most {longest}"));
        }
        if spec.clusters.is_empty() {
            self.blame("clusters", "is empty: give at least one WorkerCluster or WorkerClass");
        }
        let clusters: Vec<Option<ClusterLoad>> =
            (0..).zip(&spec.clusters).map(|(index, one)| self.cluster(index, one)).collect();
        let clusters: Vec<ClusterLoad> = clusters.into_iter().collect::<Option<_>>()?;
        for (index, cluster) in clusters.iter().enumerate() {
            if clusters[..index].iter().any(|before| before.name == cluster.name) {
                let message = format!("is {} again: give its load once", cluster.name);
                self.blame(&format!("clusters[{index}].name"), message);
            }
        }
        self.sizes(&clusters);
        let mut events: Vec<(usize, TimedEvent)> = Vec::new();
        for (index, event) in spec.events.iter().enumerate() {
            events.extend(self.event(index, event, &clusters).map(|event| (index, event)));
        }
        events.sort_by_key(|(_, event)| event.at);
        if let Some(excess) = first_excess(&clusters, &events) {
            let message = format!(
                "makes {} workers of all clusters together, more than the {WORKERS_MAX} that one \
                 coordinator takes: lower it",
                excess.workers
            );
            self.blame(&excess.field, message);
        }
        let events = events.into_iter().map(|(_, event)| event).collect();
        let has_load = |name: &ClusterName| clusters.iter().any(|cluster| cluster.name == *name);
        let mut desired = self.desired.clone();
        desired.clusters.retain(|name, _| has_load(name));
        desired.sets.retain(|_, set| has_load(&set.cluster));
        desired.unread.clear();
        let mut changes = BTreeMap::new();
        self.pipelines(&mut desired, &mut changes);
        self.weights(&mut desired, &mut changes);
        let rate_changes = changes.into_values().collect();
        Some(Load { length, desired, clusters, rate_changes, events })
    }

    /// The limits over all clusters.
    fn sizes(&mut self, clusters: &[ClusterLoad]) {
        let workers = clusters.iter().map(|cluster| cluster.workers_for(cluster.spec.jobs_max));
        let workers: usize = workers.map(|workers| workers as usize).sum();
        if workers > WORKERS_MAX {
            let message = format!(
                "have {workers} workers together, more than the {WORKERS_MAX} that one coordinator \
                 takes: simulate fewer"
            );
            self.blame("clusters", message);
        }
        let length = self.file.value.length.0;
        let jobs = clusters.iter().filter_map(|cluster| cluster.jobs.as_ref());
        let jobs: f64 = jobs.map(|jobs| jobs.arrivals.expected(length)).sum();
        if jobs > ARRIVALS_MAX {
            let message = format!(
                "get about {jobs:.0} jobs together, more than {ARRIVALS_MAX:.0}: lower the rates, \
                 or simulate a shorter time"
            );
            self.blame("clusters", message);
        }
    }

    fn cluster(&mut self, index: usize, spec: &ClusterSpec) -> Option<ClusterLoad> {
        let at = format!("clusters[{index}]");
        let (name, cluster) = self.named(&format!("{at}.name"), &spec.name)?;
        let runs_jobs = cluster.jobs_max > 0;
        match spec.workers {
            Some(workers) if workers == 0 || workers as usize > WORKERS_MAX => {
                let message = format!("is {workers}, but must be from 1 to {WORKERS_MAX}");
                self.blame(&format!("{at}.workers"), message);
            }
            Some(workers) => self.within_class(&format!("{at}.workers"), workers, &cluster),
            None if !runs_jobs && cluster.class.is_none() => {
                let message = "is missing, and the manifest has no maxJobs that would say it: add \
                               the number of workers";
                self.blame(&format!("{at}.workers"), message);
            }
            None => {}
        }
        let startup = match &spec.startup {
            Some(startup) => self.duration(&format!("{at}.startup"), startup)?,
            None => Distribution::Constant(STARTUP),
        };
        let [stream_release, min_ready] = [spec.stream_release, spec.min_ready]
            .map(|given| given.map_or(Duration::ZERO, |time| time.0));
        let mut load = ClusterLoad {
            name,
            spec: cluster.into(),
            workers: spec.workers,
            startup,
            jobs: None,
            stream_release,
            min_ready,
            stabilization: spec.stabilization.map_or(STABILIZATION, |time| time.0),
        };
        if load.class().is_none() && spec.stabilization.is_some() {
            let message = "is given for a WorkerCluster, which its budget scales: remove it";
            self.blame(&format!("{at}.stabilization"), message);
        }
        if !runs_jobs {
            self.has_no_jobs(&at, load.class().is_some());
            return Some(load);
        }
        load.jobs = Some(self.jobs(&at, spec, &load)?);
        Some(load)
    }

    /// Nothing may be said about the jobs of a cluster or class that runs none.
    fn has_no_jobs(&mut self, at: &str, is_class: bool) {
        let message = if is_class {
            "is given for a WorkerClass, whose workers serve pipelines and run no jobs: remove it"
        } else {
            "is given, but maxJobs of the manifest is 0, so that no job would ever run: remove it"
        };
        for field in JOB_FIELDS.map(|field| format!("{at}.{field}")) {
            if self.file.has(&field) {
                self.blame(&field, message);
            }
        }
    }

    /// A class has no more workers than its manifest allows.
    fn within_class(&mut self, field: &str, workers: u32, cluster: &Cluster) {
        let most = cluster.class.as_ref().map(|class| class.workers_max);
        if let Some(most) = most.filter(|most| workers > *most) {
            let message = format!("is {workers}, above maxReplicas ({most}): lower it");
            self.blame(field, message);
        }
    }

    /// The WorkerCluster or WorkerClass of this name; where only one namespace has it, without
    /// that.
    fn named(&mut self, field: &str, name: &str) -> Option<(ClusterName, Cluster)> {
        let all: Vec<_> = self.desired.clusters.iter().collect();
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let message = match full_names::find(name, &names) {
            Ok(place) => {
                let (name, cluster) = all[place];
                return Some((name.clone(), (**cluster).clone()));
            }
            Err(Unfound::Ambiguous(message)) => message,
            Err(Unfound::Unknown) if names.is_empty() => format!(
                "is {name}, but the manifests define no WorkerCluster or WorkerClass: add it to \
                 them"
            ),
            Err(Unfound::Unknown) => {
                let meant = full_names::known_names(name, &names, ": use");
                format!("is {name}, which no WorkerCluster or WorkerClass is called{meant}")
            }
        };
        self.blame(field, message);
        None
    }

    fn jobs(&mut self, at: &str, spec: &ClusterSpec, load: &ClusterLoad) -> Option<JobLoad> {
        let arrivals = match &spec.arrivals {
            Some(arrivals) => self.arrivals(&format!("{at}.arrivals"), arrivals),
            None => {
                let message = "is missing: say how many jobs arrive, as in {perHour: 120}";
                self.blame(&format!("{at}.arrivals"), message);
                None
            }
        };
        let durations = match &spec.durations {
            Some(durations) => self.duration(&format!("{at}.durations"), durations),
            None => {
                let message = "is missing: say how long jobs run, as in {exponential: {mean: 20m}}";
                self.blame(&format!("{at}.durations"), message);
                None
            }
        };
        let budget = load.spec.jobs_max;
        let workers = load.workers_for(budget);
        let pool = spec.deployment.pool.unwrap_or_else(|| default_pool(budget, workers));
        if !(1..=JOBS_PER_WORKER_MAX).contains(&pool) {
            let message = format!("is {pool}, but must be from 1 to {JOBS_PER_WORKER_MAX}");
            self.blame(&format!("{at}.deployment.pool"), message);
        } else if pool > budget {
            let message = format!(
                "is {pool}, so that one pod alone would exceed the budget: lower it to maxJobs \
                 ({budget}) or less"
            );
            self.blame(&format!("{at}.deployment.pool"), message);
        }
        let grace_period = spec.deployment.grace_period.map_or(GRACE_PERIOD, |grace| grace.0);
        let scaler = &spec.autoscaler;
        let replicas_min = scaler.min_replicas.unwrap_or(1);
        for (field, given) in
            [("minReplicas", scaler.min_replicas), ("maxReplicas", scaler.max_replicas)]
        {
            if given.is_some_and(|given| given == 0 || given as usize > WORKERS_MAX) {
                let message = format!("must be from 1 to {WORKERS_MAX}");
                self.blame(&format!("{at}.autoscaler.{field}"), message);
            }
        }
        if scaler.max_replicas.is_some_and(|most| most < replicas_min) {
            let message = format!("is below minReplicas ({replicas_min}): raise it");
            self.blame(&format!("{at}.autoscaler.maxReplicas"), message);
        }
        let target = scaler.target.unwrap_or_else(|| f64::from(pool));
        if !(0.01..=1e6).contains(&target) {
            let message = "must be a number of jobs for each pod, from 0.01 to 1000000";
            self.blame(&format!("{at}.autoscaler.target"), message);
        }
        Some(JobLoad {
            arrivals: arrivals?,
            durations: durations?,
            deployment: DeploymentLoad { pool, grace_period },
            autoscaler: AutoscalerLoad { replicas_min, replicas_max: scaler.max_replicas, target },
        })
    }
}
