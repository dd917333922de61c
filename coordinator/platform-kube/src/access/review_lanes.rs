//! Calls to the API server that decide access. Agents, people and strangers have lanes of their
//! own, and within a lane one caller has few places, so that a flood of false tokens delays nobody
//! who has a good one.

use std::sync::Arc;
use std::time::Duration;

use leasehold_driver::keyed_limit::KeyedLimit;
use tokio::sync::Semaphore;

use crate::api_call;

/// The timeout of one review: the one who asks waits for it.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(3);

/// Whom a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// A peer whose token names a worker's pod, or was accepted before. The name is not proven yet.
    Agent,
    /// A person whose token was accepted before.
    Person,
    /// Anybody else.
    Stranger,
}

/// The calls in flight and those that wait.
#[derive(Debug)]
pub(super) struct ReviewLanes {
    agents: CallLimit,
    people: CallLimit,
    strangers: CallLimit,
}

#[derive(Debug)]
struct CallLimit {
    /// The calls in flight.
    in_flight: Semaphore,
    /// These and the ones that wait, in total and per caller.
    places: Arc<KeyedLimit<String>>,
}

impl CallLimit {
    fn new(in_flight: usize, waiting: usize, per_caller: usize) -> Self {
        let places = KeyedLimit::new(in_flight + waiting, per_caller);
        Self { in_flight: Semaphore::new(in_flight), places }
    }
}

impl Default for ReviewLanes {
    fn default() -> Self {
        Self {
            agents: CallLimit::new(16, 1_024, 2),
            people: CallLimit::new(8, 64, 16),
            strangers: CallLimit::new(8, 64, 8),
        }
    }
}

impl ReviewLanes {
    /// Makes a call for `caller`: a pod, a user or an address.
    ///
    /// # Errors
    /// Why there is no answer: the lane is full, or the API server gave an error or took too long.
    pub(super) async fn call<T>(
        &self,
        lane: Lane,
        caller: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, String> {
        let limit = match lane {
            Lane::Agent => &self.agents,
            Lane::Person => &self.people,
            Lane::Stranger => &self.strangers,
        };
        let Some(_place) = limit.places.take(caller.to_owned()) else {
            return Err("too many requests of this kind wait for the API server".into());
        };
        let _permit = limit.in_flight.acquire().await.expect("never closed");
        api_call::call(REVIEW_TIMEOUT, request).await.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;

    /// Starts this many calls of different callers that are never answered.
    async fn flood(lanes: &Arc<ReviewLanes>, lane: Lane, count: usize) {
        for caller in 0..count {
            let lanes = Arc::clone(lanes);
            tokio::spawn(async move {
                lanes.call(lane, &caller.to_string(), pending::<Result<(), _>>()).await
            });
        }
        tokio::task::yield_now().await;
    }

    #[tokio::test]
    async fn a_flood_of_one_kind_delays_no_other() {
        let lanes = Arc::<ReviewLanes>::default();
        flood(&lanes, Lane::Stranger, 1_000).await;
        flood(&lanes, Lane::Person, 1_000).await;
        let agent = lanes.call(Lane::Agent, "ci/w-0", ready(Ok(1))).now_or_never();
        assert_eq!(agent.expect("it waits for nobody"), Ok(1));
        let refused = lanes.call(Lane::Stranger, "late", ready(Ok(1))).now_or_never();
        let why = refused.expect("an answer at once").expect_err("the lane is full");
        assert!(why.contains("too many"), "{why}");
    }

    #[tokio::test]
    async fn one_caller_has_few_places_of_a_lane() {
        let lanes = Arc::<ReviewLanes>::default();
        for _ in 0..1_000 {
            let lanes = Arc::clone(&lanes);
            tokio::spawn(async move {
                lanes.call(Lane::Agent, "ci/noisy", pending::<Result<(), _>>()).await
            });
        }
        tokio::task::yield_now().await;
        let other = lanes.call(Lane::Agent, "ci/w-0", ready(Ok(1))).now_or_never();
        assert_eq!(other.expect("it waits for nobody"), Ok(1));
        let noisy = lanes.call(Lane::Agent, "ci/noisy", ready(Ok(1))).now_or_never();
        noisy.expect("an answer at once").expect_err("it has two places");
    }
}
