//! The requests that a port reads at a time. Their peers have not proven anything yet, so a place
//! belongs to nobody: if all are taken, a new request takes the place of the oldest one from the
//! address that has the most. A request is read in milliseconds, so that one is of a peer that
//! begins many and completes none.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;

use crate::connections::Peer;

/// Why a request lost its place.
pub(crate) const EVICTED: &str =
    "too many requests at a time, and this address has the most of them: try again";

/// The places of one port.
#[derive(Debug)]
pub(crate) struct RequestPlaces {
    total: usize,
    state: Mutex<Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    next: u64,
    count: usize,
    /// Of each address, and of peers without one; the first is the oldest.
    of_address: HashMap<Option<IpAddr>, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// One request's place; free again on drop.
#[derive(Debug)]
pub(crate) struct RequestPlace {
    places: Arc<RequestPlaces>,
    address: Option<IpAddr>,
    number: u64,
}

impl RequestPlaces {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, state: Mutex::default() })
    }

    /// Takes a place. The receiver resolves to `Ok` when it is given to another request.
    pub(crate) fn take(
        self: &Arc<Self>,
        address: Option<IpAddr>,
    ) -> (RequestPlace, oneshot::Receiver<()>) {
        let mut requests = self.requests();
        if requests.count >= self.total {
            requests.evict();
        }
        let (evict, evicted) = oneshot::channel();
        let number = requests.next;
        requests.next += 1;
        requests.count += 1;
        requests.of_address.entry(address).or_default().insert(number, evict);
        (RequestPlace { places: Arc::clone(self), address, number }, evicted)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    /// Ends the oldest request of the address that has the most.
    fn evict(&mut self) {
        let most = self.of_address.iter().max_by_key(|(_, requests)| requests.len());
        let Some((address, number)) =
            most.and_then(|(address, requests)| Some((*address, *requests.first_key_value()?.0)))
        else {
            return;
        };
        if let Some(evict) = self.remove(address, number) {
            // The request may end by itself now.
            let _ = evict.send(());
        }
    }

    fn remove(&mut self, address: Option<IpAddr>, number: u64) -> Option<oneshot::Sender<()>> {
        let requests = self.of_address.get_mut(&address)?;
        let removed = requests.remove(&number)?;
        self.count -= 1;
        if requests.is_empty() {
            self.of_address.remove(&address);
        }
        Some(removed)
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.places.requests().remove(self.address, self.number);
    }
}

/// Answers a request in a place of its own.
pub(crate) async fn in_place(
    State(places): State<Arc<RequestPlaces>>,
    request: Request,
    next: Next,
) -> Response {
    let address = Peer::of(request.extensions()).map(|peer| peer.address().ip());
    let (_place, evicted) = places.take(address);
    tokio::select! {
        answer = next.run(request) => answer,
        Ok(()) = evicted => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{EVICTED}\n")).into_response()
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn a_new_request_takes_the_oldest_place_of_the_address_with_the_most() {
        let places = RequestPlaces::new(4);
        let (_lone, mut lone) = places.take(address(1));
        let mut busy: Vec<_> = (0..3).map(|_| places.take(address(2))).collect();
        let (_new, mut new) = places.take(address(3));
        assert_eq!(busy[0].1.try_recv(), Ok(()));
        assert_eq!(busy[1].1.try_recv(), Err(TryRecvError::Empty));
        let (_another, _) = places.take(address(1));
        assert_eq!(busy[1].1.try_recv(), Ok(()));
        for kept in [&mut lone, &mut new] {
            assert_eq!(kept.try_recv(), Err(TryRecvError::Empty));
        }
    }

    #[test]
    fn freed_places_leave_nothing_behind() {
        let places = RequestPlaces::new(2);
        let taken: Vec<_> = (0..5).map(|last| places.take(address(last))).collect();
        assert_eq!(places.requests().count, 2);
        drop(taken);
        let requests = places.requests();
        assert_eq!((requests.count, requests.of_address.len()), (0, 0));
    }
}
