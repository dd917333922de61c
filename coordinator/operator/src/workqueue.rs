//! The queue of every reconciler, after client-go's workqueue: a key is queued once, however often
//! it is added; at most one worker handles it at a time; a failure delays the next attempt, longer
//! with each one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use leasehold_types::Moment;

/// Keys to reconcile, each with the moment from which it is due.
#[derive(Debug)]
pub(crate) struct WorkQueue<K> {
    due: BTreeMap<K, Moment>,
    by_time: BTreeSet<(Moment, K)>,
    processing: BTreeSet<K>,
    not_before: BTreeMap<K, Moment>,
    concurrency_max: usize,
}

impl<K: Clone + Ord> WorkQueue<K> {
    /// An empty queue of which at most `concurrency_max` keys are processed at a time.
    pub(crate) fn new(concurrency_max: usize) -> Self {
        Self {
            due: BTreeMap::new(),
            by_time: BTreeSet::new(),
            processing: BTreeSet::new(),
            not_before: BTreeMap::new(),
            concurrency_max,
        }
    }

    /// Adds a key, due at `at`. A key that is queued keeps the earlier of the two moments; a
    /// delayed one is not due before its delay ends.
    pub(crate) fn add(&mut self, key: K, at: Moment) {
        let at = self.not_before.get(&key).map_or(at, |until| at.max(*until));
        if let Some(before) = self.due.get(&key) {
            if *before <= at {
                return;
            }
            self.by_time.remove(&(*before, key.clone()));
        }
        self.due.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// Keeps a key from being due before `until`, also if it is added again.
    pub(crate) fn delay(&mut self, key: &K, until: Moment) {
        self.not_before.insert(key.clone(), until);
        if self.due.get(key).is_some_and(|at| *at < until) {
            self.remove(key);
            self.add(key.clone(), until);
        }
    }

    /// Takes the keys that are due, the longest due first, as far as the limit of concurrency
    /// allows. Each is processed until [`WorkQueue::done`]; it may be added again meanwhile.
    pub(crate) fn take_due(&mut self, now: Moment) -> Vec<K> {
        let room = self.concurrency_max.saturating_sub(self.processing.len());
        let due = self.by_time.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key);
        let taken: Vec<K> =
            due.filter(|key| !self.processing.contains(*key)).take(room).cloned().collect();
        for key in &taken {
            self.remove(key);
            self.not_before.remove(key);
            self.processing.insert(key.clone());
        }
        taken
    }

    /// Marks a key as no longer processed.
    pub(crate) fn done(&mut self, key: &K) {
        self.processing.remove(key);
    }

    /// Whether a key is being processed.
    pub(crate) fn is_processing(&self, key: &K) -> bool {
        self.processing.contains(key)
    }

    /// When [`WorkQueue::take_due`] has the next key; none while the limit of concurrency is
    /// reached.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        if self.processing.len() >= self.concurrency_max {
            return None;
        }
        let mut free = self.by_time.iter().filter(|(_, key)| !self.processing.contains(key));
        free.next().map(|(at, _)| *at)
    }

    /// How many keys are queued.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// Removes every key, also those being processed.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.concurrency_max);
    }

    fn remove(&mut self, key: &K) {
        if let Some(at) = self.due.remove(key) {
            self.by_time.remove(&(at, key.clone()));
        }
    }
}

/// The delays of a backoff: the first one, doubled with each failure up to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

/// An exponential backoff that has begun.
#[derive(Debug)]
pub(crate) struct Backoff(ExponentialBackoff);

impl Backoff {
    pub(crate) fn new(delays: Delays) -> Self {
        let builder = ExponentialBuilder::new()
            .with_min_delay(delays.first)
            .with_max_delay(delays.longest)
            .without_max_times();
        Self(builder.build())
    }

    /// The delay after one more failure, in whole milliseconds.
    pub(crate) fn next_delay(&mut self) -> Duration {
        // `backon` multiplies in single precision: 0.2 s would become 0.400000006 s.
        let delay = self.0.next().unwrap_or_default() + Duration::from_micros(500);
        Duration::from_millis(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
    }
}

/// An object counts as refused once the API server has failed on it so often with the same words,
/// which takes about two seconds. A shorter failure is retried only.
pub(crate) const REPEATED: u32 = 3;

/// The keys that have failed: each waits for itself, so one failure delays no other key.
#[derive(Debug)]
pub(crate) struct Failures<K, E> {
    delays: Delays,
    by_key: BTreeMap<K, Failure<E>>,
}

#[derive(Debug)]
struct Failure<E> {
    error: E,
    /// How often this error came in a row.
    times: u32,
    backoff: Backoff,
    retry_at: Moment,
}

impl<K: Ord, E: PartialEq> Failures<K, E> {
    pub(crate) fn new(delays: Delays) -> Self {
        Self { delays, by_key: BTreeMap::new() }
    }

    /// Whether a key may be tried at `now`.
    pub(crate) fn is_due(&self, key: &K, now: Moment) -> bool {
        self.by_key.get(key).is_none_or(|failure| failure.retry_at <= now)
    }

