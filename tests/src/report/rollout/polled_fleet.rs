//! A fleet that Travis CI's worker-operator gives its pool sizes: it looks at its workers every ten
//! seconds, and when a pod becomes ready or ends.
//!
//! **Invariant**: where the order of what happens is not fixed, the one is simulated that is best
//! for the operator.

use std::iter::repeat_n;
use std::time::Duration;

use leasehold_simulation::Schedule;

use super::{JobTimes, Rollout, RolloutFigures, START, SlotUse};

/// The time between two polls.
const POLL: Duration = Duration::from_secs(10);

/// The simulation.
pub(super) struct PolledFleet {
    rollout: Rollout,
    schedule: Schedule<Event>,
    slots: SlotUse,
    workers: Vec<Worker>,
}

/// A worker's processors. Each of them runs a job, because the queue is never empty.
struct Worker {
    is_ready: bool,
    /// Processors that take another job after the present one.
    working: u32,
    /// Processors that end with their present job.
    draining: u32,
    job_times: JobTimes,
}

enum Event {
    /// A job of the worker with this number ends.
    JobEnds(usize),
    /// The worker with this number is ready.
    Ready(usize),
    Poll,
}

impl PolledFleet {
    /// The fleet when the rollout begins: all old processors drain.
    pub(super) fn new(rollout: Rollout) -> Self {
        let worker = |number| {
            let is_old = rollout.is_old(number);
            let draining = if is_old { rollout.jobs_per_worker } else { 0 };
            let job_times = rollout.job_times(number);
            Worker { is_ready: is_old, working: 0, draining, job_times }
        };
        let mut fleet = Self {
            rollout,
            schedule: Schedule::new(START),
            slots: SlotUse::new(rollout, START),
            workers: (0..2 * rollout.workers).map(worker).collect(),
        };
        for number in 0..rollout.workers {
            for _ in 0..rollout.jobs_per_worker {
                fleet.slots.begin_job(number, START);
                fleet.take_job(number);
            }
            let ready_at = START + rollout.ready_after(number);
            fleet.schedule.add(ready_at, Event::Ready(rollout.workers + number));
        }
        fleet.schedule.add(START, Event::Poll);
        fleet
    }

    /// Simulates until no old worker runs a job.
    pub(super) fn run(mut self) -> RolloutFigures {
        while self.slots.running_old > 0
            && let Some(event) = self.schedule.take_next()
        {
            match event {
                Event::JobEnds(number) => self.end_job(number),
                Event::Ready(number) => {
                    self.workers[number].is_ready = true;
                    self.set_pool_sizes();
                }
                Event::Poll => {
                    self.set_pool_sizes();
                    self.schedule.add(self.schedule.now() + POLL, Event::Poll);
                }
            }
        }
        self.slots.figures()
    }

    /// The job that ends is that of a processor that drains, if there is one.
    fn end_job(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        if worker.draining == 0 {
            return self.take_job(number);
        }
        worker.draining -= 1;
        self.slots.end_job(number, self.schedule.now());
        if worker.draining == 0 && self.rollout.is_old(number) {
            self.set_pool_sizes();
        }
    }

    /// The formula: from the budget less the jobs of terminating workers, each other worker in turn
    /// gets the rest over the number of workers that are left, rounded. Those that are not ready
    /// count, and are sent nothing. A size below 1 is not sent.
    fn set_pool_sizes(&mut self) {
        let (terminating, others) = self.workers.split_at_mut(self.rollout.workers);
        let terminating: u32 = terminating.iter().map(|worker| worker.draining).sum();
        let mut slots_left = f64::from(self.rollout.budget()) - f64::from(terminating);
        let mut starts = Vec::new();
        for (place, worker) in others.iter_mut().enumerate() {
            let share = (slots_left / (self.rollout.workers - place) as f64).round();
            slots_left -= share;
            let size = share.max(0.0) as u32;
            if worker.is_ready && size > 0 {
                // A processor that drains is not called back: another one starts.
                worker.draining += worker.working.saturating_sub(size);
                let started = size.saturating_sub(worker.working) as usize;
                starts.extend(repeat_n(self.rollout.workers + place, started));
                worker.working = size;
            }
        }
        for number in starts {
            self.slots.begin_job(number, self.schedule.now());
            self.take_job(number);
        }
    }

    /// A processor takes a job from the queue.
    fn take_job(&mut self, number: usize) {
        let ends_at = self.schedule.now() + self.workers[number].job_times.draw();
        self.schedule.add(ends_at, Event::JobEnds(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pool sizes of three new workers with a budget of eight, while terminating workers run
    /// this many jobs.
    fn sizes(terminating: u32) -> Vec<u32> {
        let job_mean = Duration::from_secs(60);
        let rollout = Rollout { workers: 3, jobs_per_worker: 3, job_mean };
        let mut fleet = PolledFleet::new(rollout);
        for worker in &mut fleet.workers {
            (worker.is_ready, worker.draining) = (true, 0);
        }
        // One of the nine slots is taken all the time.
        fleet.workers[0].draining = terminating + 1;
        fleet.set_pool_sizes();
        fleet.workers[3..].iter().map(|worker| worker.working).collect()
    }

    #[test]
    fn terminating_workers_keep_their_slots_and_the_others_share_the_rest() {
        assert_eq!(sizes(0), [3, 3, 2]);
        assert_eq!(sizes(3), [2, 2, 1]);
        assert_eq!(sizes(8), [0, 0, 0]);
        assert_eq!(sizes(9), [0, 0, 0]);
    }
}
