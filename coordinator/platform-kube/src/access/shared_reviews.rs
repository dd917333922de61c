//! Reviews in flight. Who shows a token that is being reviewed waits for that review, so that a
//! flood of one token costs one call to the API server.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::identity::Identity;
use super::token_cache::TokenHash;

/// The most requests that wait for the review of one token.
const WAITING_MAX: usize = 256;

/// The outcome of a review.
pub(super) type Reviewed = Result<Identity, ReviewError>;

/// Why a review accepts no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReviewError {
    /// The API server rejects it.
    Rejected(String),
    /// There is no answer of the API server.
    Unavailable(String),
}

/// Where the outcome of a review goes; without an outcome once its caller has gone.
type Outcome = Arc<watch::Sender<Option<Reviewed>>>;

/// The reviews in flight, by token. There are at most as many as the lanes have places.
#[derive(Debug, Default)]
pub(super) struct SharedReviews {
    in_flight: Mutex<HashMap<TokenHash, Outcome>>,
}

/// A review that others can wait for, until this is dropped.
struct InFlight<'a> {
    reviews: &'a SharedReviews,
    token: TokenHash,
    outcome: Outcome,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.reviews.lock().remove(&self.token);
    }
}

enum Part<'a> {
    /// To make the review.
    Make(InFlight<'a>),
    /// To wait for it.
    Wait(watch::Receiver<Option<Reviewed>>),
    /// Neither: too many wait.
    Refused,
}

impl SharedReviews {
    /// The outcome of the review of this token that is in flight; without one, of `review`.
    pub(super) async fn share(
        &self,
        token: TokenHash,
        review: impl Future<Output = Reviewed>,
    ) -> Reviewed {
        let mut review = pin!(review);
        loop {
            match self.part(token) {
                Part::Make(in_flight) => {
                    let reviewed = review.as_mut().await;
                    in_flight.outcome.send_replace(Some(reviewed.clone()));
                    return reviewed;
                }
                // If its caller has gone before the answer came, another one makes the review.
                Part::Wait(mut outcome) => {
                    let ended = outcome.wait_for(Option::is_some).await;
                    if let Some(reviewed) = ended.ok().and_then(|reviewed| reviewed.clone()) {
                        return reviewed;
                    }
                }
                Part::Refused => {
                    let why = format!("{WAITING_MAX} other requests with this token wait");
                    return Err(ReviewError::Unavailable(why));
                }
            }
        }
    }

    fn part(&self, token: TokenHash) -> Part<'_> {
        let mut in_flight = self.lock();
        if let Some(outcome) = in_flight.get(&token) {
            return if outcome.receiver_count() < WAITING_MAX {
                Part::Wait(outcome.subscribe())
            } else {
                Part::Refused
            };
        }
        let outcome = Outcome::new(watch::channel(None).0);
        in_flight.insert(token, Arc::clone(&outcome));
        Part::Make(InFlight { reviews: self, token, outcome })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TokenHash, Outcome>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;
    use tokio::task::JoinSet;

    use super::*;

    fn rejected() -> Reviewed {
        Err(ReviewError::Rejected("bad".into()))
    }

    #[tokio::test]
    async fn a_flood_of_one_token_costs_one_review_and_delays_no_other_token() {
        let (reviews, made) = (Arc::<SharedReviews>::default(), Arc::<AtomicUsize>::default());
        let (answer, answered) = oneshot::channel::<()>();
        let mut answered = Some(answered);
        let mut flood = JoinSet::new();
        for _ in 0..=2 * WAITING_MAX {
            let (reviews, made) = (Arc::clone(&reviews), Arc::clone(&made));
            let answered = answered.take();
            flood.spawn(async move {
                let review = async {
                    made.fetch_add(1, Ordering::Relaxed);
                    answered.expect("the first one reviews").await.expect("an answer");
                    rejected()
                };
                reviews.share(TokenHash::of("false"), review).await
            });
        }
        let other = reviews.share(TokenHash::of("other"), async { rejected() });
        assert_eq!(other.await, rejected());
        tokio::task::yield_now().await;
        answer.send(()).expect("a review waits");
        let outcomes = flood.join_all().await;
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let waited = outcomes.iter().filter(|outcome| **outcome == rejected()).count();
        assert_eq!(waited, 1 + WAITING_MAX, "the rest were refused at once");
        assert!(reviews.lock().is_empty());
    }

    #[tokio::test]
    async fn another_request_makes_the_review_if_the_first_caller_goes() {
        let reviews = Arc::<SharedReviews>::default();
        let token = TokenHash::of("a");
        let first = tokio::spawn({
            let reviews = Arc::clone(&reviews);
            async move { reviews.share(token, std::future::pending()).await }
        });
        while reviews.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let second = tokio::spawn({
            let reviews = Arc::clone(&reviews);
            async move { reviews.share(token, async { rejected() }).await }
        });
        tokio::task::yield_now().await;
        first.abort();
        assert_eq!(second.await.expect("an end"), rejected());
    }
}
