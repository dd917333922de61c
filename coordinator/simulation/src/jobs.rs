//! The jobs of a cluster: those that are still to arrive, and those that wait.
//!
//! **Invariant**: the arrivals and run times of jobs depend on the load and the seed alone, not on
//! what runs them.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_types::Moment;

use crate::load::JobLoad;

/// A job that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// After the start.
    pub(crate) arrives: Duration,
    pub(crate) runs: Duration,
}

/// Draws the jobs of a cluster in the order of their arrival.
#[derive(Debug)]
pub(crate) struct JobSource<'a> {
    load: &'a JobLoad,
    end: Duration,
    drawn_to: Duration,
    arrivals: fastrand::Rng,
    durations: fastrand::Rng,
}

impl<'a> JobSource<'a> {
    /// The jobs that arrive before `end`.
    pub(crate) fn new(load: &'a JobLoad, end: Duration, seed: u64) -> Self {
        let mut seeds = fastrand::Rng::with_seed(seed);
        let [arrivals, durations] = [(); 2].map(|()| fastrand::Rng::with_seed(seeds.u64(..)));
        Self { load, end, drawn_to: Duration::ZERO, arrivals, durations }
    }
}

impl Iterator for JobSource<'_> {
    type Item = Job;

    fn next(&mut self) -> Option<Job> {
        let arrives = self.load.arrivals.next(self.drawn_to, self.end, &mut self.arrivals)?;
        self.drawn_to = arrives;
        Some(Job { arrives, runs: self.load.durations.draw(&mut self.durations) })
    }
}

/// A job that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingJob {
    pub(crate) arrived: Moment,
    pub(crate) runs: Duration,
    /// It has begun before, and was killed.
    pub(crate) was_killed: bool,
}

/// The jobs that wait, in the order in which they are taken.
#[derive(Debug, Default)]
pub(crate) struct JobQueue(VecDeque<WaitingJob>);

impl JobQueue {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A job has arrived.
    pub(crate) fn push(&mut self, job: WaitingJob) {
        self.0.push_back(job);
    }

    /// A job was killed, and begins again before all others.
    pub(crate) fn put_back(&mut self, job: WaitingJob) {
        self.0.push_front(job);
    }

    /// The next job.
    pub(crate) fn pop(&mut self) -> Option<WaitingJob> {
        self.0.pop_front()
    }
}
