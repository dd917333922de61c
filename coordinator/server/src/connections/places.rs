//! The places of a port's connections. If there is no free one, a new connection takes the place of
//! the oldest, so that peers that hold connections and do nothing keep nobody out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

/// How long a new connection keeps its place although another one wants it: long enough for a
/// handshake and a request on a busy machine.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The places of one port.
#[derive(Debug)]
pub(crate) struct Places {
    total: usize,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The first is the oldest.
    holders: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    /// Until then no other connection takes the place.
    kept_until: Instant,
    evict: oneshot::Sender<()>,
}

/// One connection's place; free again on drop.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    number: AtomicU64,
}

/// Resolves to `Ok` when the place is given to another connection, and to an error when it is
/// freed.
pub(crate) type Evicted = oneshot::Receiver<()>;

impl Places {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, state: Mutex::default(), freed: Notify::new() })
    }

    /// Takes a place; waits while all places are taken by connections that keep theirs.
    pub(crate) async fn take(self: &Arc<Self>) -> (Place, Evicted) {
        loop {
            let freed = self.freed.notified();
            match self.try_take(Instant::now()) {
                Ok(taken) => return taken,
                Err(kept_until) => tokio::select! {
                    () = freed => {}
                    () = sleep_until(kept_until) => {}
                },
            }
        }
    }

    /// Takes a place, or returns until when the oldest one is kept.
    pub(super) fn try_take(self: &Arc<Self>, now: Instant) -> Result<(Place, Evicted), Instant> {
        let mut state = self.state();
        if state.holders.len() >= self.total
            && let Some(oldest) = state.holders.first_entry()
        {
            let kept_until = oldest.get().kept_until;
            if now < kept_until {
                return Err(kept_until);
            }
            // The connection may end by itself now.
            let _ = oldest.remove().evict.send(());
        }
        let (evict, evicted) = oneshot::channel();
        let number = state.insert(Holder { kept_until: now + KEPT_FOR, evict });
        Ok((Place { places: Arc::clone(self), number: number.into() }, evicted))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, holder: Holder) -> u64 {
        let number = self.next;
        self.next += 1;
        self.holders.insert(number, holder);
        number
    }
}

impl Place {
    /// The places of which it is one.
    pub(super) fn places(&self) -> Arc<Places> {
        Arc::clone(&self.places)
    }

    /// Makes the connection the newest, and keeps its place for this time.
    pub(crate) fn keep(&self, time: Duration) {
        let mut state = self.places.state();
        let number = self.number.load(Ordering::Relaxed);
        if let Some(holder) = state.holders.remove(&number) {
            let number = state.insert(Holder { kept_until: Instant::now() + time, ..holder });
            self.number.store(number, Ordering::Relaxed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state().holders.remove(&self.number.load(Ordering::Relaxed));
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[tokio::test]
    async fn a_new_connection_takes_the_place_of_the_oldest_that_does_not_keep_it() {
        let (places, now) = (Places::new(3), Instant::now());
        let take = |now| places.try_take(now).expect("a place");
        let (first, mut first_evicted) = take(now);
        let (_second, mut second_evicted) = take(now);
        let _third = take(now);
        assert_eq!(places.try_take(now).expect_err("none is old"), now + KEPT_FOR);
        first.keep(KEPT_FOR);
        let _fourth = take(now + KEPT_FOR);
        assert_eq!(first_evicted.try_recv(), Err(TryRecvError::Empty), "it is newer now");
        assert_eq!(second_evicted.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn a_freed_place_goes_to_the_next_and_leaves_nothing_behind() {
        let places = Places::new(1);
        let (place, evicted) = places.take().await;
        let next = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take().await }
        });
        tokio::task::yield_now().await;
        drop(place);
        assert!(evicted.await.is_err(), "it was freed, not evicted");
        drop(next.await.expect("no panic"));
        let state = places.state();
        assert!(state.holders.is_empty(), "{state:?}");
    }
}
