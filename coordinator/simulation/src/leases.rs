//! Pods whose slots are leases: each has an agent in a cell, and asks it before each job.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use leasehold_coordinator_core::view::ClassView;
use leasehold_types::limits::GRACE_BEYOND_DRAIN;
use leasehold_types::{Moment, StreamKey, Token, WorkerKey, WorkerName};

use crate::cell::{Cell, Happening, IdleTime, WorkerNumber};
use crate::deployment::PodNumber;
use crate::load::{Load, RateChange};
use crate::phases::{PhaseMoves, PhaseStarts};
use crate::record::StreamFigures;
use crate::schedule::Schedule;
use crate::served_shares::{PipelineFigures, ServedShares, ShareFigures};
use crate::slots::{SlotChange, Slots, StopCause};

/// The leases of a fleet.
#[derive(Debug)]
pub(crate) struct Leases<'a> {
    load: &'a Load,
    cell: Cell,
    /// The worker of each pod that has been ready, and the other way round.
    workers: BTreeMap<PodNumber, WorkerNumber>,
    pods: Vec<(PodNumber, usize)>,
    /// Streams that workers are about to release.
    releases: Schedule<(WorkerNumber, StreamKey, Token)>,
    /// The ends of the grace periods of pods that a rollout replaces. Most pods have ended by then.
    kills: Schedule<PodNumber>,
    changes: VecDeque<SlotChange>,
    start: Moment,
    now: Moment,
    streams: BTreeMap<StreamKey, StreamState>,
    shares: ServedShares,
    phases: PhaseStarts,
    /// By cluster and phase.
    moves: Vec<Vec<PhaseMoves>>,
}

/// A stream or share that has had an owner.
#[derive(Clone, Debug, Default)]
struct StreamState {
    /// The last owner, whose lease may have ended.
    owner: Option<WorkerNumber>,
    /// Since when it has no owner that runs, if it has none.
    unowned_since: Option<Moment>,
    unowned: Duration,
    unowned_max: Duration,
}

impl<'a> Leases<'a> {
    /// A cell with the manifests of a load, which has no worker yet.
    ///
    /// # Errors
    /// If the cores break a rule of the protocol.
    pub(crate) fn new(
        load: &'a Load,
        idle_time: IdleTime,
        seed: u64,
        start: Moment,
    ) -> Result<Self> {
        let phases = PhaseStarts::new(load, start);
        Ok(Self {
            load,
            cell: Cell::new(load.desired.clone(), idle_time, seed, start)?,
            workers: BTreeMap::new(),
            pods: Vec::new(),
            releases: Schedule::new(start),
            kills: Schedule::new(start),
            changes: VecDeque::new(),
            start,
            now: start,
            streams: BTreeMap::new(),
            shares: ServedShares::new(&load.desired, &load.clusters, start),
            moves: vec![vec![PhaseMoves::default(); phases.count()]; load.clusters.len()],
            phases,
        })
    }

    /// Takes what has happened in the cell.
    fn take_happenings(&mut self) {
        while let Some(happening) = self.cell.take_happening() {
            match happening {
                Happening::SlotsChanged(worker) => {
                    self.changes.push_back(SlotChange::Slots(self.pods[worker].0));
                }
                Happening::Drained(worker) => {
                    self.changes.push_back(SlotChange::Ended(self.pods[worker].0));
                }
                Happening::Revoked { worker, stream, token } => {
                    let (_, cluster) = self.pods[worker];
                    let release = self.load.clusters[cluster].stream_release;
                    self.releases.add(self.now + release, (worker, stream, token));
                }
                Happening::Granted { worker, stream, load } => {
                    let moves = self.take_grant(worker, &stream);
                    if let Some(load) = load {
                        self.shares.granted(worker, &stream, load, moves, self.now);
                    }
                }
                Happening::Freed { worker, stream } => {
                    let now = self.now;
                    if let Some(state) = self.streams.get_mut(&stream) {
                        state.ended(worker, now);
                    }
                    self.shares.freed(worker, &stream, now);
                }
            }
        }
    }

