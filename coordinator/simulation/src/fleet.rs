//! A fleet under a load: pods of Deployments, jobs that arrive, wait and run, and what happens to
//! them. What gives pods their slots is a [`Slots`], and how many pods there are is a [`Scaling`].
//!
//! **Invariant**: a job runs on one pod at most, and only if that pod's slots allow it.

mod classes;
#[cfg(test)]
mod classes_tests;
mod events;
mod pods;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use anyhow::Result;
use leasehold_types::Moment;

use self::classes::ClassState;
use crate::autoscaler::{Autoscaler, SYNC_PERIOD};
use crate::class_record::ClassFigures;
use crate::deployment::{Deployment, PodNumber};
use crate::jobs::{Job, JobQueue, JobSource, WaitingJob};
use crate::load::{AutoscalerLoad, ClusterLoad, Load};
use crate::phases::{PhaseFigures, PhaseStarts};
use crate::record::{Course, JobFigures, Recorded, Recorder, StreamFigures};
use crate::schedule::Schedule;
use crate::served_shares::PipelineFigures;
use crate::slots::{SlotChange, Slots};

/// What decides how many pods a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// The load, and the budget of the manifest; of a class what its pipelines need.
    Workers,
    /// As many pods as fixed pools fit into the budget.
    FixedPools,
    /// An autoscaler, up to as many.
    Autoscaler,
}

/// A fleet at one moment.
pub(super) struct Fleet<'a, S> {
    load: &'a Load,
    scaling: Scaling,
    slots: S,
    now: Moment,
    start: Moment,
    schedule: Schedule<Step>,
    clusters: Vec<ClusterState<'a>>,
    pods: Vec<Pod>,
    jobs_begun: u64,
    /// Until when the API server is away, and what waits for it.
    away_until: Option<Moment>,
    delayed: Vec<Step>,
}

/// What became of a fleet.
#[derive(Debug)]
pub(super) struct FleetRun {
    /// In the order of the load.
    pub(super) clusters: Vec<ClusterRun>,
    /// By name; none where nobody serves them.
    pub(super) pipelines: Vec<PipelineFigures>,
}

/// What became of one cluster.
#[derive(Debug)]
pub(super) struct ClusterRun {
    pub(super) jobs: JobFigures,
    pub(super) streams: Option<StreamFigures>,
    pub(super) class: Option<ClassFigures>,
    pub(super) course: Course,
    pub(super) phases: Vec<PhaseFigures>,
}

/// Something that happens in a fleet at a moment.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A job arrives at the cluster with this number.
    Arrive(usize),
    EndJob(PodNumber, u64),
    /// A pod becomes ready.
    Ready(PodNumber),
    /// A pod has been ready for as long as a rollout waits.
    Available(PodNumber),
    /// The platform notices that a pod's machine is lost.
    Replace(PodNumber),
    /// The platform says that nothing of a lost machine runs.
    Gone(PodNumber),
    /// The event of this number in the load happens.
    Event(usize),
    /// The API server may be back.
    ApiServerBack,
    /// The autoscaler of this cluster looks at its metric.
    Scale(usize),
    /// The scaling of this class looks at it.
    ScaleClass(usize),
    /// Rates or weights are others: the change of this number in the load.
    ChangeRates(usize),
    /// The manifests follow that change.
    EditManifests(usize),
}

struct ClusterState<'a> {
    load: &'a ClusterLoad,
    source: Option<JobSource<'a>>,
    /// The job that arrives next.
    next: Option<Job>,
    queue: JobQueue,
    free: FreePods,
    deployment: Deployment,
    autoscaler: Option<Autoscaler>,
    class: Option<ClassState>,
    startup: fastrand::Rng,
    recorder: Recorder,
    /// The number of workers that an event has set.
    workers: Option<u32>,
}

