//! Whether what the feeds gave is the newest. A watch that says nothing may be one that has nothing
//! to say, so the API server is asked at intervals whether it answers, and what it answered while
//! every feed was well is confirmed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Api;
use kube::api::{DynamicObject, ListParams};
use leasehold_driver::clock;
use leasehold_driver::platform::Freshness;
use leasehold_types::Moment;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::source_watch::{Source, describe};

/// The time between two questions; with [`WITHIN`] well below what makes a view stale.
const EVERY: Duration = Duration::from_secs(4);
/// How long the API server may take to answer one.
const WITHIN: Duration = Duration::from_secs(4);
/// How long after a feed has tried again it would have failed again.
const FAILS_WITHIN: Duration = Duration::from_secs(2);

/// What is wrong with the feeds at present.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchHealth(Arc<Mutex<BTreeMap<(Source, u64), WatchFailure>>>);

/// What is wrong with one of them.
#[derive(Debug)]
struct WatchFailure {
    /// It lists everything, and only the list's end says that all is there.
    list_started: bool,
    /// It failed, and tries again at this moment.
    retry_at: Option<Moment>,
    why: String,
}

impl WatchHealth {
    /// A feed begins to list everything.
    pub(super) fn list_started(&self, source: &Source, watch_id: u64) {
        let why = format!("{source}: not listed yet");
        self.set(source, watch_id, WatchFailure { list_started: true, retry_at: None, why });
    }

    /// A feed has failed, and tries again at that moment.
    pub(super) fn failed(&self, source: &Source, watch_id: u64, retry_at: Moment, why: &str) {
        let why = format!("{source}: {why}");
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list_started =
            failures.get(&(source.clone(), watch_id)).is_some_and(|failure| failure.list_started);
        let failure = WatchFailure { list_started, retry_at: Some(retry_at), why };
        failures.insert((source.clone(), watch_id), failure);
    }

    /// A feed has said something new.
    pub(super) fn event_received(&self, source: &Source, watch_id: u64) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures
            .retain(|key, failure| failure.list_started || (&key.0, key.1) != (source, watch_id));
    }

    /// A feed has listed everything, or is no more.
    pub(super) fn mark_healthy(&self, source: &Source, watch_id: u64) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(&(source.clone(), watch_id));
    }

    fn set(&self, source: &Source, watch_id: u64, failure: WatchFailure) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.insert((source.clone(), watch_id), failure);
    }

    /// The API server has answered what it was asked at that moment. A feed that tried again well
    /// before, and has not failed since, is well. Returns what is wrong with another one.
    fn api_answered(&self, asked_at: Moment) -> Option<String> {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |at: Moment| asked_at > at && asked_at.since(at) >= FAILS_WITHIN;
        failures
            .retain(|_, failure| failure.list_started || !failure.retry_at.is_some_and(is_over));
        failures.values().next().map(|failure| failure.why.clone())
    }

    /// Asks the API server at intervals for one object, by its newest state, and publishes what
    /// that says of the feeds. Ends with whoever wants to know.
    pub(super) async fn run(self, api: Api<DynamicObject>, freshness: watch::Sender<Freshness>) {
        let one = ListParams::default().limit(1);
        loop {
            let asked_at = clock::now();
            let failure = match timeout(WITHIN, api.list_metadata(&one)).await {
                Ok(Ok(_)) => self.api_answered(asked_at),
                Ok(Err(error)) => Some(describe(&error)),
                Err(_) => Some("the API server does not answer".into()),
            };
            freshness.send_modify(|freshness| {
                *freshness = match failure {
                    None => Freshness::confirmed(asked_at),
                    Some(why) => freshness.troubled(why),
                };
            });
            tokio::select! {
                () = sleep(EVERY) => {}
                () = freshness.closed() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(kind: &'static str) -> Source {
        Source::Objects { kind, namespace: None }
    }

    fn seconds(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(seconds)
    }

    #[test]
    fn a_failure_is_over_when_the_next_try_did_not_fail() {
        let (health, feed) = (WatchHealth::default(), source("Pipeline"));
        assert_eq!(health.api_answered(seconds(1)), None);
        health.failed(&feed, 1, seconds(5), "refused");
        let why = health.api_answered(seconds(4)).expect("it has not tried again");
        assert_eq!(why, "Pipeline of all namespaces: refused");
        assert!(health.api_answered(seconds(6)).is_some(), "it may be about to fail");
        health.failed(&feed, 1, seconds(9), "refused");
        assert!(health.api_answered(seconds(8)).is_some());
        assert_eq!(health.api_answered(seconds(11)), None);
        assert_eq!(health.api_answered(seconds(4)), None, "and stays so");
    }

    #[test]
    fn a_list_is_only_as_good_as_its_end() {
        let (health, feed) = (WatchHealth::default(), source("Pipeline"));
        health.list_started(&feed, 1);
        health.failed(&feed, 1, seconds(1), "cut off");
        health.event_received(&feed, 1);
        assert!(health.api_answered(seconds(100)).is_some());
        health.mark_healthy(&feed, 1);
        assert_eq!(health.api_answered(seconds(101)), None);
        health.failed(&feed, 1, seconds(200), "cut off");
        health.mark_healthy(&feed, 2);
        assert!(health.api_answered(seconds(102)).is_some(), "another life is another feed");
        health.event_received(&feed, 1);
        assert_eq!(health.api_answered(seconds(103)), None);
    }
}
