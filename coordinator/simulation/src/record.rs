//! What is recorded of a cluster while it is simulated: sums over time, waits, and its course.
//!
//! **Invariant**: every change is preceded by [`Recorder::count`] up to its moment.

use std::time::Duration;

use leasehold_types::Moment;
use serde::Serialize;

use crate::phases::{PhaseCounts, PhaseStarts};

/// The number of parts that the course of a simulation has.
pub(crate) const PARTS: usize = 480;

/// What became of the jobs of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFigures {
    /// Jobs that arrived.
    pub arrived: u64,
    /// Jobs that ran to their end.
    pub ended: u64,
    /// Jobs that were killed; each begins again.
    pub killed: u64,
    /// The seconds that killed jobs had run.
    pub killed_job_seconds: f64,
    /// Jobs that wait at the end of the simulation.
    pub waiting: usize,
    /// The most jobs that waited at once.
    pub queue_max: usize,
    /// Half of the jobs that began had waited no longer than this, in seconds.
    pub wait_p50_seconds: f64,
    /// 99 of 100 jobs that began had waited no longer than this, in seconds.
    pub wait_p99_seconds: f64,
    /// The longest wait of a job that began, in seconds.
    pub wait_max_seconds: f64,
    /// The most jobs that ran at once.
    pub running_max: u32,
    /// The most jobs that ran at once above the budget.
    pub above_budget_max: u32,
    /// The jobs above the budget, summed over seconds.
    pub above_budget_slot_seconds: f64,
    /// The part of the budget in which jobs ran, those that were killed included, over the whole
    /// time: from 0 to 1, and above where the budget was exceeded.
    pub utilization: f64,
    /// The slots of the budget in which no job ran although one waited, summed over seconds.
    pub wasted_slot_seconds: f64,
    /// The most workers that ran at once, those that end included.
    pub workers_max: u32,
}

/// What became of the streams of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamFigures {
    /// The streams.
    pub streams: usize,
    /// How often a stream went from one worker to another.
    pub moves: u64,
    /// The longest time for which a stream had no owner, in seconds.
    pub unowned_max_seconds: f64,
    /// The times for which streams had no owner, summed over all, in seconds.
    pub unowned_seconds: f64,
}

/// The course of a cluster: a value for each part of the time, all of the same length.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Course {
    /// The length of a part, in seconds.
    pub part_seconds: f64,
    /// The budget at the end of the part.
    pub budget: Vec<u32>,
    /// The most jobs that ran at once.
    pub running: Vec<u32>,
    /// The most jobs that waited at once.
    pub waiting: Vec<usize>,
    /// The most workers that ran at once.
    pub workers: Vec<u32>,
}

/// Records a cluster from `start` to `end`.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Moment,
    end: Moment,
    counted_until: Moment,
    present: Present,
    figures: JobFigures,
    running_slot_seconds: f64,
    budget_slot_seconds: f64,
    waits: Vec<f64>,
    course: Course,
    starts: PhaseStarts,
    /// By phase.
    phases: Vec<PhaseCounts>,
}

/// All that was recorded of a cluster.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) jobs: JobFigures,
    pub(crate) course: Course,
    pub(crate) phases: Vec<PhaseCounts>,
}

/// What holds at present.
#[derive(Clone, Copy, Debug)]
struct Present {
    budget: u32,
    running: u32,
    waiting: usize,
    workers: u32,
}

impl Recorder {
    /// An idle cluster without workers.
    pub(crate) fn new(budget: u32, start: Moment, end: Moment, starts: PhaseStarts) -> Self {
        Self {
            start,
            end,
            counted_until: start,
            present: Present { budget, running: 0, waiting: 0, workers: 0 },
            figures: JobFigures::default(),
            running_slot_seconds: 0.0,
            budget_slot_seconds: 0.0,
            waits: Vec::new(),
            course: Course {
                part_seconds: end.since(start).as_secs_f64() / PARTS as f64,
                budget: vec![budget; PARTS],
                running: vec![0; PARTS],
                waiting: vec![0; PARTS],
                workers: vec![0; PARTS],
            },
            phases: vec![PhaseCounts::default(); starts.count()],
            starts,
        }
    }

