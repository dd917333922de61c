//! The places of a port's connections. If there is no free one, a new connection takes the place
//! that is kept for the shortest time, of the address that has the most, so that peers that hold
//! connections and do nothing keep nobody out, and peers that open many take places of their own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

/// How long a connection whose last call has ended keeps the place that it takes back, although
/// another one from an address with as many wants it.
const KEPT_AFTER_CALL: Duration = Duration::from_secs(1);

/// The places of one port.
#[derive(Debug)]
pub(crate) struct Places {
    total: usize,
    /// How long a new connection keeps its place in the same way.
    kept_for: Duration,
    state: Mutex<State>,
    /// A waiting connection may get a place earlier than it seemed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    count: usize,
    /// The connections of each address, by their places.
    of_address: HashMap<IpAddr, BTreeMap<PlaceKey, oneshot::Sender<()>>>,
    /// The addresses, in the order in which they give up a place.
    order: BTreeSet<Rank>,
}

/// Orders the places of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceKey {
    /// Until then no other connection takes the place, but one from an address with fewer.
    kept_until: Instant,
    number: u64,
}

/// Orders the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The places that the address has.
    count: Reverse<usize>,
    /// The place of these that is given up next.
    first: PlaceKey,
    address: IpAddr,
}

/// One connection's place; free again on drop.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    key: Mutex<PlaceKey>,
}

/// Resolves to `Ok` when the place is given to another connection, and to an error when it is
/// freed.
pub(crate) type Evicted = oneshot::Receiver<()>;

impl Places {
    pub(crate) fn new(total: usize, kept_for: Duration) -> Arc<Self> {
        Arc::new(Self { total, kept_for, state: Mutex::default(), changed: Notify::new() })
    }

