//! Which log lines are written about what others do, so that a flood of it does not flood the log.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time in which lines are counted.
const INTERVAL: Duration = Duration::from_secs(60);
/// The most lines in this time over all keys, unless given.
const LINES_MAX: usize = 64;

/// The lines about each key, for example a peer's address.
#[derive(Debug)]
pub struct LogLimit<K> {
    written: Mutex<HashMap<K, Lines>>,
    per_key: usize,
    total: usize,
}

/// The lines about peers; `None` stands for all that have no address.
pub type PeerLogLimit = LogLimit<Option<IpAddr>>;

/// The lines about one key.
#[derive(Debug)]
struct Lines {
    since: Instant,
    count: usize,
}

impl<K> LogLimit<K> {
    /// At most `per_key` lines a minute about one key, and `total` about all of them.
    #[must_use]
    pub fn new(per_key: usize, total: usize) -> Self {
        Self { written: Mutex::new(HashMap::new()), per_key, total }
    }
}

impl<K> Default for LogLimit<K> {
    /// At most one line a minute about one key, and 64 about all of them.
    fn default() -> Self {
        Self::new(1, LINES_MAX)
    }
}

impl<K: Hash + Eq> LogLimit<K> {
    /// Whether to write a line about this key now. The caller writes it for debugging if not.
    pub fn allows(&self, key: K) -> bool {
        self.allows_at(key, Instant::now())
    }

    fn allows_at(&self, key: K, now: Instant) -> bool {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.retain(|_, lines| now.duration_since(lines.since) < INTERVAL);
        if written.values().map(|lines| lines.count).sum::<usize>() >= self.total {
            return false;
        }
        let lines = written.entry(key).or_insert(Lines { since: now, count: 0 });
        let is_allowed = lines.count < self.per_key;
        lines.count += usize::from(is_allowed);
        is_allowed
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
        assert_eq!(count, LINES_MAX - 1);
        assert!(limit.allows_at(peer(1), start + INTERVAL));
    }

    #[test]
    fn a_key_may_have_several_lines() {
        let (limit, start) = (LogLimit::new(3, 5), Instant::now());
        let lines = |key| (0..9).filter(|_| limit.allows_at(key, start)).count();
        assert_eq!([lines("ada"), lines("bob"), lines("eve")], [3, 2, 0]);
    }
}
