//! How long the jobs of each cluster ran, as agents tell it, and how long the running ones may take
//! by that. It answers people, and nothing is decided by it: it is lost with this process, and
//! agents tell a new leader the last jobs of each worker again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use leasehold_proto::admin::v1::JobWait;
use leasehold_proto::coordinator::v1::JobTimes;
use leasehold_types::limits::{CLUSTERS_MAX, JOBS_PER_WORKER_MAX, WORKERS_MAX};
use leasehold_types::{ClusterName, Incarnation, Moment, WorkerKey};

/// The most jobs of one cluster that are remembered: the last ones.
const PAST_MAX: usize = 1_000;
/// Of how many cases in a hundred [`JobWait`] gives the time.
const HALF: f64 = 0.5;
/// See [`HALF`].
const MOST: f64 = 0.9;

/// The jobs of all clusters.
#[derive(Debug, Default)]
pub struct JobHistory(Mutex<Jobs>);

#[derive(Debug, Default)]
struct Jobs {
    /// How long the last jobs of each cluster ran, in seconds.
    past: BTreeMap<ClusterName, VecDeque<u32>>,
    workers: BTreeMap<WorkerKey, WorkerJobs>,
}

/// What the agent of one worker told last.
#[derive(Debug)]
struct WorkerJobs {
    incarnation: Incarnation,
    told_at: Moment,
    /// How many jobs had ended.
    ended: u64,
    running: u32,
    /// How long they had run, in seconds; those that are not listed had run for at least as long as
    /// the last one.
    running_seconds: Vec<u32>,
}

impl JobHistory {
    /// Takes what the agent of this incarnation tells, with the number of jobs that run.
    pub(crate) fn note(
        &self,
        worker: &WorkerKey,
        incarnation: Incarnation,
        told: JobTimes,
        running: u32,
        now: Moment,
    ) {
        let mut jobs = self.0.lock().expect("no panic in between");
        let Jobs { past, workers } = &mut *jobs;
        if workers.len() >= WORKERS_MAX && !workers.contains_key(worker) {
            // Workers come and go: the one that has told nothing for longest goes first.
            let oldest = workers.iter().min_by_key(|(_, jobs)| jobs.told_at);
            let oldest = oldest.map(|(key, _)| key.clone()).expect("there are many");
            workers.remove(&oldest);
        }
        let former = workers.get(worker).filter(|jobs| jobs.incarnation == incarnation);
        let known = former.map_or(0, |jobs| jobs.ended);
        let fresh = usize::try_from(told.ended.saturating_sub(known)).unwrap_or(usize::MAX);
        let skipped = told.ended_seconds.len().saturating_sub(fresh);
        if past.len() < CLUSTERS_MAX || past.contains_key(&worker.cluster) {
            let past = past.entry(worker.cluster.clone()).or_default();
            past.extend(told.ended_seconds.into_iter().skip(skipped));
            past.drain(..past.len().saturating_sub(PAST_MAX));
        }
        let jobs = WorkerJobs {
            incarnation,
            told_at: now,
            ended: told.ended,
            running: running.min(JOBS_PER_WORKER_MAX),
            running_seconds: told.running_seconds,
        };
        workers.insert(worker.clone(), jobs);
    }

    /// How long it may take until a worker runs no more than `size` jobs; `None` if it runs no more
    /// now, or if its agent does not tell.
    pub(crate) fn wait(&self, worker: &WorkerKey, size: u32, now: Moment) -> Option<JobWait> {
        let jobs = self.0.lock().expect("no panic in between");
        let of_worker = jobs.workers.get(worker)?;
        let to_end = of_worker.running.checked_sub(size).filter(|jobs| *jobs > 0)?;
        let mut past: Vec<_> =
            jobs.past.get(&worker.cluster).into_iter().flatten().copied().collect();
        let ages = of_worker.ages(now);
        drop(jobs);
        past.sort_unstable();
        Some(JobWait {
            jobs: to_end,
            half_seconds: wait(&past, &ages, to_end as usize, HALF),
            most_seconds: wait(&past, &ages, to_end as usize, MOST),
            past_jobs: u32::try_from(past.len()).unwrap_or(u32::MAX),
        })
    }
}

