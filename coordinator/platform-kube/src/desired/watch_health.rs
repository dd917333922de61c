//! Whether the watches are up to date. A silent watch may be broken or idle, so a probe calls the
//! API server at intervals; an answer while every watch is healthy confirms the state.

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

use super::source::Source;
use crate::watch_cache::error_with_causes;

/// The time between two probes; with [`WITHIN`] well below the age that makes a view stale.
const EVERY: Duration = Duration::from_secs(4);
/// The timeout of one probe.
const WITHIN: Duration = Duration::from_secs(4);
/// How long after its retry a broken watch would have failed again.
const FAILS_WITHIN: Duration = Duration::from_secs(2);

/// The watches that are currently unhealthy.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchHealth(Arc<Mutex<BTreeMap<(Source, u64), WatchFailure>>>);

/// Why a watch is not healthy.
#[derive(Debug)]
struct WatchFailure {
    /// A list has started; the watch is healthy again when the list completes.
    list_started: bool,
    /// When a failed watch retries.
    retry_at: Option<Moment>,
    why: String,
}

impl WatchHealth {
    /// A watch starts a full list.
    pub(super) fn list_started(&self, source: &Source, watch_id: u64) {
        let why = format!("{source}: not listed yet");
        self.set(source, watch_id, WatchFailure { list_started: true, retry_at: None, why });
    }

    /// A watch has failed and retries at that moment.
    pub(super) fn failed(&self, source: &Source, watch_id: u64, retry_at: Moment, why: &str) {
        let why = format!("{source}: {why}");
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list_started =
            failures.get(&(source.clone(), watch_id)).is_some_and(|failure| failure.list_started);
        let failure = WatchFailure { list_started, retry_at: Some(retry_at), why };
        failures.insert((source.clone(), watch_id), failure);
    }

    /// A watch has received an event.
    pub(super) fn event_received(&self, source: &Source, watch_id: u64) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures
            .retain(|key, failure| failure.list_started || (&key.0, key.1) != (source, watch_id));
    }

    /// A watch has listed everything, or has ended.
    pub(super) fn mark_healthy(&self, source: &Source, watch_id: u64) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(&(source.clone(), watch_id));
    }

    fn set(&self, source: &Source, watch_id: u64, failure: WatchFailure) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.insert((source.clone(), watch_id), failure);
    }

    /// The API server has answered a probe that was sent at `asked_at`. A watch that retried well
    /// before, and has not failed since, is healthy. Returns why another one is not.
    fn api_answered(&self, asked_at: Moment) -> Option<String> {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |at: Moment| asked_at > at && asked_at.since(at) >= FAILS_WITHIN;
        failures
            .retain(|_, failure| failure.list_started || !failure.retry_at.is_some_and(is_over));
        failures.values().next().map(|failure| failure.why.clone())
    }

    /// Reads one object from the API server at intervals, and publishes whether the watches are up
    /// to date. Ends when the receiver is dropped.
    pub(super) async fn run(self, api: Api<DynamicObject>, freshness: watch::Sender<Freshness>) {
        let one = ListParams::default().limit(1);
        loop {
            let asked_at = clock::now();
            let failure = match timeout(WITHIN, api.list_metadata(&one)).await {
                Ok(Ok(_)) => self.api_answered(asked_at),
                Ok(Err(error)) => Some(error_with_causes(&error)),
                Err(_) => Some(format!("no answer from the API server within {WITHIN:?}")),
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
    fn a_failure_ends_when_its_retry_does_not_fail() {
        let (health, watched) = (WatchHealth::default(), source("Pipeline"));
        assert_eq!(health.api_answered(seconds(1)), None);
        health.failed(&watched, 1, seconds(5), "refused");
        let why = health.api_answered(seconds(4)).expect("it has not retried");
        assert_eq!(why, "Pipeline of all namespaces: refused");
        assert!(health.api_answered(seconds(6)).is_some(), "the retry may still fail");
        health.failed(&watched, 1, seconds(9), "refused");
        assert!(health.api_answered(seconds(8)).is_some());
        assert_eq!(health.api_answered(seconds(11)), None);
        assert_eq!(health.api_answered(seconds(4)), None, "the watch stays healthy");
    }

    #[test]
    fn a_started_list_is_healthy_only_when_complete() {
        let (health, watched) = (WatchHealth::default(), source("Pipeline"));
        health.list_started(&watched, 1);
        health.failed(&watched, 1, seconds(1), "cut off");
        health.event_received(&watched, 1);
        assert!(health.api_answered(seconds(100)).is_some());
        health.mark_healthy(&watched, 1);
        assert_eq!(health.api_answered(seconds(101)), None);
        health.failed(&watched, 1, seconds(200), "cut off");
        health.mark_healthy(&watched, 2);
        assert!(health.api_answered(seconds(102)).is_some(), "another watch id is another watch");
        health.event_received(&watched, 1);
        assert_eq!(health.api_answered(seconds(103)), None);
    }
}
