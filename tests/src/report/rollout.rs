//! A rollout that replaces all workers at once, in simulated time: which slots stay unused until
//! the last old worker has ended. On one side is a cell of `leasehold-simulation`, with the real
//! cores of a coordinator and its agents, on the other the formula and the poll of Travis CI's
//! worker-operator. `docs/PERFORMANCE.md` lists what each side leaves out.
//!
//! **Invariant**: on both sides the jobs that run when the rollout begins end at the same moments,
//! and each worker's later jobs have the same run times.

mod granted_fleet;
mod polled_fleet;

use std::time::Duration;

use anyhow::Result;
use leasehold_simulation::Distribution;
use leasehold_types::Moment;

use self::granted_fleet::GrantedFleet;
use self::polled_fleet::PolledFleet;

/// The moment at which the time of a simulation begins.
const START: Moment = Moment(1_000_000_000);
/// When the first new worker is ready to take jobs, and how much later the last one is.
const READY_MIN: Duration = Duration::from_secs(20);
const READY_SPREAD: Duration = Duration::from_secs(20);
/// The longest run time of a job, in means.
const JOB_MEANS_MAX: f64 = 6.0;
/// Any number: another one gives the jobs other run times.
const SEED: u64 = 12;

/// A fleet whose workers are all replaced. The queue is never empty: a free slot is used at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rollout {
    /// The number of old workers, and of new ones.
    pub(super) workers: usize,
    /// The most jobs of one worker; the budget is that of all old workers.
    pub(super) jobs_per_worker: u32,
    /// The mean run time of a job. Run times are distributed exponentially.
    pub(super) job_mean: Duration,
}

/// What one side made of a rollout.
#[derive(Clone, Copy, Debug)]
pub(super) struct RolloutFigures {
    /// The budget less the running jobs, summed over the seconds of the rollout.
    pub(super) unused_slot_seconds: f64,
    /// The most jobs that ran at once above the budget.
    pub(super) jobs_beyond: u32,
}

impl Rollout {
    /// The rollout with the cores of a coordinator and its agents.
    ///
    /// # Errors
    /// If the cores do what they do only after a failure.
    pub(super) fn with_leases(self) -> Result<RolloutFigures> {
        GrantedFleet::new(self)?.run()
    }

    /// The rollout with the formula and the poll of Travis CI's worker-operator.
    pub(super) fn with_polls(self) -> RolloutFigures {
        PolledFleet::new(self).run()
    }

    fn budget(self) -> u32 {
        self.workers as u32 * self.jobs_per_worker
    }

    /// Whether the worker with this number is an old one. New ones have the numbers above.
    fn is_old(self, number: usize) -> bool {
        number < self.workers
    }

    /// The time from the start of the rollout until a new worker is ready: the first one is 0.
    fn ready_after(self, new_worker: usize) -> Duration {
        READY_MIN + READY_SPREAD * new_worker as u32 / self.workers as u32
    }

    fn job_times(self, number: usize) -> JobTimes {
        let rng = fastrand::Rng::with_seed(SEED + number as u64);
        let longest = self.job_mean.mul_f64(JOB_MEANS_MAX);
        JobTimes { rng, distribution: Distribution::exponential(self.job_mean, Some(longest)) }
    }
}

/// The run times of one worker's jobs.
struct JobTimes {
    rng: fastrand::Rng,
    distribution: Distribution,
}

impl JobTimes {
    fn draw(&mut self) -> Duration {
        self.distribution.draw(&mut self.rng)
    }
}

/// The running jobs of a fleet, and the slots that they leave unused.
struct SlotUse {
    rollout: Rollout,
    running: u32,
    /// Those of `running` that old workers run.
    running_old: u32,
    running_max: u32,
    unused_slot_seconds: f64,
    counted_until: Moment,
}

impl SlotUse {
    fn new(rollout: Rollout, now: Moment) -> Self {
        Self {
            rollout,
            running: 0,
            running_old: 0,
            running_max: 0,
            unused_slot_seconds: 0.0,
            counted_until: now,
        }
    }

    /// The rollout begins: unused slots count from now on.
    fn begin_rollout(&mut self, now: Moment) {
        (self.unused_slot_seconds, self.counted_until) = (0.0, now);
    }

    fn begin_job(&mut self, number: usize, now: Moment) {
        self.count(now);
        self.running += 1;
        self.running_old += u32::from(self.rollout.is_old(number));
        self.running_max = self.running_max.max(self.running);
    }

    fn end_job(&mut self, number: usize, now: Moment) {
        self.count(now);
        self.running -= 1;
        self.running_old -= u32::from(self.rollout.is_old(number));
    }

    fn count(&mut self, now: Moment) {
        let unused = self.rollout.budget().saturating_sub(self.running);
        self.unused_slot_seconds += f64::from(unused) * now.since(self.counted_until).as_secs_f64();
        self.counted_until = now;
    }

    fn figures(&self) -> RolloutFigures {
        let jobs_beyond = self.running_max.saturating_sub(self.rollout.budget());
        RolloutFigures { unused_slot_seconds: self.unused_slot_seconds, jobs_beyond }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLLOUT: Rollout =
        Rollout { workers: 5, jobs_per_worker: 4, job_mean: Duration::from_secs(300) };

    #[test]
    fn leases_use_more_slots_than_polls_and_stay_within_the_budget() {
        let leases = ROLLOUT.with_leases().expect("it ends");
        let polls = ROLLOUT.with_polls();
        assert_eq!(leases.jobs_beyond, 0);
        assert!(leases.unused_slot_seconds > 0.0, "no new worker is ready at first");
        assert!(leases.unused_slot_seconds < polls.unused_slot_seconds, "{leases:?} {polls:?}");
    }

    #[test]
    fn a_rollout_has_the_same_figures_in_every_run() {
        let unused = |()| ROLLOUT.with_leases().expect("it ends").unused_slot_seconds;
        let [first, second] = [(); 2].map(unused);
        assert_eq!(first, second);
    }

    #[test]
    fn unused_slots_count_from_the_start_of_the_rollout() {
        let rollout = Rollout { workers: 1, ..ROLLOUT };
        let at = |seconds: u64| START + Duration::from_secs(seconds);
        let mut slots = SlotUse::new(rollout, START);
        for _ in 0..5 {
            slots.begin_job(0, at(0));
        }
        slots.begin_rollout(at(10));
        for ends in [12, 14, 16] {
            slots.end_job(0, at(ends));
        }
        slots.begin_job(1, at(19));
        let figures = slots.figures();
        assert_eq!((figures.unused_slot_seconds, figures.jobs_beyond), (8.0, 1));
        assert_eq!((slots.running, slots.running_old), (3, 2));
    }
}
