//! Run times of the jobs of each cluster, from the reports and beats of agents, and estimates of
//! how long running jobs take. They inform people: nothing is decided by them. They are lost with
//! this process; agents report the last run times of each worker to the next leader.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_types::limits::{CLUSTERS_MAX, WORKERS_MAX};
use leasehold_types::message::JobTimes;
use leasehold_types::{ClusterName, Incarnation, Moment, WorkerKey, WorkerName};

/// The last ended jobs of one cluster whose run times are kept.
const PAST_MAX: usize = 1_000;
/// The probability of [`JobWait::half_seconds`].
const HALF: f64 = 0.5;
/// The probability of [`JobWait::most_seconds`].
const MOST: f64 = 0.9;

/// The run times of all clusters.
#[derive(Debug, Default)]
pub struct JobHistory(Mutex<Jobs>);

#[derive(Debug, Default)]
struct Jobs {
    /// Run times of the last jobs that ended, in seconds.
    past: BTreeMap<ClusterName, VecDeque<u32>>,
    workers: BTreeMap<WorkerKey, WorkerJobs>,
}

/// The last run times of one worker.
#[derive(Debug)]
struct WorkerJobs {
    incarnation: Incarnation,
    received_at: Moment,
    /// Number of ended jobs.
    ended: u64,
    /// Number of running jobs.
    running: u32,
    /// Ages of the youngest running jobs at `received_at`, in seconds.
    running_seconds: Vec<u32>,
}

/// The past jobs of one cluster.
#[derive(Debug)]
pub(crate) struct PastJobs<'a> {
    history: &'a JobHistory,
    cluster: ClusterName,
    /// Sorted.
    seconds: Vec<u32>,
}

/// An estimate of how long a worker runs more jobs than it is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobWait {
    /// Number of running jobs that have to end.
    pub(crate) jobs: u32,
    /// They have ended after this time in half of all cases, if the past jobs show it.
    pub(crate) half_seconds: Option<u32>,
    /// They have ended after this time in 9 of 10 cases, if the past jobs show it.
    pub(crate) most_seconds: Option<u32>,
    /// Number of past jobs that the estimate is from.
    pub(crate) past_jobs: usize,
}

impl JobHistory {
    /// Records run times from a message of an agent, with the number of running jobs.
    pub(crate) fn record(
        &self,
        worker: &WorkerKey,
        incarnation: Incarnation,
        times: JobTimes,
        running: u32,
        received_at: Moment,
    ) {
        let JobTimes { ended, ended_seconds, running_seconds } = times;
        let mut jobs = self.lock();
        let Jobs { past, workers } = &mut *jobs;
        if workers.len() >= WORKERS_MAX && !workers.contains_key(worker) {
            // Workers come and go: the one without a message for longest makes room.
            let oldest = workers.iter().min_by_key(|(_, jobs)| jobs.received_at);
            let oldest = oldest.map(|(key, _)| key.clone()).expect("there are many");
            workers.remove(&oldest);
        }
        let former = workers.get(worker).filter(|jobs| jobs.incarnation == incarnation);
        let recorded = former.map_or(0, |jobs| jobs.ended);
        let fresh = usize::try_from(ended.saturating_sub(recorded)).unwrap_or(usize::MAX);
        let skipped = ended_seconds.len().saturating_sub(fresh);
        if past.len() < CLUSTERS_MAX || past.contains_key(&worker.cluster) {
            let past = past.entry(worker.cluster.clone()).or_default();
            past.extend(ended_seconds.into_iter().skip(skipped));
            past.drain(..past.len().saturating_sub(PAST_MAX));
        }
        let jobs = WorkerJobs { incarnation, received_at, ended, running, running_seconds };
        workers.insert(worker.clone(), jobs);
    }