    /// Takes a place for the first of these addresses that gets one. Waits while all places are
    /// taken by connections that keep theirs.
    pub(crate) async fn take(
        self: &Arc<Self>,
        addresses: impl Iterator<Item = IpAddr> + Clone,
    ) -> (Place, Evicted) {
        loop {
            let changed = self.changed.notified();
            match self.try_take(addresses.clone(), self.kept_for, Instant::now()) {
                Ok(taken) => return taken,
                Err(kept_until) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(kept_until) => {}
                },
            }
        }
    }

    /// Takes a place for a connection whose last call has ended, if there is one.
    pub(super) fn take_back(
        self: &Arc<Self>,
        address: IpAddr,
        now: Instant,
    ) -> Option<(Place, Evicted)> {
        let taken = self.try_take(iter::once(address), KEPT_AFTER_CALL, now).ok()?;
        // Its address has one more, which may be given up earlier than all others.
        self.changed.notify_one();
        Some(taken)
    }

    /// Takes a place, which is kept for this time, for the first of these addresses that gets one,
    /// or returns until when the place is kept that is given up next.
    fn try_take(
        self: &Arc<Self>,
        mut addresses: impl Iterator<Item = IpAddr>,
        kept_for: Duration,
        now: Instant,
    ) -> Result<(Place, Evicted), Instant> {
        let mut state = self.state();
        let next = if state.count < self.total { None } else { state.order.first().copied() };
        let address = match next {
            // Thousands may wait where each has one place.
            Some(next) if next.first.kept_until > now && next.count == Reverse(1) => None,
            Some(next) if next.first.kept_until > now => {
                addresses.find(|address| state.count_of(address) + 1 < next.count.0)
            }
            Some(_) | None => addresses.next(),
        };
        match (address, next) {
            (Some(address), next) => {
                if let Some(evict) = next.and_then(|next| state.remove(next.address, next.first)) {
                    // The connection may end by itself now.
                    let _ = evict.send(());
                }
                let (evict, evicted) = oneshot::channel();
                let key = state.insert(address, now + kept_for, evict);
                let places = Arc::clone(self);
                Ok((Place { places, address, key: Mutex::new(key) }, evicted))
            }
            (None, next) => Err(next.map_or(now, |next| next.first.kept_until)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count_of(&self, address: &IpAddr) -> usize {
        self.of_address.get(address).map_or(0, BTreeMap::len)
    }

    fn rank(&self, address: IpAddr) -> Option<Rank> {
        let connections = self.of_address.get(&address)?;
        let (first, _) = connections.first_key_value()?;
        Some(Rank { count: Reverse(connections.len()), first: *first, address })
    }

    /// Changes the connections of an address, and its rank with them.
    fn change<T>(
        &mut self,
        address: IpAddr,
        change: impl FnOnce(&mut BTreeMap<PlaceKey, oneshot::Sender<()>>) -> T,
    ) -> T {
        if let Some(before) = self.rank(address) {
            self.order.remove(&before);
        }
        let connections = self.of_address.entry(address).or_default();
        let count = connections.len();
        let changed = change(connections);
        self.count = self.count - count + connections.len();
        match self.rank(address) {
            Some(rank) => _ = self.order.insert(rank),
            None => _ = self.of_address.remove(&address),
        }
        changed
    }

    fn insert(
        &mut self,
        address: IpAddr,
        kept_until: Instant,
        evict: oneshot::Sender<()>,
    ) -> PlaceKey {
        let key = PlaceKey { kept_until, number: self.next };
        self.next += 1;
        self.change(address, |connections| connections.insert(key, evict));
        key
    }

    fn remove(&mut self, address: IpAddr, key: PlaceKey) -> Option<oneshot::Sender<()>> {
        self.change(address, |connections| connections.remove(&key))
    }
}

impl Place {
    /// The places of which it is one.
    pub(super) fn places(&self) -> Arc<Places> {
        Arc::clone(&self.places)
    }

    /// The address that has it.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Makes the connection the newest, and keeps its place for this time.
    pub(crate) fn keep(&self, time: Duration) {
        let mut key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.places.state();
        if let Some(evict) = state.remove(self.address, *key) {
            *key = state.insert(self.address, Instant::now() + time, evict);
        }
        drop(state);
        self.places.changed.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let key = *self.key.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.places.state().remove(self.address, key);
        self.places.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    const KEPT_FOR: Duration = Duration::from_secs(1);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn take(places: &Arc<Places>, of: u8, now: Instant) -> (Place, Evicted) {
        places.try_take([address(of)].into_iter(), KEPT_FOR, now).expect("a place")
    }

    #[tokio::test]
    async fn a_new_connection_takes_the_place_of_the_oldest_that_does_not_keep_it() {
        let (places, now) = (Places::new(3, KEPT_FOR), Instant::now());
        let (first, mut first_evicted) = take(&places, 1, now);
        let (_second, mut second_evicted) = take(&places, 1, now);
        let _third = take(&places, 1, now);
        let kept = places.try_take([address(1)].into_iter(), KEPT_FOR, now);
        assert_eq!(kept.expect_err("none is old"), now + KEPT_FOR);
        first.keep(KEPT_FOR);
        let _fourth = take(&places, 1, now + KEPT_FOR);
        assert_eq!(first_evicted.try_recv(), Err(TryRecvError::Empty), "it is newer now");
        assert_eq!(second_evicted.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn a_place_that_is_kept_for_long_keeps_no_younger_one() {
        let (places, now) = (Places::new(2, KEPT_FOR), Instant::now());
        let (first, mut first_evicted) = take(&places, 1, now);
        first.keep(100 * KEPT_FOR);
        let (_second, mut second_evicted) = take(&places, 1, now);
        let _third = take(&places, 1, now + KEPT_FOR);
        assert_eq!(first_evicted.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(second_evicted.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn a_place_that_is_kept_for_long_keeps_none_of_another_address() {
        let (places, now) = (Places::new(2, KEPT_FOR), Instant::now());
        let (first, mut first_evicted) = take(&places, 1, now);
        first.keep(100 * KEPT_FOR);
        let (_second, mut second_evicted) = take(&places, 2, now);
        let _third = take(&places, 3, now + KEPT_FOR);
        assert_eq!(first_evicted.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(second_evicted.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn an_address_that_opens_many_connections_ends_its_own() {
        let (places, now) = (Places::new(3, KEPT_FOR), Instant::now());
        let (_other, mut other_evicted) = take(&places, 1, now);
        let mut many: Vec<_> = (0..2).map(|_| take(&places, 2, now)).collect();
        for round in 1..10 {
            // The other connection is the oldest, and is not kept any more.
            many.push(take(&places, 2, now + KEPT_FOR * round));
        }
        assert_eq!(other_evicted.try_recv(), Err(TryRecvError::Empty));
        let ended = many.iter_mut().filter_map(|(_, evicted)| evicted.try_recv().ok());
        assert_eq!(ended.count(), 9);
    }

    #[tokio::test]
    async fn an_address_with_fewer_places_waits_for_none_that_another_keeps() {
        let (places, now) = (Places::new(3, KEPT_FOR), Instant::now());
        let mut many: Vec<_> = (0..3).map(|_| take(&places, 1, now)).collect();
        let waiting = [address(1), address(2)];
        let (place, _) = places.try_take(waiting.into_iter(), KEPT_FOR, now).expect("a place");
        assert_eq!(place.address(), address(2), "the first in turn has the most");
        assert_eq!(many[0].1.try_recv(), Ok(()));
        // Of two addresses with as many, none takes a kept one of the other.
        let kept = places.try_take(waiting.into_iter(), KEPT_FOR, now);
        assert_eq!(kept.expect_err("all are kept"), now + KEPT_FOR);
    }

    #[tokio::test]
    async fn a_freed_place_goes_to_the_next_and_leaves_nothing_behind() {
        let places = Places::new(1, KEPT_FOR);
        let waiting = std::iter::once(address(1));
        let (place, evicted) = places.take(waiting.clone()).await;
        let next = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(waiting).await }
        });
        tokio::task::yield_now().await;
        drop(place);
        assert!(evicted.await.is_err(), "it was freed, not evicted");
        drop(next.await.expect("no panic"));
        let state = places.state();
        assert!(state.of_address.is_empty() && state.order.is_empty(), "{state:?}");
        assert_eq!(state.count, 0);
    }

    #[tokio::test]
    async fn a_place_that_is_kept_no_longer_goes_to_the_one_that_waits() {
        let places = Places::new(1, Duration::from_secs(3_600));
        let (first, _first_evicted) = places.take(std::iter::once(address(1))).await;
        let next = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(std::iter::once(address(2))).await }
        });
        tokio::task::yield_now().await;
        first.keep(Duration::ZERO);
        let (place, _) = next.await.expect("no panic");
        assert_eq!(place.address(), address(2));
    }
}
