//! A map whose values are found by a hash of their key and listed in the order of the keys. A
//! search tree compares names at each of its levels, and a leader looks each worker up several
//! times for every message.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::RangeBounds;

use hashbrown::HashTable;

/// What holds for every slot that an index has.
const IN_USE: &str = "an indexed slot is in use";

/// A map from keys that are cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct OrderedTable<K, V> {
    slots: Vec<Option<(K, V)>>,
    /// The slots without a value.
    free: Vec<usize>,
    /// The slot of each key, by the hash of the key.
    by_hash: HashTable<usize>,
    /// The slot of each key, in order.
    in_order: BTreeMap<K, usize>,
    hasher: RandomState,
}

impl<K, V> Default for OrderedTable<K, V> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_hash: HashTable::new(),
            in_order: BTreeMap::new(),
            hasher: RandomState::new(),
        }
    }
}

impl<K: Clone + Ord + Hash, V> OrderedTable<K, V> {
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    pub(crate) fn get_key_value<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (key, value) = self.slots[self.slot(key)?].as_ref()?;
        Some((key, value))
    }

    pub(crate) fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let slot = self.slot(key)?;
        self.slots[slot].as_mut().map(|(_, value)| value)
    }

    /// Inserts a value, or replaces that of an equal key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.get_mut(&key) {
            Some(present) => *present = value,
            None => _ = self.insert_new(key, value),
        }
    }

    /// The value of a key. A key without one gets `new`.
    pub(crate) fn get_or_insert_with(&mut self, key: &K, new: impl FnOnce() -> V) -> &mut V {
        let slot = self.slot(key).unwrap_or_else(|| self.insert_new(key.clone(), new()));
        &mut self.slots[slot].as_mut().expect(IN_USE).1
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + Ord + ?Sized,
    {
        let slot = self.slot(key)?;
        let hash = self.hasher.hash_one(key);
        let indexed = self.by_hash.find_entry(hash, |other| *other == slot);
        indexed.expect("every slot in use is indexed").remove();
        self.in_order.remove(key);
        self.free.push(slot);
        self.slots[slot].take().map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// The keys, in order.
    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.in_order.keys()
    }

    /// The values, in the order of their keys.
    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The keys and their values, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.in_order.iter().map(|(key, slot)| (key, self.value(*slot)))
    }

    /// Those of a part of the keys.
    pub(crate) fn range<Q>(
        &self,
        range: impl RangeBounds<Q>,
    ) -> impl DoubleEndedIterator<Item = (&K, &V)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.in_order.range(range).map(|(key, slot)| (key, self.value(*slot)))
    }

    fn value(&self, slot: usize) -> &V {
        &self.slots[slot].as_ref().expect(IN_USE).1
    }

    fn slot<Q>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let has_key = |slot: &usize| self.slots[*slot].as_ref().expect(IN_USE).0.borrow() == key;
        self.by_hash.find(self.hasher.hash_one(key), has_key).copied()
    }

    /// Inserts a key that is not in the table. Returns its slot.
    fn insert_new(&mut self, key: K, value: V) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let Self { slots, by_hash, in_order, hasher, .. } = self;
        in_order.insert(key.clone(), slot);
        let hash = hasher.hash_one(&key);
        slots[slot] = Some((key, value));
        by_hash.insert_unique(hash, slot, |slot| {
            hasher.hash_one(&slots[*slot].as_ref().expect(IN_USE).0)
        });
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A table holds what a search tree holds, whatever is done to both.
    #[test]
    fn a_table_holds_what_an_ordered_map_holds() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut table, mut map) = (OrderedTable::default(), BTreeMap::new());
        for step in 0..20_000 {
            let key: Arc<String> = Arc::new(format!("w-{}", rng.u32(0..300)));
            match rng.u32(0..4) {
                0 => {
                    table.insert(Arc::clone(&key), step);
                    map.insert(Arc::clone(&key), step);
                }
                1 => {
                    let value = *table.get_or_insert_with(&key, || step);
                    assert_eq!(value, *map.entry(Arc::clone(&key)).or_insert(step));
                }
                2 => assert_eq!(table.remove(&*key), map.remove(&key)),
                _ => {
                    let value = table.get_mut(&*key).map(|value| std::mem::replace(value, step));
                    assert_eq!(value, map.get_mut(&key).map(|at| std::mem::replace(at, step)));
                }
            }
            assert_eq!(table.get(&*key), map.get(&key));
            assert_eq!((table.len(), table.is_empty()), (map.len(), map.is_empty()));
        }
        assert!(table.iter().eq(map.iter()));
        assert!(table.keys().eq(map.keys()) && table.values().eq(map.values()));
        let from = "w-2".to_owned();
        assert!(table.range::<String>(from.clone()..).eq(map.range::<String, _>(from..)));
        assert!(table.slots.len() <= 300, "slots are used again");
        let copy = table.clone();
        assert!(copy.iter().all(|(key, value)| copy.get(&**key) == Some(value)));
    }
}