struct Pod {
    cluster: usize,
    generation: u64,
    phase: PodPhase,
    lost_at: Option<Moment>,
    jobs: BTreeMap<u64, RunningJob>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodPhase {
    Starting,
    Ready,
    /// It was deleted, and its jobs go on.
    Stopping,
    /// Its machine is lost, and it is not replaced yet.
    Lost,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct RunningJob {
    job: WaitingJob,
    began: Moment,
}

/// The pods with a free slot. They take jobs in turn.
#[derive(Debug, Default)]
struct FreePods {
    pods: BTreeSet<PodNumber>,
    last: PodNumber,
}

impl<'a, S: Slots> Fleet<'a, S> {
    /// A fleet at the start of the load, all of whose pods are ready.
    ///
    /// # Errors
    /// If the source of slots fails.
    pub(super) fn new(
        load: &'a Load,
        slots: S,
        scaling: Scaling,
        seed: u64,
        start: Moment,
    ) -> Result<Self> {
        let end = start + load.length;
        let phases = PhaseStarts::new(load, start);
        let states = load.clusters.iter().enumerate().map(|(index, cluster)| {
            let mut seeds = fastrand::Rng::with_seed(seed ^ (index as u64).rotate_left(32));
            let [jobs, startup] = [(); 2].map(|()| seeds.u64(..));
            let source = cluster.jobs.as_ref();
            ClusterState {
                load: cluster,
                source: source.map(|source| JobSource::new(source, load.length, jobs)),
                next: None,
                queue: JobQueue::default(),
                free: FreePods::default(),
                deployment: Deployment::new(0),
                autoscaler: None,
                class: None,
                startup: fastrand::Rng::with_seed(startup),
                recorder: Recorder::new(cluster.spec.jobs_max, start, end, phases.clone()),
                workers: None,
            }
        });
        let mut fleet = Self {
            load,
            scaling,
            slots,
            now: start,
            start,
            schedule: Schedule::new(start),
            clusters: states.collect(),
            pods: Vec::new(),
            jobs_begun: 0,
            away_until: None,
            delayed: Vec::new(),
        };
        for (index, event) in load.events.iter().enumerate() {
            fleet.schedule.add(start + event.at, Step::Event(index));
        }
        for (index, change) in load.rate_changes.iter().enumerate() {
            fleet.schedule.add(start + change.at, Step::ChangeRates(index));
        }
        for cluster in 0..fleet.clusters.len() {
            fleet.begin_cluster(cluster)?;
        }
        Ok(fleet)
    }

    /// Simulates to the end. Returns what became of the fleet.
    ///
    /// # Errors
    /// If the source of slots fails.
    pub(super) fn run(mut self) -> Result<FleetRun> {
        let end = self.start + self.load.length;
        while let Some(next) = self.next_at().filter(|next| *next < end) {
            self.now = next;
            if self.slots.next_at().is_some_and(|at| at <= next) {
                self.slots.step()?;
            } else if let Some(step) = self.schedule.take_next() {
                self.take(step)?;
            }
            self.take_changes()?;
        }
        let Self { load, slots, clusters, start, .. } = self;
        let starts = PhaseStarts::new(load, start);
        let runs = clusters.into_iter().enumerate().map(|(index, cluster)| {
            let Recorded { jobs, course, phases } = cluster.recorder.finish();
            let phases = starts.figures(load, &phases, slots.moves(index));
            let shares = slots.shares(index, end);
            let class = cluster.class.map(|class| class.finish(jobs.workers_max, shares));
            ClusterRun { jobs, streams: slots.streams(index, end), class, course, phases }
        });
        Ok(FleetRun { clusters: runs.collect(), pipelines: slots.pipelines(end) })
    }

    fn next_at(&self) -> Option<Moment> {
        [self.schedule.next_at(), self.slots.next_at()].into_iter().flatten().min()
    }

    /// The first pods of a cluster start, and its first job is drawn.
    fn begin_cluster(&mut self, cluster: usize) -> Result<()> {
        let state = &mut self.clusters[cluster];
        let (load, budget) = (state.load, state.load.spec.jobs_max);
        state.deployment.set_replicas(load.workers_for(budget));
        if let Some(jobs) = load.jobs.as_ref().filter(|_| self.scaling != Scaling::Workers) {
            let fitting = jobs.deployment.replicas_for(budget, load.workers_for(budget));
            state.deployment.set_replicas(fitting);
            if self.scaling == Scaling::Autoscaler {
                let most = jobs.autoscaler.replicas_max.unwrap_or(fitting);
                let AutoscalerLoad { replicas_min, target, .. } = jobs.autoscaler;
                state.autoscaler = Some(Autoscaler::new(target, replicas_min, most));
                self.schedule.add(self.now + SYNC_PERIOD, Step::Scale(cluster));
            }
        }
        self.begin_class(cluster);
        for _ in 0..self.clusters[cluster].deployment.replicas() {
            let pod = self.create_pod(cluster);
            self.pod_is_ready(pod)?;
            self.clusters[cluster].deployment.set_ready(pod, true);
        }
        self.draw_job(cluster);
        self.take_changes()
    }

    /// Carries a step out. While the API server is away, a step that needs it waits.
    fn take(&mut self, step: Step) -> Result<()> {
        if self.away_until.is_some() && self.needs_api_server(step) {
            self.delayed.push(step);
            return Ok(());
        }
        match step {
            Step::Arrive(cluster) => self.arrive(cluster),
            Step::EndJob(pod, job) => self.end_job(pod, job),
            Step::Ready(pod) => self.take_ready(pod),
            Step::Available(pod) => self.pod_is_available(pod),
            Step::Replace(pod) => self.replace(pod),
            Step::Gone(pod) => self.slots.forget(pod, self.now),
            Step::Event(index) => self.take_event(index),
            Step::ApiServerBack => self.end_outage(),
            Step::Scale(cluster) => self.autoscale(cluster),
            Step::ScaleClass(cluster) => self.take_look(cluster),
            Step::ChangeRates(index) => {
                self.change_rates(index);
                Ok(())
            }
            Step::EditManifests(index) => self.edit_manifests(index),
        }
    }

    /// The next job of a cluster arrives at its time.
    fn draw_job(&mut self, cluster: usize) {
        let state = &mut self.clusters[cluster];
        state.next = state.source.as_mut().and_then(JobSource::next);
        if let Some(job) = state.next {
            self.schedule.add(self.start + job.arrives, Step::Arrive(cluster));
        }
    }

    fn arrive(&mut self, cluster: usize) -> Result<()> {
        let state = &mut self.clusters[cluster];
        if let Some(Job { runs, .. }) = state.next.take() {
            state.recorder.arrived();
            state.queue.push(WaitingJob { arrived: self.now, runs, was_killed: false });
            state.recorder.set_waiting(state.queue.len(), self.now);
        }
        self.draw_job(cluster);
        self.dispatch(cluster)
    }

    /// Jobs that wait begin on the pods that have a free slot.
    fn dispatch(&mut self, cluster: usize) -> Result<()> {
        loop {
            let state = &mut self.clusters[cluster];
            if state.queue.len() == 0 {
                return Ok(());
            }
            let Some(pod) = state.free.next() else { return Ok(()) };
            let number = self.jobs_begun;
            if !self.slots.begin_job(pod, number, self.now)? {
                state.free.set(pod, false);
                continue;
            }
            self.jobs_begun += 1;
            state.free.set(pod, self.slots.free(pod) > 0);
            let Some(job) = state.queue.pop() else { return Ok(()) };
            let wait = (!job.was_killed).then(|| self.now.since(job.arrived));
            state.recorder.begin(wait, self.now);
            state.recorder.set_waiting(state.queue.len(), self.now);
            self.pods[pod].jobs.insert(number, RunningJob { job, began: self.now });
            self.schedule.add(self.now + job.runs, Step::EndJob(pod, number));
        }
    }

    fn end_job(&mut self, pod: PodNumber, job: u64) -> Result<()> {
        // A job that was killed ends no second time.
        if self.pods[pod].jobs.remove(&job).is_none() {
            return Ok(());
        }
        let cluster = self.pods[pod].cluster;
        self.clusters[cluster].recorder.end(self.now);
        self.slots.end_job(pod, job, self.now)
    }

    /// Takes what has changed at the source of slots.
    fn take_changes(&mut self) -> Result<()> {
        while let Some(change) = self.slots.take_change() {
            match change {
                SlotChange::Slots(pod) => {
                    let (cluster, is_ready) =
                        (self.pods[pod].cluster, self.pods[pod].phase == PodPhase::Ready);
                    let is_free = is_ready && self.slots.free(pod) > 0;
                    self.clusters[cluster].free.set(pod, is_free);
                    self.dispatch(cluster)?;
                }
                SlotChange::Ended(pod) => self.pod_has_ended(pod)?,
            }
        }
        Ok(())
    }
}

impl FreePods {
    fn set(&mut self, pod: PodNumber, is_free: bool) {
        if is_free {
            self.pods.insert(pod);
        } else {
            self.pods.remove(&pod);
        }
    }

    /// The pod whose turn it is.
    fn next(&mut self) -> Option<PodNumber> {
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.pods.range(after).next().or_else(|| self.pods.first()).copied()?;
        self.last = next;
        Some(next)
    }
}
