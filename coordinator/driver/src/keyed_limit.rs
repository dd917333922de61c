//! A limit in total and per key, so that one peer, user or pod never keeps all others out.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts permits, in total and per key.
#[derive(Debug)]
pub struct KeyedLimit<K: Hash + Eq> {
    taken: Mutex<Taken<K>>,
    total: usize,
    per_key: usize,
}

#[derive(Debug)]
struct Taken<K> {
    all: usize,
    of: HashMap<K, usize>,
}

/// A permit; free again on drop.
#[derive(Debug)]
pub struct KeyedPermit<K: Hash + Eq> {
    limit: Arc<KeyedLimit<K>>,
    key: K,
}

impl<K: Hash + Eq + Clone> KeyedLimit<K> {
    /// At most `total` permits, and `per_key` of one key.
    #[must_use]
    pub fn new(total: usize, per_key: usize) -> Arc<Self> {
        let taken = Mutex::new(Taken { all: 0, of: HashMap::new() });
        Arc::new(Self { taken, total, per_key })
    }

    /// A permit for this key; `None` if a limit is reached.
    pub fn take(self: &Arc<Self>, key: K) -> Option<KeyedPermit<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.of.get(&key).copied().unwrap_or(0);
        if taken.all >= self.total || own >= self.per_key {
            return None;
        }
        taken.all += 1;
        taken.of.insert(key.clone(), own + 1);
        Some(KeyedPermit { limit: Arc::clone(self), key })
    }
}

impl<K: Hash + Eq> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        let mut taken = self.limit.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(own) = taken.of.get_mut(&self.key) {
            *own -= 1;
            if *own == 0 {
                taken.of.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_never_gets_all_permits() {
        let limit = KeyedLimit::new(8, 4);
        let held: Vec<_> = std::iter::from_fn(|| limit.take("noisy")).collect();
        assert_eq!(held.len(), 4);
        assert!(limit.take("other").is_some());
        drop(held);
        assert!(limit.take("noisy").is_some(), "a released permit is available again");
        assert!(
            limit.taken.lock().expect("the lock is not poisoned").of.is_empty(),
            "released permits leave no entry"
        );
    }

    #[test]
    fn the_total_is_limited() {
        let limit = KeyedLimit::new(8, 8);
        let held: Vec<_> = (0..100).filter_map(|key| limit.take(key)).collect();
        assert_eq!(held.len(), 8);
    }
}