    /// The past jobs of a cluster, as they are now.
    pub(crate) fn past(&self, cluster: ClusterName) -> PastJobs<'_> {
        let mut seconds: Vec<_> =
            self.lock().past.get(&cluster).into_iter().flatten().copied().collect();
        seconds.sort_unstable();
        PastJobs { history: self, cluster, seconds }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PastJobs<'_> {
    /// Estimates how long a worker runs more than `size` jobs; `None` if it runs no more than that,
    /// or if its agent reports no run times. Jobs whose ages are missing are older than the others,
    /// and are taken to end first.
    pub(crate) fn wait(&self, worker: &WorkerName, size: u32, now: Moment) -> Option<JobWait> {
        let key = WorkerKey { cluster: self.cluster.clone(), worker: worker.clone() };
        let history = self.history.lock();
        let WorkerJobs { received_at, running, running_seconds, .. } = history.workers.get(&key)?;
        let jobs = running.checked_sub(size).filter(|jobs| *jobs > 0)?;
        let missing = (*running as usize).saturating_sub(running_seconds.len());
        let to_end = (jobs as usize).saturating_sub(missing).max(1);
        let since = u32::try_from(now.since(*received_at).as_secs()).unwrap_or(u32::MAX);
        let ages = running_seconds.iter().map(|age| age.saturating_add(since));
        let ages: Vec<_> = ages.collect();
        drop(history);
        Some(JobWait {
            jobs,
            half_seconds: wait(&self.seconds, &ages, to_end, HALF),
            most_seconds: wait(&self.seconds, &ages, to_end, MOST),
            past_jobs: self.seconds.len(),
        })
    }
}

/// The seconds within which `to_end` of the jobs of these ages have ended with a probability of at
/// least `share`, if each lasts as long as one of the `past` ones that were longer than it is now.
/// `past` is sorted.
fn wait(past: &[u32], ages: &[u32], to_end: usize, share: f64) -> Option<u32> {
    let longest = *past.last()?;
    if ended_within(past, ages, to_end, longest) < share {
        return None;
    }
    // The least such time: the probability grows with it.
    let (mut below, mut enough) = (0, longest);
    while below < enough {
        let middle = below + (enough - below) / 2;
        if ended_within(past, ages, to_end, middle) >= share {
            enough = middle;
        } else {
            below = middle + 1;
        }
    }
    Some(enough)
}

/// The probability that at least `to_end` of the jobs have ended after so many seconds.
fn ended_within(past: &[u32], ages: &[u32], to_end: usize, seconds: u32) -> f64 {
    // At each index the probability that so many have ended; the last one counts all above, too.
    let mut ended = vec![0.0; to_end + 1];
    ended[0] = 1.0;
    for age in ages {
        let one = ends_within(past, *age, seconds);
        for count in (0..=to_end).rev() {
            let stays = if count == to_end { ended[count] } else { ended[count] * (1.0 - one) };
            let comes = if count == 0 { 0.0 } else { ended[count - 1] * one };
            ended[count] = stays + comes;
        }
    }
    ended[to_end]
}

