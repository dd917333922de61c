//! Room for sessions that have yet to say who they are and to prove it: so many in all, and where
//! peers have to prove themselves so many of one address, so that one peer that says nothing never
//! keeps all others out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_driver::port::UNPROVEN_MAX;

/// Of these, of one address: an eighth. Agents behind one address beyond that dial again.
const UNPROVEN_PER_PEER_MAX: usize = UNPROVEN_MAX / 8;

/// The doors of one port.
#[derive(Debug)]
pub(super) struct UnprovenSessions {
    taken: Mutex<HashMap<Option<IpAddr>, usize>>,
    per_peer_max: usize,
}

/// Room for one session; free again when it is dropped.
#[derive(Debug)]
pub(super) struct UnprovenPermit {
    doors: Arc<UnprovenSessions>,
    peer: Option<IpAddr>,
}

impl UnprovenSessions {
    /// Doors of a port whose peers have to prove who they are, or need not.
    pub(super) fn new(is_guarded: bool) -> Arc<Self> {
        let per_peer_max = if is_guarded { UNPROVEN_PER_PEER_MAX } else { UNPROVEN_MAX };
        Arc::new(Self { taken: Mutex::default(), per_peer_max })
    }

    /// Room for a session of this peer; none where too many wait already.
    pub(super) fn open(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<UnprovenPermit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let of_peer = taken.get(&peer).copied().unwrap_or(0);
        if all >= UNPROVEN_MAX || of_peer >= self.per_peer_max {
            return None;
        }
        taken.insert(peer, of_peer + 1);
        Some(UnprovenPermit { doors: Arc::clone(self), peer })
    }
}

impl Drop for UnprovenPermit {
    fn drop(&mut self) {
        let mut taken = self.doors.taken.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn one_peer_never_has_all_doors_where_peers_prove_themselves() {
        let (noisy, other) = (Some(IpAddr::from([10, 0, 0, 1])), Some(IpAddr::from([10, 0, 0, 2])));
        let doors = UnprovenSessions::new(true);
        let held: Vec<_> = std::iter::from_fn(|| doors.open(noisy)).collect();
        assert_eq!(held.len(), UNPROVEN_PER_PEER_MAX);
        assert!(doors.open(other).is_some());
        drop(held);
        assert!(doors.open(noisy).is_some(), "a door that was left is open again");
        assert!(doors.taken.lock().expect("no panic").is_empty(), "and nothing is kept of it");
    }

    #[test]
    fn all_together_have_so_many() {
        let doors = UnprovenSessions::new(false);
        let held: Vec<_> = std::iter::from_fn(|| doors.open(None)).collect();
        assert_eq!(held.len(), UNPROVEN_MAX);
    }
}