    /// When a key that has failed is to be tried again.
    pub(crate) fn retry_at(&self, key: &K) -> Option<Moment> {
        self.by_key.get(key).map(|failure| failure.retry_at)
    }

    /// Records a failure; returns whether the error is another one than the last.
    pub(crate) fn failed(&mut self, key: K, error: E, now: Moment) -> bool {
        let before = self.by_key.remove(&key);
        let same = before.as_ref().filter(|failure| failure.error == error);
        let times = same.map_or(0, |failure| failure.times);
        let mut backoff =
            before.map_or_else(|| Backoff::new(self.delays), |failure| failure.backoff);
        let retry_at = now + backoff.next_delay();
        self.by_key.insert(key, Failure { error, times: times + 1, backoff, retry_at });
        times == 0
    }

    /// Records a success: the next failure starts with the first delay.
    pub(crate) fn succeeded(&mut self, key: &K) {
        self.by_key.remove(key);
    }

    /// How often the last error of a key came in a row.
    pub(crate) fn times(&self, key: &K) -> u32 {
        self.by_key.get(key).map_or(0, |failure| failure.times)
    }

    /// The error of a key that has failed.
    pub(crate) fn error(&self, key: &K) -> Option<&E> {
        self.by_key.get(key).map(|failure| &failure.error)
    }

    /// When the next key is to be tried again.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        self.by_key.values().map(|failure| failure.retry_at).min()
    }

    /// Keeps the keys for which `keep` holds, given the key and when it is to be tried again.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K, Moment) -> bool) {
        self.by_key.retain(|key, failure| keep(key, failure.retry_at));
    }

    /// Forgets every failure.
    pub(crate) fn clear(&mut self) {
        self.by_key.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAYS: Delays =
        Delays { first: Duration::from_millis(200), longest: Duration::from_secs(30) };

    fn at(millis: u64) -> Moment {
        Moment(millis * 1_000_000)
    }

    #[test]
    fn takes_the_longest_due_first_and_processes_each_key_once_at_a_time() {
        let mut queue = WorkQueue::new(9);
        queue.add("b", Moment(5));
        queue.add("a", Moment(9));
        queue.add("a", Moment(7));
        queue.add("b", Moment(6));
        assert_eq!((queue.next_due(), queue.len()), (Some(Moment(5)), 2));
        assert_eq!(queue.take_due(Moment(6)), ["b"]);
        queue.add("b", Moment(1));
        assert_eq!(queue.take_due(Moment(8)), ["a"]);
        assert_eq!(queue.next_due(), None, "both are being processed");
        queue.done(&"b");
        assert_eq!(queue.take_due(Moment(8)), ["b"], "it was added while processing");
        queue.done(&"b");
        queue.add("b", Moment(8));
        queue.delay(&"b", Moment(20));
        queue.add("b", Moment(9));
        assert_eq!(queue.next_due(), Some(Moment(20)), "it is delayed");
        assert_eq!(queue.take_due(Moment(20)), ["b"]);
        queue.clear();
        assert!(!queue.is_processing(&"b"), "clear() also ends processing");
        queue.add("b", Moment(21));
        assert_eq!(queue.take_due(Moment(21)), ["b"]);
    }

    #[test]
    fn takes_at_most_as_many_keys_as_may_be_processed() {
        let mut queue = WorkQueue::new(2);
        ["a", "b", "c"].into_iter().for_each(|key| queue.add(key, Moment(1)));
        assert_eq!(queue.take_due(Moment(1)), ["a", "b"]);
        assert_eq!((queue.take_due(Moment(1)), queue.next_due()), (Vec::new(), None));
        queue.done(&"a");
        assert_eq!(queue.take_due(Moment(1)), ["c"]);
    }

    #[test]
    fn each_key_has_its_own_growing_delay() {
        let mut failures = Failures::new(DELAYS);
        assert!(failures.failed("a", "away", at(0)));
        assert!(!failures.is_due(&"a", at(199)));
        assert!(failures.is_due(&"b", at(0)));
        assert!(!failures.failed("a", "away", at(200)), "the error is the same");
        assert_eq!((failures.times(&"a"), failures.times(&"b")), (2, 0));
        assert_eq!(failures.next_due(), Some(at(600)));
        assert!(failures.failed("a", "taken", at(600)));
        assert_eq!(failures.times(&"a"), 1, "it is another one");
        for _ in 0..40 {
            failures.failed("a", "away", at(1_000));
        }
        assert_eq!(failures.next_due(), Some(at(31_000)));
        failures.succeeded(&"a");
        assert_eq!((failures.next_due(), failures.error(&"a")), (None, None));
    }

    #[test]
    fn a_removed_failure_is_never_due_again() {
        let mut failures = Failures::new(DELAYS);
        failures.failed("passed over", "taken", at(0));
        failures.failed("early", "taken", at(100));
        failures.failed("gone", "taken", at(100));
        failures.retain(|key, retry_at| retry_at > at(200) && *key != "gone");
        assert_eq!(failures.error(&"passed over"), None);
        assert_eq!(failures.error(&"gone"), None);
        assert_eq!(failures.next_due(), Some(at(300)));
    }
}
