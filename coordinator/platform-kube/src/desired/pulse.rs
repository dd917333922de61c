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

use super::source::{Source, describe};

/// The time between two questions; with [`WITHIN`] well below what makes a view stale.
const EVERY: Duration = Duration::from_secs(4);
/// How long the API server may take to answer one.
const WITHIN: Duration = Duration::from_secs(4);
/// How long after a feed has tried again it would have failed again.
const FAILS_WITHIN: Duration = Duration::from_secs(2);

/// What is wrong with the feeds at present.
#[derive(Clone, Debug, Default)]
pub(super) struct Pulse(Arc<Mutex<BTreeMap<(Source, u64), Trouble>>>);

/// What is wrong with one of them.
#[derive(Debug)]
struct Trouble {
    /// It lists everything, and only the list's end says that all is there.
    lists: bool,
    /// It failed, and tries again at this moment.
    again_at: Option<Moment>,
    why: String,
}

impl Pulse {
    /// A feed begins to list everything.
    pub(super) fn lists(&self, source: &Source, life: u64) {
        let why = format!("{source}: not listed yet");
        self.set(source, life, Trouble { lists: true, again_at: None, why });
    }

    /// A feed has failed, and tries again at that moment.
    pub(super) fn failed(&self, source: &Source, life: u64, again_at: Moment, why: &str) {
        let why = format!("{source}: {why}");
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lists = troubles.get(&(source.clone(), life)).is_some_and(|trouble| trouble.lists);
        let trouble = Trouble { lists, again_at: Some(again_at), why };
        troubles.insert((source.clone(), life), trouble);
    }

    /// A feed has said something new.
    pub(super) fn speaks(&self, source: &Source, life: u64) {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.retain(|key, trouble| trouble.lists || (&key.0, key.1) != (source, life));
    }

    /// A feed has listed everything, or is no more.
    pub(super) fn is_well(&self, source: &Source, life: u64) {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.remove(&(source.clone(), life));
    }

    fn set(&self, source: &Source, life: u64, trouble: Trouble) {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.insert((source.clone(), life), trouble);
    }

    /// The API server has answered what it was asked at that moment. A feed that tried again well
    /// before, and has not failed since, is well. Returns what is wrong with another one.
    fn answered(&self, asked_at: Moment) -> Option<String> {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |at: Moment| asked_at > at && asked_at.since(at) >= FAILS_WITHIN;
        troubles.retain(|_, trouble| trouble.lists || !trouble.again_at.is_some_and(is_over));
        troubles.values().next().map(|trouble| trouble.why.clone())
    }

    /// Asks the API server at intervals for one object, by its newest state, and publishes what
    /// that says of the feeds. Ends with whoever wants to know.
    pub(super) async fn run(self, api: Api<DynamicObject>, freshness: watch::Sender<Freshness>) {
        let one = ListParams::default().limit(1);
        loop {
            let asked_at = clock::now();
            let trouble = match timeout(WITHIN, api.list_metadata(&one)).await {
                Ok(Ok(_)) => self.answered(asked_at),
                Ok(Err(error)) => Some(describe(&error)),
                Err(_) => Some("the API server does not answer".into()),
            };
            freshness.send_modify(|freshness| {
                *freshness = match trouble {
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
        let (pulse, feed) = (Pulse::default(), source("Pipeline"));
        assert_eq!(pulse.answered(seconds(1)), None);
        pulse.failed(&feed, 1, seconds(5), "refused");
        let why = pulse.answered(seconds(4)).expect("it has not tried again");
        assert_eq!(why, "Pipeline of all namespaces: refused");
        assert!(pulse.answered(seconds(6)).is_some(), "it may be about to fail");
        pulse.failed(&feed, 1, seconds(9), "refused");
        assert!(pulse.answered(seconds(8)).is_some());
        assert_eq!(pulse.answered(seconds(11)), None);
        assert_eq!(pulse.answered(seconds(4)), None, "and stays so");
    }

    #[test]
    fn a_list_is_only_as_good_as_its_end() {
        let (pulse, feed) = (Pulse::default(), source("Pipeline"));
        pulse.lists(&feed, 1);
        pulse.failed(&feed, 1, seconds(1), "cut off");
        pulse.speaks(&feed, 1);
        assert!(pulse.answered(seconds(100)).is_some());
        pulse.is_well(&feed, 1);
        assert_eq!(pulse.answered(seconds(101)), None);
        pulse.failed(&feed, 1, seconds(200), "cut off");
        pulse.is_well(&feed, 2);
        assert!(pulse.answered(seconds(102)).is_some(), "another life is another feed");
        pulse.speaks(&feed, 1);
        assert_eq!(pulse.answered(seconds(103)), None);
    }
}
