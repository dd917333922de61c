//! Where each stream of a set is in the manifest's list, by name: a table that is filled in slices
//! and dropped at once, however large it is.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use leasehold_types::StreamName;

use crate::desired::Stream;

/// Positions in a list, by the names there.
#[derive(Clone, Debug)]
pub(super) struct PositionIndex {
    hasher: RandomState,
    positions: HashTable<u32>,
}

impl PositionIndex {
    /// An empty table for the streams of a list.
    pub(super) fn new(streams: &[Stream]) -> Self {
        let positions = HashTable::with_capacity(streams.len());
        Self { hasher: RandomState::new(), positions }
    }

    /// Inserts the stream at this position; of equal names, the last one counts.
    pub(super) fn insert(&mut self, streams: &[Stream], at: usize) {
        let name = |at: u32| &streams[at as usize].name;
        let at = u32::try_from(at).expect("streams are counted in u32");
        let hash = |other: &u32| self.hasher.hash_one(name(*other));
        let is_equal = |other: &u32| name(*other) == name(at);
        self.positions.entry(hash(&at), is_equal, hash).insert(at);
    }

    /// The position of a stream.
    pub(super) fn get(&self, streams: &[Stream], name: &StreamName) -> Option<usize> {
        let is_it = |at: &u32| streams[*at as usize].name == *name;
        self.positions.find(self.hasher.hash_one(name), is_it).map(|at| *at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_found_where_the_list_has_it() {
        for count in [0, 1, 2, 3, 1_000] {
            let name = |at: usize| StreamName::new(&format!("x-{at}")).expect("a valid name");
            let stream = |at| Stream { name: name(at), weight: 1, dedicated: false };
            let streams: Vec<_> = (0..count).map(stream).collect();
            let mut index = PositionIndex::new(&streams);
            for at in 0..count {
                assert_eq!(index.get(&streams, &name(at)), None);
                index.insert(&streams, at);
            }
            for at in 0..count {
                assert_eq!(index.get(&streams, &name(at)), Some(at));
            }
            assert_eq!(index.get(&streams, &name(count)), None);
        }
    }
}
