//! Finds the slot of a stream's claims by hash. A table that grows is rehashed whole, so there are
//! many small tables: no single insertion waits for a large rehash.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use leasehold_types::StreamKey;

/// The most streams in a single table.
const FEW: usize = 1_024;
/// The number of tables that replace it. A table has room for 448 streams before it doubles: of
/// 1,000,000 streams nearly every table has fewer.
const TABLES: usize = 2_560;

/// The slot of every stream with claims. The index keeps hashes only: the caller compares the
/// stream in a slot with the one that it looks for.
#[derive(Clone, Debug)]
pub(super) struct ClaimIndex {
    /// One table, and [`TABLES`] once there are more than a few streams.
    tables: Vec<HashTable<IndexEntry>>,
    hasher: RandomState,
}

/// A slot, and the hash of the stream there.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    hash: u32,
    slot: u32,
}

impl Default for ClaimIndex {
    fn default() -> Self {
        Self { tables: vec![HashTable::new()], hasher: RandomState::new() }
    }
}

impl ClaimIndex {
    /// The hash by which a stream's slot is looked up.
    pub(super) fn hash(&self, stream: &StreamKey) -> u32 {
        self.hasher.hash_one(stream) as u32
    }

    /// The slot with this hash for which `is_right` holds.
    pub(super) fn get(&self, hash: u32, is_right: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.tables[self.table(hash)]
            .find(spread(hash), |entry| entry.hash == hash && is_right(entry.slot));
        found.map(|entry| entry.slot)
    }

    /// Inserts a slot that is not in the index yet.
    pub(super) fn insert(&mut self, hash: u32, slot: u32) {
        if self.tables.len() == 1 && self.tables[0].len() == FEW {
            let few = std::mem::take(&mut self.tables[0]);
            self.tables.resize_with(TABLES, HashTable::new);
            for entry in few {
                self.enter(entry);
            }
        }
        self.enter(IndexEntry { hash, slot });
    }

    pub(super) fn remove(&mut self, hash: u32, slot: u32) {
        let table = self.table(hash);
        if let Ok(entry) = self.tables[table].find_entry(spread(hash), |entry| entry.slot == slot) {
            entry.remove();
        }
    }

    fn enter(&mut self, entry: IndexEntry) {
        let table = self.table(entry.hash);
        self.tables[table].insert_unique(spread(entry.hash), entry, |entry| spread(entry.hash));
    }

    /// The highest bits choose the table.
    fn table(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.tables.len() as u64) >> u32::BITS) as usize
    }
}

/// A hash as a table takes it: the lowest and the highest bits distinguish its entries. They are
/// the lowest bits of `hash` and those in its middle, which have not chosen the table.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 43 | u64::from(hash)
}

#[cfg(test)]
mod tests {
    use leasehold_types::{SetName, StreamName};

    use super::*;

    #[test]
    fn a_stream_is_found_however_many_there_are() {
        let set = SetName::new("s").expect("a valid name");
        let stream = |at: usize| {
            let stream = StreamName::new(&format!("x-{at}")).expect("a valid name");
            StreamKey { set: set.clone(), stream }
        };
        let mut index = ClaimIndex::default();
        let all = 3 * FEW;
        let find = |index: &ClaimIndex, at: usize| {
            index.get(index.hash(&stream(at)), |slot| slot as usize == at)
        };
        for at in 0..all {
            assert_eq!(find(&index, at), None);
            index.insert(index.hash(&stream(at)), at as u32);
        }
        for at in (0..all).step_by(2) {
            index.remove(index.hash(&stream(at)), at as u32);
        }
        for at in 0..all {
            assert_eq!(find(&index, at), (at % 2 == 1).then_some(at as u32));
        }
    }

    #[test]
    fn streams_with_the_same_hash_are_distinguished() {
        let mut index = ClaimIndex::default();
        index.insert(7, 1);
        index.insert(7, 2);
        assert_eq!(index.get(7, |slot| slot == 2), Some(2));
        index.remove(7, 1);
        assert_eq!(index.get(7, |slot| slot == 1), None);
        assert_eq!(index.get(7, |slot| slot == 2), Some(2));
    }
}
