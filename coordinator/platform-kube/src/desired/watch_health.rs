//! Whether the watches are up to date. A silent watch may be broken or idle, so a probe calls the
//! API server at intervals; an answer while every watch is healthy confirms the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Api;
use kube::api::{DynamicObject, ListParams};
use leasehold_driver::clock;
use leasehold_driver::freshness::Freshness;
use leasehold_types::Moment;
use tokio::sync::watch;
use tokio::time::sleep;

use super::source::Source;
use crate::api_call::{ApiError, call_together};

/// The time between two probes; with [`PROBE_TIMEOUT`] well below the age that makes a view stale.
const EVERY: Duration = Duration::from_secs(4);
/// The timeout of one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
/// How long after its retry a broken watch would have failed again.
const FAILS_WITHIN: Duration = Duration::from_secs(2);

/// The watches that are currently unhealthy.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchHealth(Arc<Mutex<Unhealthy>>);

#[derive(Debug, Default)]
struct Unhealthy {
    /// Watches after which no state counts as up to date.
    failures: BTreeMap<(Source, u64), WatchFailure>,
    /// Watches of objects that the API server forbids, and when they retry: only the state of their
    /// namespace is not up to date.
    forbidden: BTreeMap<(Source, u64), Moment>,
}

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
    /// A watch starts a full list. Those of ConfigMaps start anew whenever a set names another one,
    /// and what autoscalers ask for does not depend on them.
    pub(super) fn list_started(&self, source: &Source, watch_id: u64) {
        if let Source::StreamLists { .. } = source {
            return;
        }
        let why = format!("{source}: not listed yet");
        self.set(source, watch_id, WatchFailure { list_started: true, retry_at: None, why });
    }

    /// A watch has failed and retries at that moment.
    pub(super) fn failed(&self, source: &Source, watch_id: u64, retry_at: Moment, why: &str) {
        let why = format!("{source}: {why}");
        let failures = &mut self.lock().failures;
        let list_started =
            failures.get(&(source.clone(), watch_id)).is_some_and(|failure| failure.list_started);
        let failure = WatchFailure { list_started, retry_at: Some(retry_at), why };
        failures.insert((source.clone(), watch_id), failure);
    }

    /// A watch has received an event.
    pub(super) fn event_received(&self, source: &Source, watch_id: u64) {
        let is_other = |key: &(Source, u64)| (&key.0, key.1) != (source, watch_id);
        let mut unhealthy = self.lock();
        unhealthy.failures.retain(|key, failure| failure.list_started || is_other(key));
        unhealthy.forbidden.retain(|key, _| is_other(key));
    }

    /// The API server forbids a watch, which retries at that moment. What autoscalers ask for does
    /// not depend on ConfigMaps, and a set shows its problem with one itself.
    pub(super) fn forbidden(&self, source: &Source, watch_id: u64, retry_at: Moment) {
        let key = (source.clone(), watch_id);
        let mut unhealthy = self.lock();
        unhealthy.failures.remove(&key);
        if let Source::Objects { .. } = source {
            unhealthy.forbidden.insert(key, retry_at);
        }
    }

    /// A watch has listed everything, or has ended.
    pub(super) fn mark_healthy(&self, source: &Source, watch_id: u64) {
        let key = (source.clone(), watch_id);
        let mut unhealthy = self.lock();
        unhealthy.failures.remove(&key);
        unhealthy.forbidden.remove(&key);
    }

    fn set(&self, source: &Source, watch_id: u64, failure: WatchFailure) {
        self.lock().failures.insert((source.clone(), watch_id), failure);
    }

    /// The namespaces with objects that the API server forbids to read.
    fn unreadable(&self) -> BTreeSet<String> {
        let unhealthy = self.lock();
        let namespaces = unhealthy.forbidden.keys().filter_map(|(source, _)| source.namespace());
        namespaces.map(str::to_owned).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Unhealthy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server has answered a probe that was sent at `asked_at`. A watch that retried well
    /// before, and has not failed since, is healthy. Returns why another one is not.
    fn api_answered(&self, asked_at: Moment) -> Option<String> {
        let Unhealthy { failures, forbidden } = &mut *self.lock();
        let is_over = |at: Moment| asked_at > at && asked_at.since(at) >= FAILS_WITHIN;
        forbidden.retain(|_, retry_at| !is_over(*retry_at));
        failures
            .retain(|_, failure| failure.list_started || !failure.retry_at.is_some_and(is_over));
        failures.values().next().map(|failure| failure.why.clone())
    }

    /// Reads one object from the API server at intervals, and publishes whether the watches are up
    /// to date. Each scope is asked until one may be read. Ends when the receiver is dropped.
    pub(super) async fn run(
        self,
        scopes: Vec<Api<DynamicObject>>,
        freshness: watch::Sender<Freshness>,
    ) {
        loop {
            let asked_at = clock::now();
            let failure = match call_together(PROBE_TIMEOUT, probe(&scopes)).await {
                Ok(()) => self.api_answered(asked_at),
                Err(error) => Some(error.to_string()),
            };
            freshness.send_modify(|freshness| {
                *freshness = match failure {
                    None => Freshness::confirmed(asked_at),
                    Some(why) => freshness.troubled(why),
                }
                .except(self.unreadable());
            });
            tokio::select! {
                () = sleep(EVERY) => {}
                () = freshness.closed() => return,
            }
        }
    }
}

/// Reads one object of the first scope that the API server does not forbid. An answer shows that it
/// is there, also where it forbids all.
async fn probe(scopes: &[Api<DynamicObject>]) -> Result<(), ApiError> {
    let one = ListParams::default().limit(1);
    for api in scopes {
        match api.list_metadata(&one).await.map_err(ApiError::from) {
            Err(error) if error.is_forbidden() && scopes.len() > 1 => {}
            answer => return answer.map(drop),
        }
    }
    Ok(())
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
    fn what_is_forbidden_makes_only_its_namespace_stale_until_a_retry_does_not_fail() {
        let health = WatchHealth::default();
        let of = |namespace: &str| Source::Objects {
            kind: "Pipeline",
            namespace: Some(namespace.to_owned()),
        };
        health.list_started(&of("ci"), 1);
        health.forbidden(&of("ci"), 1, seconds(5));
        health.forbidden(&Source::StreamLists { namespace: Some("cd".into()) }, 2, seconds(5));
        assert_eq!(health.api_answered(seconds(4)), None);
        assert_eq!(health.unreadable(), ["ci".to_owned()].into());
        health.forbidden(&of("ci"), 1, seconds(9));
        assert_eq!(health.api_answered(seconds(8)), None);
        assert_eq!(health.unreadable().len(), 1, "the retry may still fail");
        assert_eq!(health.api_answered(seconds(11)), None);
        assert_eq!(health.unreadable(), BTreeSet::new());
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