    /// A worker has a stream or share from now on. Returns whether it moves.
    fn take_grant(&mut self, worker: WorkerNumber, stream: &StreamKey) -> bool {
        let (start, now) = (self.start, self.now);
        let first = || StreamState::new(start);
        let moves = self.streams.entry(stream.clone()).or_insert_with(first).granted(worker, now);
        if moves {
            let (_, cluster) = self.pods[worker];
            let moves = &mut self.moves[cluster][self.phases.place(now)];
            *moves = PhaseMoves { count: moves.count + 1, last: Some(now) };
        }
        moves
    }

    /// Nothing of a worker runs any more: nobody works on the streams and shares that it has.
    fn end_streams_of(&mut self, worker: WorkerNumber) {
        let now = self.now;
        self.streams.values_mut().for_each(|stream| stream.ended(worker, now));
        self.shares.end_worker(worker, now);
    }
}

impl StreamState {
    /// A stream that has never had an owner.
    fn new(start: Moment) -> Self {
        Self { unowned_since: Some(start), ..Self::default() }
    }

    /// A worker has it from now on. Returns whether another one had it before: whether it moves.
    fn granted(&mut self, worker: WorkerNumber, now: Moment) -> bool {
        let moves = self.owner.is_some_and(|owner| owner != worker);
        self.owner = Some(worker);
        self.count_unowned(now);
        self.unowned_since = None;
        moves
    }

    /// A worker has it no longer, if that was the last owner.
    fn ended(&mut self, worker: WorkerNumber, now: Moment) {
        if self.owner == Some(worker) {
            self.unowned_since.get_or_insert(now);
        }
    }

    /// Counts the time without an owner up to now.
    fn count_unowned(&mut self, now: Moment) {
        let unowned = self.unowned_since.map_or(Duration::ZERO, |since| now.since(since));
        self.unowned += unowned;
        self.unowned_max = self.unowned_max.max(unowned);
    }
}

