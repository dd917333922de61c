//! Limits the sessions that are not yet authenticated: in total and, if peers must authenticate,
//! per address, so that one silent peer never keeps all others out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_driver::port::UNPROVEN_MAX;

/// The most from one address. Further agents behind one address dial again.
const UNPROVEN_PER_PEER_MAX: usize = UNPROVEN_MAX / 8;

/// Counts the unauthenticated sessions of one port.
#[derive(Debug)]
pub(super) struct UnprovenSessions {
    taken: Mutex<HashMap<Option<IpAddr>, usize>>,
    per_peer_max: usize,
}

/// The permit of one session; released on drop.
#[derive(Debug)]
pub(super) struct UnprovenPermit {
    sessions: Arc<UnprovenSessions>,
    peer: Option<IpAddr>,
}

impl UnprovenSessions {
    /// The limits of a port whose peers must authenticate, or need not.
    pub(super) fn new(authenticates: bool) -> Arc<Self> {
        let per_peer_max = if authenticates { UNPROVEN_PER_PEER_MAX } else { UNPROVEN_MAX };
        Arc::new(Self { taken: Mutex::default(), per_peer_max })
    }

    /// A permit for a session of this peer; `None` if a limit is reached.
    pub(super) fn open(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<UnprovenPermit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let of_peer = taken.get(&peer).copied().unwrap_or(0);
        if all >= UNPROVEN_MAX || of_peer >= self.per_peer_max {
            return None;
        }
        taken.insert(peer, of_peer + 1);
        Some(UnprovenPermit { sessions: Arc::clone(self), peer })
    }
}

impl Drop for UnprovenPermit {
    fn drop(&mut self) {
        let mut taken = self.sessions.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = taken.get(&self.peer).map_or(0, |taken| taken - 1);
        match left {
            0 => drop(taken.remove(&self.peer)),
            left => drop(taken.insert(self.peer, left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_never_gets_all_permits_if_peers_must_authenticate() {
        let (noisy, other) = (Some(IpAddr::from([10, 0, 0, 1])), Some(IpAddr::from([10, 0, 0, 2])));
        let sessions = UnprovenSessions::new(true);
        let held: Vec<_> = std::iter::from_fn(|| sessions.open(noisy)).collect();
        assert_eq!(held.len(), UNPROVEN_PER_PEER_MAX);
        assert!(sessions.open(other).is_some());
        drop(held);
        assert!(sessions.open(noisy).is_some(), "a released permit is available again");
        assert!(
            sessions.taken.lock().expect("the lock is not poisoned").is_empty(),
            "released permits leave no entry"
        );
    }

    #[test]
    fn the_total_is_limited() {
        let sessions = UnprovenSessions::new(false);
        let held: Vec<_> = std::iter::from_fn(|| sessions.open(None)).collect();
        assert_eq!(held.len(), UNPROVEN_MAX);
    }
}