/// The probability that a job of this age ends within so many seconds; 0 if no past one was longer.
fn ends_within(past: &[u32], age: u32, seconds: u32) -> f64 {
    let shorter = past.partition_point(|past| *past <= age);
    let ended = past.partition_point(|past| *past <= age.saturating_add(seconds));
    let count = |from: usize, to: usize| u32::try_from(to - from).map_or(f64::MAX, f64::from);
    match past.len() - shorter {
        0 => 0.0,
        _ => count(shorter, ended) / count(shorter, past.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(seconds)
    }

    fn worker(name: &str) -> WorkerKey {
        let cluster = ClusterName::new("builds").expect("a name");
        WorkerKey { cluster, worker: WorkerName::new(name).expect("a name") }
    }

    fn times(ended: u64, ended_seconds: &[u32], running_seconds: &[u32]) -> JobTimes {
        let (ended_seconds, running_seconds) = (ended_seconds.into(), running_seconds.into());
        JobTimes { ended, ended_seconds, running_seconds }
    }

    fn record(history: &JobHistory, name: &str, times: JobTimes, now: Moment) {
        let running = u32::try_from(times.running_seconds.len()).expect("few");
        history.record(&worker(name), Incarnation(1), times, running, now);
    }

    /// The jobs, the two times, and the number of past jobs.
    type Wait = (u32, Option<u32>, Option<u32>, usize);

    fn waits(history: &JobHistory, name: &str, size: u32, now: Moment) -> Option<Wait> {
        let worker = worker(name);
        let wait = history.past(worker.cluster).wait(&worker.worker, size, now)?;
        Some((wait.jobs, wait.half_seconds, wait.most_seconds, wait.past_jobs))
    }

    #[test]
    fn a_job_takes_as_long_as_the_past_ones_that_were_longer_than_it_is_now() {
        let history = JobHistory::default();
        let past: Vec<u32> = (1..=10).map(|ten| ten * 10).collect();
        record(&history, "w1", times(10, &past, &[0]), at(0));
        assert_eq!(waits(&history, "w1", 0, at(0)), Some((1, Some(50), Some(90), 10)));
        // After 60 seconds those of 70, 80, 90 and 100 are left.
        assert_eq!(waits(&history, "w1", 0, at(60)), Some((1, Some(20), Some(40), 10)));
        assert_eq!(waits(&history, "w1", 0, at(100)), Some((1, None, None, 10)), "it is longer");
        assert_eq!(waits(&history, "w1", 1, at(0)), None, "it may run one");
        assert_eq!(waits(&history, "w2", 0, at(0)), None, "it has sent nothing");
    }

    #[test]
    fn several_jobs_take_as_long_as_the_last_of_those_that_have_to_end() {
        let history = JobHistory::default();
        record(&history, "w1", times(4, &[10, 20, 30, 40], &[0, 0]), at(0));
        // One of two: within 10 in 7 of 16 cases, within 20 in 12, within 30 in 15.
        assert_eq!(waits(&history, "w1", 1, at(0)), Some((1, Some(20), Some(30), 4)));
        // Both: within 20 in 4 of 16 cases, within 30 in 9, within 40 in all.
        assert_eq!(waits(&history, "w1", 0, at(0)), Some((2, Some(30), Some(40), 4)));
    }

    #[test]
    fn nothing_is_said_before_a_job_has_ended() {
        let history = JobHistory::default();
        record(&history, "w1", times(0, &[], &[5]), at(0));
        assert_eq!(waits(&history, "w1", 0, at(0)), Some((1, None, None, 0)));
    }

    #[test]
    fn each_ended_job_counts_once_however_often_it_is_sent() {
        let history = JobHistory::default();
        record(&history, "w1", times(2, &[10, 20], &[]), at(0));
        record(&history, "w1", times(3, &[30], &[]), at(1));
        record(&history, "w1", times(3, &[10, 20, 30], &[0]), at(2));
        assert_eq!(waits(&history, "w1", 0, at(2)).map(|wait| wait.3), Some(3));
        // A new agent of the worker counts from the beginning.
        history.record(&worker("w1"), Incarnation(2), times(1, &[40], &[0]), 1, at(3));
        assert_eq!(waits(&history, "w1", 0, at(3)).map(|wait| wait.3), Some(4));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let history = JobHistory::default();
        let many = vec![7; PAST_MAX + 1];
        record(&history, "w1", times(PAST_MAX as u64 + 1, &many, &[0]), at(0));
        assert_eq!(waits(&history, "w1", 0, at(0)).map(|wait| wait.3), Some(1_000));
        for number in 0..WORKERS_MAX {
            record(&history, &format!("other-{number}"), times(0, &[], &[0]), at(1));
        }
        assert_eq!(waits(&history, "w1", 0, at(1)), None, "it has sent nothing for longest");
        // An agent that lists fewer ages than it has jobs: the others end first.
        history.record(&worker("w2"), Incarnation(1), times(0, &[], &[3]), 2, at(1));
        assert_eq!(waits(&history, "w2", 0, at(1)), Some((2, Some(4), Some(4), 1_000)));
    }
}