    /// The budget.
    pub(crate) fn budget(&self) -> u32 {
        self.present.budget
    }

    /// The jobs that run or wait.
    pub(crate) fn jobs(&self) -> f64 {
        f64::from(self.present.running) + self.present.waiting as f64
    }

    /// Counts what holds, up to now.
    pub(crate) fn count(&mut self, now: Moment) {
        let now = now.min(self.end);
        let seconds = now.since(self.counted_until).as_secs_f64();
        if seconds == 0.0 {
            return;
        }
        let Present { budget, running, waiting, workers } = self.present;
        let free = budget.saturating_sub(running) as usize;
        let above = running.saturating_sub(budget);
        self.running_slot_seconds += f64::from(running) * seconds;
        self.budget_slot_seconds += f64::from(budget) * seconds;
        self.figures.wasted_slot_seconds += free.min(waiting) as f64 * seconds;
        self.figures.above_budget_slot_seconds += f64::from(above) * seconds;
        self.figures.queue_max = self.figures.queue_max.max(waiting);
        let whole = [self.counted_until, Moment(now.0 - 1)];
        let [first, last] = whole.map(|at| self.starts.place(at));
        for phase in &mut self.phases[first..=last] {
            phase.running_max = phase.running_max.max(running);
        }
        let [first, last] = whole.map(|at| self.part_of(at));
        let course = &mut self.course;
        for part in first..=last {
            course.budget[part] = budget;
            course.running[part] = course.running[part].max(running);
            course.waiting[part] = course.waiting[part].max(waiting);
            course.workers[part] = course.workers[part].max(workers);
        }
        self.counted_until = now;
    }

    /// Another budget holds from now on.
    pub(crate) fn set_budget(&mut self, budget: u32, now: Moment) {
        self.count(now);
        self.present.budget = budget;
        self.note_above();
    }

    /// A job has arrived.
    pub(crate) fn arrived(&mut self) {
        self.figures.arrived += 1;
    }

    /// So many jobs wait from now on.
    pub(crate) fn set_waiting(&mut self, waiting: usize, now: Moment) {
        self.count(now);
        self.present.waiting = waiting;
    }

    /// A job begins, for the first time after this wait.
    pub(crate) fn begin(&mut self, wait: Option<Duration>, now: Moment) {
        self.count(now);
        self.present.running += 1;
        self.waits.extend(wait.map(|wait| wait.as_secs_f64()));
        let running = self.present.running;
        self.figures.running_max = self.figures.running_max.max(running);
        let phase = self.phase(now);
        phase.running_max = phase.running_max.max(running);
        self.note_above();
    }

    /// A job has run to its end.
    pub(crate) fn end(&mut self, now: Moment) {
        self.count(now);
        self.present.running -= 1;
        self.figures.ended += 1;
    }

    /// A job is killed that has run for this long.
    pub(crate) fn kill(&mut self, ran: Duration, now: Moment) {
        self.count(now);
        self.present.running -= 1;
        self.figures.killed += 1;
        self.figures.killed_job_seconds += ran.as_secs_f64();
    }

    /// A worker more runs.
    pub(crate) fn add_worker(&mut self, now: Moment) {
        self.count(now);
        self.present.workers += 1;
        self.figures.workers_max = self.figures.workers_max.max(self.present.workers);
        self.phase(now).last_worker = Some(now);
    }

    /// A worker fewer runs.
    pub(crate) fn remove_worker(&mut self, now: Moment) {
        self.count(now);
        self.present.workers -= 1;
        self.phase(now).last_worker = Some(now);
    }

    /// All of it, at the end.
    pub(crate) fn finish(mut self) -> Recorded {
        self.count(self.end);
        self.waits.sort_unstable_by(f64::total_cmp);
        let wait = |part: f64| percentile(&self.waits, part);
        let jobs = JobFigures {
            waiting: self.present.waiting,
            wait_p50_seconds: wait(0.5),
            wait_p99_seconds: wait(0.99),
            wait_max_seconds: wait(1.0),
            utilization: self.running_slot_seconds / self.budget_slot_seconds.max(1.0),
            ..self.figures
        };
        Recorded { jobs, course: self.course, phases: self.phases }
    }

