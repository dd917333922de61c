//! Places for connections: a bounded number, where the newest always gets one.
//!
//! Invariant: a connection that is accepted is served, whatever the others do: where all places are
//! taken, the one that has asked for nothing for longest is closed for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The places of a port.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    places: BTreeMap<u64, Arc<Place>>,
}

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    place: Arc<Place>,
    places: Arc<Places>,
}

/// What is known of a connection.
#[derive(Debug)]
pub(super) struct Place {
    usage: Mutex<Use>,
    evicted: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    /// Requests that are being served.
    requests: u32,
    /// When the last of them began or ended, or the connection was accepted.
    since: Instant,
}

/// A request that is being served, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Place>);

impl Places {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// Whether any place was ever taken.
    pub(super) fn were_taken(&self) -> bool {
        self.look().next > 0
    }

    /// A place for a connection that was just accepted.
    pub(super) fn take(self: &Arc<Self>) -> Seat {
        if self.look().places.len() >= self.max {
            self.evict();
        }
        let usage = Mutex::new(Use { requests: 0, since: Instant::now() });
        let place = Arc::new(Place { usage, evicted: Notify::new() });
        let mut taken = self.look();
        let number = taken.next;
        taken.next += 1;
        taken.places.insert(number, place.clone());
        Seat { number, place, places: self.clone() }
    }

    /// Has the connection closed that has asked for nothing for longest; where every one waits for
    /// an answer, the one that has waited longest. Whether there was one.
    pub(super) fn evict(&self) -> bool {
        let mut taken = self.look();
        let rank = |place: &Place| {
            let Use { requests, since } = *place.look();
            (requests > 0, since)
        };
        let longest = taken.places.iter().min_by_key(|(_, place)| rank(place));
        let Some(number) = longest.map(|(number, _)| *number) else { return false };
        if let Some(place) = taken.places.remove(&number) {
            place.evicted.notify_one();
        }
        true
    }

    fn look(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("nobody panics with it")
    }
}

impl Seat {
    /// What is known of its connection.
    pub(super) fn place(&self) -> &Arc<Place> {
        &self.place
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.places.look().places.remove(&self.number);
    }
}

impl Place {
    /// A request is served from here on.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        let mut usage = self.look();
        *usage = Use { requests: usage.requests + 1, since: Instant::now() };
        Busy(self.clone())
    }

    /// Whether a request is being served.
    pub(super) fn is_busy(&self) -> bool {
        self.look().requests > 0
    }

    /// Ends when the connection is to make room for another one.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Ends when nothing was asked for so long.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let Use { requests, since } = *self.look();
            let idle = if requests > 0 { Duration::ZERO } else { since.elapsed() };
            if idle >= limit {
                return;
            }
            tokio::time::sleep(limit - idle).await;
        }
    }

    fn look(&self) -> MutexGuard<'_, Use> {
        self.usage.lock().expect("nobody panics with it")
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut usage = self.0.look();
        *usage = Use { requests: usage.requests - 1, since: Instant::now() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_gets_the_place_of_the_one_that_has_been_idle_for_longest() {
        let places = Places::new(3);
        let (waits, silent, asked) = (places.take(), places.take(), places.take());
        let busy = waits.place().begin();
        drop(asked.place().begin());
        let newest = places.take();
        silent.place().evicted().await;
        drop(silent);
        drop(places.take());
        asked.place().evicted().await;
        // Nobody else is left but those that wait.
        let also = newest.place().begin();
        let last = places.take();
        let third = last.place().begin();
        drop(places.take());
        waits.place().evicted().await;
        drop((busy, also, third));
    }
}
