//! Waiting keys that are served in turn.

use std::collections::BTreeSet;
use std::ops::Bound;

/// The waiting keys, in order, and the last one taken. Invariant: no key is taken twice before
/// every key that waited meanwhile was taken once.
#[derive(Clone, Debug)]
pub(super) struct RoundRobin<K> {
    waiting: BTreeSet<K>,
    after: Option<K>,
}

impl<K> Default for RoundRobin<K> {
    fn default() -> Self {
        Self { waiting: BTreeSet::new(), after: None }
    }
}

impl<K: Clone + Ord> RoundRobin<K> {
    pub(super) fn insert(&mut self, key: K) {
        self.waiting.insert(key);
    }

    pub(super) fn extend(&mut self, keys: impl IntoIterator<Item = K>) {
        self.waiting.extend(keys);
    }

    pub(super) fn remove(&mut self, key: &K) {
        self.waiting.remove(key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Option<K> {
        self.take(1).pop()
    }

    /// The next keys, at most `most`. Where nothing waits, the order starts again at the first key.
    pub(super) fn take(&mut self, most: usize) -> Vec<K> {
        let after = self.after.take();
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.waiting.range((from, Bound::Unbounded));
        let mut keys: Vec<_> = behind.take(most).cloned().collect();
        if let Some(after) = &after {
            let rest = self.waiting.range(..=after).take(most - keys.len());
            keys.extend(rest.cloned());
        }
        for key in &keys {
            self.waiting.remove(key);
        }
        self.after = keys.last().cloned();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_taken_once_before_any_is_taken_twice() {
        let mut turns = RoundRobin::default();
        turns.extend(0..5);
        assert_eq!(turns.take(2), [0, 1]);
        turns.extend([0, 1]);
        assert_eq!(turns.take(2), [2, 3]);
        assert_eq!(turns.take(9), [4, 0, 1]);
        assert!(turns.is_empty());
        assert_eq!(turns.next(), None);
        turns.extend([0, 3]);
        assert_eq!(turns.next(), Some(0), "nothing has waited: it starts again at the first key");
        turns.extend([0]);
        assert_eq!(turns.next(), Some(3), "it continues after the last one");
    }
}