impl WorkerJobs {
    /// How long its jobs have run by now, in seconds.
    fn ages(&self, now: Moment) -> Vec<u32> {
        let since = u32::try_from(now.since(self.told_at).as_secs()).unwrap_or(u32::MAX);
        let oldest = self.running_seconds.last().copied().unwrap_or(0);
        let unlisted = std::iter::repeat(oldest);
        let ages = self.running_seconds.iter().copied().chain(unlisted);
        ages.take(self.running as usize).map(|age| age.saturating_add(since)).collect()
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
        match ended_within(past, ages, to_end, middle) >= share {
            true => enough = middle,
            false => below = middle + 1,
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
    let as_short = past.partition_point(|past| *past <= age);
    let longer = past.len() - as_short;
    let ends = past.partition_point(|past| *past <= age.saturating_add(seconds)) - as_short;
    match longer {
        0 => 0.0,
        _ => {
            f64::from(u32::try_from(ends).unwrap_or(u32::MAX))
                / f64::from(u32::try_from(longer).unwrap_or(u32::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_types::WorkerName;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(seconds)
    }

    fn worker(name: &str) -> WorkerKey {
        let cluster = ClusterName::new("builds").expect("a name");
        WorkerKey { cluster, worker: WorkerName::new(name).expect("a name") }
    }

    fn told(ended: u64, ended_seconds: &[u32], running_seconds: &[u32]) -> JobTimes {
        let (ended_seconds, running_seconds) = (ended_seconds.into(), running_seconds.into());
        JobTimes { ended, ended_seconds, running_seconds }
    }

    fn noted(history: &JobHistory, name: &str, told: JobTimes, now: Moment) {
        let running = u32::try_from(told.running_seconds.len()).expect("few");
        history.note(&worker(name), Incarnation(1), told, running, now);
    }

    /// The jobs, the two times, and the number of past jobs.
    type Wait = (u32, Option<u32>, Option<u32>, u32);

    fn waits(history: &JobHistory, name: &str, size: u32, now: Moment) -> Option<Wait> {
        let wait = history.wait(&worker(name), size, now)?;
        Some((wait.jobs, wait.half_seconds, wait.most_seconds, wait.past_jobs))
    }

    #[test]
    fn a_job_takes_as_long_as_the_past_ones_that_were_longer_than_it_is_now() {
        let history = JobHistory::default();
        let past: Vec<u32> = (1..=10).map(|ten| ten * 10).collect();
        noted(&history, "w1", told(10, &past, &[0]), at(0));
        assert_eq!(waits(&history, "w1", 0, at(0)), Some((1, Some(50), Some(90), 10)));
        // After 60 seconds those of 70, 80, 90 and 100 are left.
        assert_eq!(waits(&history, "w1", 0, at(60)), Some((1, Some(20), Some(40), 10)));
        assert_eq!(waits(&history, "w1", 0, at(100)), Some((1, None, None, 10)), "it is longer");
        assert_eq!(waits(&history, "w1", 1, at(0)), None, "it may run one");
        assert_eq!(waits(&history, "w2", 0, at(0)), None, "nobody told");
    }

    #[test]
    fn several_jobs_take_as_long_as_the_last_of_those_that_have_to_end() {
        let history = JobHistory::default();
        noted(&history, "w1", told(4, &[10, 20, 30, 40], &[0, 0]), at(0));
        // One of two: within 10 in 7 of 16 cases, within 20 in 12, within 30 in 15.
        assert_eq!(waits(&history, "w1", 1, at(0)), Some((1, Some(20), Some(30), 4)));
        // Both: within 20 in 4 of 16 cases, within 30 in 9, within 40 in all.
        assert_eq!(waits(&history, "w1", 0, at(0)), Some((2, Some(30), Some(40), 4)));
    }

    #[test]
    fn nothing_is_said_before_a_job_has_ended() {
        let history = JobHistory::default();
        noted(&history, "w1", told(0, &[], &[5]), at(0));
        assert_eq!(waits(&history, "w1", 0, at(0)), Some((1, None, None, 0)));
    }

    #[test]
    fn each_ended_job_counts_once_however_often_it_is_told() {
        let history = JobHistory::default();
        noted(&history, "w1", told(2, &[10, 20], &[]), at(0));
        noted(&history, "w1", told(3, &[30], &[]), at(1));
        noted(&history, "w1", told(3, &[10, 20, 30], &[0]), at(2));
        assert_eq!(waits(&history, "w1", 0, at(2)).map(|wait| wait.3), Some(3));
        // A new agent of the worker counts from the beginning.
        history.note(&worker("w1"), Incarnation(2), told(1, &[40], &[0]), 1, at(3));
        assert_eq!(waits(&history, "w1", 0, at(3)).map(|wait| wait.3), Some(4));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let history = JobHistory::default();
        let many = vec![7; PAST_MAX + 1];
        noted(&history, "w1", told(PAST_MAX as u64 + 1, &many, &[0]), at(0));
        assert_eq!(waits(&history, "w1", 0, at(0)).map(|wait| wait.3), Some(1_000));
        for number in 0..WORKERS_MAX {
            noted(&history, &format!("other-{number}"), told(0, &[], &[0]), at(1));
        }
        assert_eq!(waits(&history, "w1", 0, at(1)), None, "it has told nothing for longest");
        // An agent that lists fewer ages than it has jobs: the others are at least as old.
        history.note(&worker("w2"), Incarnation(1), told(0, &[], &[3]), 2, at(1));
        assert_eq!(waits(&history, "w2", 0, at(1)), Some((2, Some(4), Some(4), 1_000)));
    }
}
