//! One look at everything for all who ask at the same time: however many ask for a list of
//! everything, the driver makes it for one of them after the other, and has time for its own work
//! in between.
//!
//! Invariant: an answer is of a look that began after its question, so that it shows the effect of
//! every order that was answered before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// A look is followed by a pause of this many times the driver's time for it: the looks of one list
/// take at most a twentieth of that time.
const PAUSE_FACTOR: u32 = 19;

/// The looks for one list.
#[derive(Debug)]
pub(crate) struct SharedLook<T> {
    last: Mutex<LastLook<T>>,
    /// How many callers wait for an answer.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct LastLook<T> {
    begun: Instant,
    /// When the next may begin.
    next: Instant,
    /// Its answer, while somebody waits who may use it.
    answer: Option<Arc<T>>,
}

/// A caller that waits.
struct Waiting<'a, T>(&'a SharedLook<T>);

impl<'a, T> Waiting<'a, T> {
    fn new(shared: &'a SharedLook<T>) -> Self {
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        let was_last = self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1;
        // The caller that has the lock now waits, too, and forgets the answer in the end.
        if was_last && let Ok(mut last) = self.0.last.try_lock() {
            last.answer = None;
        }
    }
}

impl<T> Default for SharedLook<T> {
    fn default() -> Self {
        let now = Instant::now();
        let last = Mutex::new(LastLook { begun: now, next: now, answer: None });
        Self { last, waiting: AtomicUsize::new(0) }
    }
}

impl<T> SharedLook<T> {
    /// The answer of a look that begins after this call: one of another caller, or one by `look`,
    /// which says how long the driver took for it.
    pub(crate) async fn answer<E, F>(&self, look: impl FnOnce() -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<(T, Duration), E>>,
    {
        let asked_at = Instant::now();
        // Declared before the lock, so dropped after it.
        let _waiting = Waiting::new(self);
        let mut last = self.last.lock().await;
        if last.begun >= asked_at
            && let Some(answer) = &last.answer
        {
            return Ok(Arc::clone(answer));
        }
        sleep_until(last.next).await;
        let begun = Instant::now();
        let (answer, took) = look().await?;
        let answer = Arc::new(answer);
        let next = Instant::now() + took * PAUSE_FACTOR;
        *last = LastLook { begun, next, answer: Some(Arc::clone(&answer)) };
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::sync::Semaphore;
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// Looks that answer with their number, each when it gets a permit.
    struct Looks {
        shared: SharedLook<usize>,
        asked: AtomicUsize,
        begun: AtomicUsize,
        permits: Semaphore,
    }

    impl Looks {
        fn new() -> Arc<Self> {
            let (asked, begun) = (AtomicUsize::new(0), AtomicUsize::new(0));
            Arc::new(Self {
                shared: SharedLook::default(),
                asked,
                begun,
                permits: Semaphore::new(0),
            })
        }

        /// Asks; returns once the caller waits: the tasks of a test take turns.
        async fn ask(self: &Arc<Self>, took: Duration) -> JoinHandle<usize> {
            let before = self.asked.load(Ordering::SeqCst);
            let looks = Arc::clone(self);
            let answer = tokio::spawn(async move {
                looks.asked.fetch_add(1, Ordering::SeqCst);
                let look = || async {
                    let number = looks.begun.fetch_add(1, Ordering::SeqCst) + 1;
                    looks.permits.acquire().await.expect("it stays open").forget();
                    Ok::<_, Infallible>((number, took))
                };
                let Ok(answer) = looks.shared.answer(look).await;
                *answer
            });
            while self.asked.load(Ordering::SeqCst) == before {
                yield_now().await;
            }
            answer
        }

        async fn first_begins(&self) {
            while self.begun.load(Ordering::SeqCst) == 0 {
                yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn all_who_ask_during_a_look_share_the_next_one() {
        let looks = Looks::new();
        let first = looks.ask(Duration::ZERO).await;
        looks.first_begins().await;
        let mut others = Vec::new();
        for _ in 0..50 {
            others.push(looks.ask(Duration::ZERO).await);
        }
        looks.permits.add_permits(2);
        assert_eq!(first.await.expect("an answer"), 1);
        for other in others {
            let answer = other.await.expect("an answer");
            assert_eq!(answer, 2, "none has the answer of a look that had begun before");
        }
        assert!(looks.shared.last.lock().await.answer.is_none(), "nobody waits for it");
    }

    #[tokio::test]
    async fn the_driver_has_time_between_two_looks() {
        let looks = Looks::new();
        looks.permits.add_permits(1);
        let took = Duration::from_millis(10);
        assert_eq!(looks.ask(took).await.await.expect("an answer"), 1);
        let last = looks.shared.last.lock().await;
        assert!(last.next >= last.begun + PAUSE_FACTOR * took);
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_the_look_to_the_next() {
        let looks = Looks::new();
        let given_up = looks.ask(Duration::ZERO).await;
        looks.first_begins().await;
        given_up.abort();
        let next = looks.ask(Duration::ZERO).await;
        looks.permits.add_permits(1);
        assert_eq!(next.await.expect("an answer"), 2);
    }
}
