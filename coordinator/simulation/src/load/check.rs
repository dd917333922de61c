//! From the file of a load to a valid one. Every value that breaks a rule is named with its place,
//! and with what to do.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_manifest::{CountOrPercent, ManifestDuration, Problem, YamlFile};
use leasehold_types::limits::{JOBS_MAX, JOBS_PER_WORKER_MAX, WORKERS_MAX};
use leasehold_types::{ClusterName, duration};

use super::cluster_names::{self, Unfound};
use super::spec::{
    ArrivalsSpec, BudgetSpec, ClusterSpec, DurationSpec, EventSpec, LoadSpec, RolloutSpec, StepSpec,
};
use super::worker_limit::first_excess;
use super::{
    Arrivals, AutoscalerLoad, ClusterLoad, DeploymentLoad, Distribution, FleetEvent, JobLoad, Load,
    RolloutLimits, TimedEvent, default_pool, samples,
};

/// The fields of a cluster that say something about its jobs.
const JOB_FIELDS: [&str; 4] = ["arrivals", "durations", "deployment", "autoscaler"];
/// The longest simulation.
const LENGTH_MAX: Duration = Duration::from_secs(31 * 24 * 3600);
/// The most jobs that arrive in one.
const ARRIVALS_MAX: f64 = 5_000_000.0;
/// The rates of arrivals, in jobs an hour, other than 0.
const PER_HOUR_MIN: f64 = 0.001;
const PER_HOUR_MAX: f64 = 10_000_000.0;
/// How long a worker takes to start where nothing is given: a guess.
const STARTUP: Duration = Duration::from_secs(30);
/// What Kubernetes takes where nothing is given.
const GRACE_PERIOD: Duration = Duration::from_secs(30);
const ROLLOUT_LIMIT: CountOrPercent = CountOrPercent::Percent(25);
/// A node counts as away after 50 s, and its pods are evicted 5 minutes later.
const REPLACED_AFTER: Duration = Duration::from_secs(350);
/// How long a failover takes where nothing is given.
const FAILOVER_AFTER: Duration = Duration::from_secs(2);

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
            self.blame("clusters", "is empty: give the load of at least one WorkerCluster");
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
        desired.pipelines.clear();
        Some(Load { length, desired, clusters, events })
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
            None if !runs_jobs => {
                let message = "is missing, and the manifest has no maxJobs that would say it: add \
                               the number of workers";
                self.blame(&format!("{at}.workers"), message);
            }
            Some(_) | None => {}
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
        };
        if !runs_jobs {
            for field in JOB_FIELDS.map(|field| format!("{at}.{field}")) {
                if self.file.has(&field) {
                    let message = "is given, but maxJobs of the manifest is 0, so that no job \
                                   would ever run: remove it";
                    self.blame(&field, message);
                }
            }
            return Some(load);
        }
        load.jobs = Some(self.jobs(&at, spec, &load)?);
        Some(load)
    }

    /// The WorkerCluster of this name; where only one namespace has it, without that.
    fn named(&mut self, field: &str, name: &str) -> Option<(ClusterName, Cluster)> {
        let desired = self.desired;
        let budgets = desired.clusters.iter().filter(|(_, cluster)| cluster.class.is_none());
        let (names, budgets): (Vec<_>, Vec<_>) = budgets.unzip();
        let message = match cluster_names::find(name, &names) {
            Ok(place) => return Some((names[place].clone(), (**budgets[place]).clone())),
            Err(Unfound::Ambiguous(message)) => message,
            Err(Unfound::Unknown) if names.is_empty() => {
                format!("is {name}, but the manifests define no WorkerCluster: add it to them")
            }
            Err(Unfound::Unknown) => {
                let meant = cluster_names::known_names(name, &names, ": use");
                format!("is {name}, which no WorkerCluster is called{meant}")
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

    fn arrivals(&mut self, at: &str, spec: &ArrivalsSpec) -> Option<Arrivals> {
        let start = self.file.value.start.0;
        match (spec.per_hour, &spec.steps) {
            (Some(per_hour), None) => {
                let rate = self.rate(&format!("{at}.perHour"), per_hour)?;
                Some(Arrivals::new(vec![(Duration::ZERO, rate)], start))
            }
            (None, Some(steps)) => self.steps(at, steps, start),
            (Some(_), Some(_)) => {
                self.blame(at, "gives both perHour and steps: keep one");
                None
            }
            (None, None) => {
                let message = "gives no rate: add perHour, or steps as in [{at: \"08:00\", \
                               perHour: 300}, {at: \"18:00\", perHour: 40}]";
                self.blame(at, message);
                None
            }
        }
    }

    fn steps(&mut self, at: &str, steps: &[StepSpec], start: Duration) -> Option<Arrivals> {
        if steps.is_empty() {
            self.blame(&format!("{at}.steps"), "is empty: give at least one");
            return None;
        }
        let mut rates = Vec::new();
        let mut is_good = true;
        for (index, step) in steps.iter().enumerate() {
            let field = format!("{at}.steps[{index}]");
            if rates.last().is_some_and(|(before, _)| *before >= step.at.0) {
                self.blame(&format!("{field}.at"), "is not after the step before: sort the steps");
                is_good = false;
            }
            match self.rate(&format!("{field}.perHour"), step.per_hour) {
                Some(rate) => rates.push((step.at.0, rate)),
                None => is_good = false,
            }
        }
        is_good.then(|| Arrivals::new(rates, start))
    }

    /// Jobs per second.
    fn rate(&mut self, field: &str, per_hour: f64) -> Option<f64> {
        if per_hour == 0.0 || (PER_HOUR_MIN..=PER_HOUR_MAX).contains(&per_hour) {
            return Some(per_hour / 3600.0);
        }
        let message = format!(
            "is {per_hour}, but must be a number of jobs: 0, or from {PER_HOUR_MIN} to \
             {PER_HOUR_MAX}"
        );
        self.blame(field, message);
        None
    }

    fn duration(&mut self, at: &str, spec: &DurationSpec) -> Option<Distribution> {
        let DurationSpec { constant, uniform, exponential, lognormal, csv } = spec;
        match (constant, uniform, exponential, lognormal, csv) {
            (Some(constant), None, None, None, None) => Some(Distribution::Constant(constant.0)),
            (None, Some(uniform), None, None, None) => {
                let (min, max) = (uniform.min.0, uniform.max.0);
                if max < min {
                    let message = format!("is below min ({}): raise it", duration::format(min));
                    self.blame(&format!("{at}.uniform.max"), message);
                }
                (max >= min).then_some(Distribution::Uniform { min, max })
            }
            (None, None, Some(exponential), None, None) => {
                let mean = self.above_zero(&format!("{at}.exponential.mean"), exponential.mean)?;
                Some(Distribution::exponential(mean, exponential.max.map(|max| max.0)))
            }
            (None, None, None, Some(lognormal), None) => {
                let median =
                    self.above_zero(&format!("{at}.lognormal.median"), lognormal.median)?;
                let p95 = lognormal.p95.0;
                if p95 < median {
                    let message =
                        format!("is below the median ({}): raise it", duration::format(median));
                    self.blame(&format!("{at}.lognormal.p95"), message);
                    return None;
                }
                Some(Distribution::lognormal(median, p95, lognormal.max.map(|max| max.0)))
            }
            (None, None, None, None, Some(csv)) => {
                let text = self.csv.get(&csv.file).map_or("", String::as_str);
                let read = samples::read(&csv.file, text, csv.column.as_deref());
                let samples = read.map_err(|problem| self.problems.push(problem)).ok()?;
                Some(Distribution::Samples(samples))
            }
            _ => {
                let message = "must be given in exactly one way: constant, uniform, exponential, \
                               lognormal or csv";
                self.blame(at, message);
                None
            }
        }
    }

    fn above_zero(&mut self, field: &str, given: ManifestDuration) -> Option<Duration> {
        if given.0.is_zero() {
            self.blame(field, "is 0, but must be above 0");
        }
        (!given.0.is_zero()).then_some(given.0)
    }

    fn event(
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
        let names: Vec<&ClusterName> = clusters.iter().map(|cluster| &cluster.name).collect();
        let message = match cluster_names::find(name, &names) {
            Ok(place) => return Some(place),
            Err(Unfound::Ambiguous(message)) => message,
            Err(Unfound::Unknown) => {
                let meant = cluster_names::known_names(name, &names, ", or use");
                format!("is {name}, which is not among clusters above: add it{meant}")
            }
        };
        self.blame(&format!("{field}.cluster"), message);
        None
    }
}