    fn phase(&mut self, now: Moment) -> &mut PhaseCounts {
        let place = self.starts.place(now);
        &mut self.phases[place]
    }

    fn note_above(&mut self) {
        let above = self.present.running.saturating_sub(self.present.budget);
        self.figures.above_budget_max = self.figures.above_budget_max.max(above);
    }

    fn part_of(&self, at: Moment) -> usize {
        let part = at.since(self.start).as_secs_f64() / self.course.part_seconds;
        (part as usize).min(PARTS - 1)
    }
}

/// The value in a sorted list below or at which this part of all are; 0 in an empty one.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment(1_000_000_000);

    fn at(seconds: u64) -> Moment {
        START + Duration::from_secs(seconds)
    }

    fn starts(seconds: &[u64]) -> PhaseStarts {
        PhaseStarts::from_moments(seconds.iter().map(|seconds| at(*seconds)).collect())
    }

    #[test]
    fn slots_are_wasted_while_a_job_waits_and_exceeded_while_too_many_run() {
        let mut recorder = Recorder::new(2, START, at(480), starts(&[0, 25, 42]));
        recorder.arrived();
        recorder.set_waiting(3, at(10));
        recorder.begin(Some(Duration::from_secs(4)), at(20));
        recorder.set_waiting(1, at(20));
        recorder.begin(Some(Duration::from_secs(9)), at(30));
        recorder.begin(None, at(30));
        recorder.set_waiting(0, at(30));
        recorder.end(at(40));
        recorder.kill(Duration::from_secs(25), at(45));
        let Recorded { jobs: figures, course, phases } = recorder.finish();
        // Two slots for 10 s, then one for 10 s.
        assert_eq!(figures.wasted_slot_seconds, 30.0);
        assert_eq!((figures.above_budget_max, figures.above_budget_slot_seconds), (1, 10.0));
        assert_eq!((figures.running_max, figures.queue_max), (3, 3));
        assert_eq!((figures.ended, figures.killed, figures.killed_job_seconds), (1, 1, 25.0));
        assert_eq!((figures.wait_p50_seconds, figures.wait_max_seconds), (4.0, 9.0));
        // 10 s of one job, 10 s of three, 5 s of two, then one to the end.
        let running = 10.0 + 30.0 + 10.0 + 435.0;
        assert_eq!(figures.utilization, running / (2.0 * 480.0));
        assert_eq!((course.running[29], course.running[30], course.running[479]), (1, 3, 1));
        assert_eq!((course.waiting[9], course.waiting[10], course.waiting[30]), (0, 3, 0));
        // One runs from the phase before into the second one, and two into the third.
        let running: Vec<u32> = phases.iter().map(|phase| phase.running_max).collect();
        assert_eq!(running, [1, 3, 2]);
    }

    #[test]
    fn jobs_that_never_begin_are_in_no_wait_and_killed_ones_use_slots() {
        let mut recorder = Recorder::new(1, START, at(480), starts(&[0]));
        (0..2).for_each(|_| recorder.arrived());
        recorder.set_waiting(2, at(0));
        recorder.begin(Some(Duration::ZERO), at(0));
        recorder.set_waiting(1, at(0));
        recorder.kill(Duration::from_secs(240), at(240));
        let figures = recorder.finish().jobs;
        assert_eq!((figures.wait_max_seconds, figures.waiting), (0.0, 1));
        assert_eq!(figures.utilization, 0.5);
    }

    #[test]
    fn percentiles_are_values_of_the_list() {
        let list: Vec<f64> = (1..=200).map(f64::from).collect();
        let found = [0.5, 0.99, 1.0].map(|part| percentile(&list, part));
        assert_eq!(found, [100.0, 198.0, 200.0]);
        assert_eq!((percentile(&[], 0.5), percentile(&[7.0], 0.01)), (0.0, 7.0));
    }
}
