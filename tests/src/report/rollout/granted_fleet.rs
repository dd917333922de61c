//! A fleet that a coordinator grants its slots: a cell of the simulation, which has the real core
//! of the coordinator and that of each agent. Each worker asks its agent before it begins a job.
//!
//! **Invariant**: nothing fails, and every beat is simulated.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_simulation::{Cell, Happening, IdleTime, Schedule};
use leasehold_types::{ClusterName, Moment, WorkerKey, WorkerName};

use super::{JOB_MEANS_MAX, JobTimes, Rollout, RolloutFigures, SEED, START, SlotUse};

/// How long before the rollout the old workers start: they have all slots by then.
const WARM_UP: Duration = Duration::from_secs(5);

/// The simulation.
pub(super) struct GrantedFleet {
    rollout: Rollout,
    now: Moment,
    cell: Cell,
    schedule: Schedule<Step>,
    slots: SlotUse,
    /// By worker's number.
    job_times: Vec<JobTimes>,
    jobs_begun: u64,
}

enum Step {
    /// All old workers drain.
    BeginRollout,
    /// A new worker starts.
    StartWorker,
    /// A job of the worker with this number ends.
    EndJob(usize, u64),
}

impl GrantedFleet {
    /// A leading coordinator, and old workers that have just started.
    pub(super) fn new(rollout: Rollout) -> Result<Self> {
        let cluster = Cluster {
            jobs_max: rollout.budget(),
            jobs_per_worker_max: rollout.jobs_per_worker,
            // No drain takes as long.
            drain_deadline: rollout.job_mean.mul_f64(2.0 * JOB_MEANS_MAX),
            ..Cluster::example()
        };
        let clusters = [(cluster_name(), Arc::new(cluster))].into();
        let desired = Desired { clusters, ..Desired::default() };
        let mut fleet = Self {
            rollout,
            now: START,
            cell: Cell::new(desired, IdleTime::Simulated, SEED, START)?,
            schedule: Schedule::new(START),
            slots: SlotUse::new(rollout, START),
            job_times: Vec::new(),
            jobs_begun: 0,
        };
        let begins_at = fleet.begins_at();
        fleet.schedule.add(begins_at, Step::BeginRollout);
        for number in 0..rollout.workers {
            fleet.start_worker()?;
            let ready_at = begins_at + rollout.ready_after(number);
            fleet.schedule.add(ready_at, Step::StartWorker);
        }
        Ok(fleet)
    }

    /// Simulates until no old worker runs a job.
    pub(super) fn run(mut self) -> Result<RolloutFigures> {
        while self.now < self.begins_at() || self.slots.running_old > 0 {
            let next = [self.schedule.next_at(), self.cell.next_at()].into_iter().flatten().min();
            self.now = next.context("the old workers' jobs do not end")?;
            if self.cell.next_at() == Some(self.now) {
                self.cell.step()?;
            } else if let Some(step) = self.schedule.take_next() {
                self.take(step)?;
            }
            while let Some(happening) = self.cell.take_happening() {
                if let Happening::SlotsChanged(worker) = happening {
                    self.begin_jobs(worker)?;
                }
            }
        }
        Ok(self.slots.figures())
    }

    fn begins_at(&self) -> Moment {
        START + WARM_UP
    }

    fn take(&mut self, step: Step) -> Result<()> {
        match step {
            Step::BeginRollout => self.begin_rollout(),
            Step::StartWorker => self.start_worker(),
            Step::EndJob(number, job) => {
                self.slots.end_job(number, self.now);
                self.cell.end_job(number, job, self.now)
            }
        }
    }

    fn begin_rollout(&mut self) -> Result<()> {
        let (running, budget) = (self.slots.running, self.rollout.budget());
        ensure!(running == budget, "{running} jobs run before the rollout, not {budget}");
        self.slots.begin_rollout(self.now);
        (0..self.rollout.workers).try_for_each(|number| self.cell.drain(number, self.now))
    }

    fn start_worker(&mut self) -> Result<()> {
        let number = self.job_times.len();
        let worker = WorkerName::new(&format!("worker-{number}")).expect("a worker's name");
        let key = WorkerKey { cluster: cluster_name(), worker };
        let generation = u64::from(!self.rollout.is_old(number));
        self.job_times.push(self.rollout.job_times(number));
        self.cell.start_worker(key, generation, self.now)?;
        Ok(())
    }

    /// A worker begins the jobs that its lease allows.
    fn begin_jobs(&mut self, number: usize) -> Result<()> {
        while self.cell.free_slots(number) > 0
            && self.cell.begin_job(number, self.jobs_begun, self.now)?
        {
            self.slots.begin_job(number, self.now);
            // The run times of the first jobs count from the start of the rollout.
            let begins_at = self.now.max(self.begins_at());
            let ends_at = begins_at + self.job_times[number].draw();
            self.schedule.add(ends_at, Step::EndJob(number, self.jobs_begun));
            self.jobs_begun += 1;
        }
        Ok(())
    }
}

fn cluster_name() -> ClusterName {
    ClusterName::new("builds").expect("a cluster's name")
}