impl Slots for Leases<'_> {
    fn next_at(&self) -> Option<Moment> {
        let next = [self.cell.next_at(), self.releases.next_at(), self.kills.next_at()];
        next.into_iter().flatten().min()
    }

    fn step(&mut self) -> Result<()> {
        let Some(at) = self.next_at() else { return Ok(()) };
        self.now = at;
        if self.cell.next_at().is_some_and(|next| next <= at) {
            self.cell.step()?;
        } else if self.releases.next_at().is_some_and(|next| next <= at)
            && let Some((worker, stream, token)) = self.releases.take_next()
        {
            self.cell.release(worker, &stream, token, at)?;
        } else if let Some(pod) = self.kills.take_next() {
            self.changes.push_back(SlotChange::Ended(pod));
        }
        self.take_happenings();
        Ok(())
    }

    fn take_change(&mut self) -> Option<SlotChange> {
        self.changes.pop_front()
    }

    fn free(&self, pod: PodNumber) -> u32 {
        self.workers.get(&pod).map_or(0, |worker| self.cell.free_slots(*worker))
    }

    fn start(
        &mut self,
        pod: PodNumber,
        cluster: usize,
        generation: u64,
        now: Moment,
    ) -> Result<()> {
        self.now = now;
        let worker = WorkerName::new(&format!("worker-{pod}")).expect("a worker's name");
        let key = WorkerKey { cluster: self.load.clusters[cluster].name.clone(), worker };
        let number = self.pods.len();
        self.workers.insert(pod, number);
        self.pods.push((pod, cluster));
        self.shares.add_worker(number, cluster, now);
        self.cell.start_worker(key, generation, now)?;
        self.take_happenings();
        Ok(())
    }

    fn begin_job(&mut self, pod: PodNumber, job: u64, now: Moment) -> Result<bool> {
        self.now = now;
        let Some(worker) = self.workers.get(&pod) else { return Ok(false) };
        let may_begin = self.cell.begin_job(*worker, job, now)?;
        self.take_happenings();
        Ok(may_begin)
    }

    fn end_job(&mut self, pod: PodNumber, job: u64, now: Moment) -> Result<()> {
        self.now = now;
        if let Some(worker) = self.workers.get(&pod) {
            self.cell.end_job(*worker, job, now)?;
        }
        self.take_happenings();
        Ok(())
    }

    fn stop(&mut self, pod: PodNumber, cause: StopCause, now: Moment) -> Result<()> {
        self.now = now;
        if let Some(worker) = self.workers.get(&pod) {
            let (_, cluster) = self.pods[*worker];
            self.cell.drain(*worker, now)?;
            if cause == StopCause::Rollout {
                let drain_deadline = self.load.clusters[cluster].spec.drain_deadline;
                self.kills.add(now + drain_deadline + GRACE_BEYOND_DRAIN, pod);
            }
        }
        self.take_happenings();
        Ok(())
    }

    fn lose(&mut self, pod: PodNumber, now: Moment) {
        self.now = now;
        let Some(worker) = self.workers.get(&pod).copied() else { return };
        self.cell.lose(worker, now);
        // Its leases outlast it.
        self.end_streams_of(worker);
    }

    fn forget(&mut self, pod: PodNumber, now: Moment) -> Result<()> {
        self.now = now;
        if let Some(worker) = self.workers.get(&pod).copied() {
            self.cell.end_worker(worker, now)?;
            self.end_streams_of(worker);
        }
        self.take_happenings();
        Ok(())
    }

    fn set_budget(&mut self, cluster: usize, jobs_max: u32, now: Moment) -> Result<()> {
        self.now = now;
        let mut desired = self.cell.desired().clone();
        if let Some(spec) = desired.clusters.get_mut(&self.load.clusters[cluster].name) {
            Arc::make_mut(spec).jobs_max = jobs_max;
        }
        self.cell.set_desired(desired, now)?;
        self.take_happenings();
        Ok(())
    }

    fn fail_over(&mut self, after: Duration, now: Moment) {
        self.now = now;
        self.cell.fail_over(after, now);
    }

    fn begin_outage(&mut self, now: Moment) {
        self.now = now;
        self.cell.begin_outage(now);
    }

    fn end_outage(&mut self, now: Moment) -> Result<()> {
        self.now = now;
        self.cell.end_outage(now)?;
        self.take_happenings();
        Ok(())
    }

    fn streams(&self, cluster: usize, end: Moment) -> Option<StreamFigures> {
        let name = &self.load.clusters[cluster].name;
        let moves: u64 = self.moves[cluster].iter().map(|phase| phase.count).sum();
        let mut figures = StreamFigures { moves, ..StreamFigures::default() };
        for (set, spec) in self.load.desired.sets.iter().filter(|(_, spec)| spec.cluster == *name) {
            for stream in spec.streams.iter() {
                let key = StreamKey { set: set.clone(), stream: stream.name.clone() };
                let known = self.streams.get(&key).cloned();
                let mut state = known.unwrap_or_else(|| StreamState::new(self.start));
                state.count_unowned(end);
                figures.streams += 1;
                figures.unowned_seconds += state.unowned.as_secs_f64();
                let longest = figures.unowned_max_seconds;
                figures.unowned_max_seconds = longest.max(state.unowned_max.as_secs_f64());
            }
        }
        (figures.streams > 0).then_some(figures)
    }

    fn moves(&self, cluster: usize) -> &[PhaseMoves] {
        &self.moves[cluster]
    }

    fn change_rates(&mut self, change: &RateChange, now: Moment) {
        for (pipeline, rate) in &change.rates {
            self.shares.set_rate(pipeline, *rate, now);
        }
    }

    fn edit_manifests(&mut self, change: &RateChange, now: Moment) -> Result<()> {
        self.now = now;
        let mut desired = self.cell.desired().clone();
        change.put_into(&mut desired);
        self.cell.set_desired(desired, now)?;
        self.take_happenings();
        Ok(())
    }

    fn class(&self, cluster: usize) -> Option<ClassView> {
        self.cell.class(&self.load.clusters[cluster].name)
    }

    fn removable(&self, cluster: usize) -> Vec<PodNumber> {
        let workers = self.cell.removable(&self.load.clusters[cluster].name).into_iter();
        workers.map(|worker| self.pods[worker].0).collect()
    }

    fn shares(&self, cluster: usize, end: Moment) -> Option<ShareFigures> {
        self.shares.of_class(cluster, end)
    }

    fn pipelines(&self, end: Moment) -> Vec<PipelineFigures> {
        self.shares.of_pipelines(end)
    }
}
