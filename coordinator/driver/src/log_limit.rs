//! Which log lines are written about what others do, so that a flood of it does not flood the log.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
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

    /// Whether a line about this key is allowed now, without counting one.
    pub fn has_room(&self, key: &K) -> bool {
        self.has_room_at(key, Instant::now())
    }

    fn allows_at(&self, key: K, now: Instant) -> bool {
        let mut written = self.recent(now);
        let is_allowed = self.has_room_beside(&written, &key);
        if is_allowed {
            written.entry(key).or_insert(Lines { since: now, count: 0 }).count += 1;
        }
        is_allowed
    }

    fn has_room_at(&self, key: &K, now: Instant) -> bool {
        self.has_room_beside(&self.recent(now), key)
    }

    fn has_room_beside(&self, written: &HashMap<K, Lines>, key: &K) -> bool {
        let all: usize = written.values().map(|lines| lines.count).sum();
        let own = written.get(key).map_or(0, |lines| lines.count);
        all < self.total && own < self.per_key
    }

    /// The lines that count at `now`.
    fn recent(&self, now: Instant) -> MutexGuard<'_, HashMap<K, Lines>> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.retain(|_, lines| now.duration_since(lines.since) < INTERVAL);
        written
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

    #[test]
    fn whether_there_is_room_counts_no_line() {
        let (limit, start) = (LogLimit::new(1, 2), Instant::now());
        let has_room = |key| (0..9).all(|_| limit.has_room_at(&key, start));
        assert!(has_room("ada"));
        assert!(limit.allows_at("ada", start));
        assert!(!has_room("ada") && has_room("bob"));
        assert!(limit.allows_at("bob", start));
        assert!(!has_room("eve"), "all have two lines together");
        assert!(limit.has_room_at(&"ada", start + INTERVAL));
    }
}
