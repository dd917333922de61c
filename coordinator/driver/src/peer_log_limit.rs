//! Which log lines about peers are written, so that a flood of connections or calls does not flood
//! the log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most lines within [`INTERVAL`], over all peers.
const PEERS_MAX: usize = 64;
/// There is at most one line about a peer in this time.
const INTERVAL: Duration = Duration::from_secs(60);

/// The peers of recent lines; `None` stands for all that have no address.
#[derive(Debug, Default)]
pub struct PeerLogLimit(Mutex<HashMap<Option<IpAddr>, Instant>>);

impl PeerLogLimit {
    /// Whether to write a line about this peer now. The caller writes it for debugging if not.
    pub fn allows(&self, peer: Option<IpAddr>) -> bool {
        self.allows_at(peer, Instant::now())
    }

    fn allows_at(&self, peer: Option<IpAddr>, now: Instant) -> bool {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|_, written| now.duration_since(*written) < INTERVAL);
        if peers.contains_key(&peer) || peers.len() >= PEERS_MAX {
            return false;
        }
        peers.insert(peer, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_peer_and_in_total() {
        let limit = PeerLogLimit::default();
        let start = Instant::now();
        let peer = |last: u8| Some(IpAddr::from([127, 0, 0, last]));
        assert!(limit.allows_at(peer(1), start));
        assert!(!limit.allows_at(peer(1), start));
        let count = (2..200).filter(|last| limit.allows_at(peer(*last), start)).count();
        assert_eq!(count, PEERS_MAX - 1);
        assert!(limit.allows_at(peer(1), start + INTERVAL));
    }
}
