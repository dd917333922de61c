//! Where each stream of a set is in the manifest's list, by name: a table that is filled in slices
//! and dropped at once, however large it is.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use leasehold_types::StreamName;

use crate::desired::Stream;

/// The part of a table that must be free for changes.
const ROOM_PART: usize = 8;

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

    /// Whether the table can be changed into that of another list without a new one: names that
    /// have gone take room until a table is entered anew, and that would be done all at once.
    pub(super) fn has_room(&self) -> bool {
        let room = self.positions.capacity() - self.positions.len();
        room >= self.positions.len() / ROOM_PART
    }

    /// Inserts the stream at this position; of equal names, the last one counts.
    pub(super) fn insert(&mut self, streams: &[Stream], at: usize) {
        let name = |at: u32| &streams[at as usize].name;
        let at = u32::try_from(at).expect("streams are counted in u32");
        let hash = |other: &u32| self.hasher.hash_one(name(*other));
        let is_equal = |other: &u32| name(*other) == name(at);
        self.positions.entry(hash(&at), is_equal, hash).insert(at);
    }

    /// In a copy of the table of another list, which is as long: inserts the stream at this
    /// position in place of the former one. The positions before it are replaced already.
    pub(super) fn replace(&mut self, former: &[Stream], streams: &[Stream], at: usize) {
        let (old, new) = (&former[at].name, &streams[at].name);
        if old == new {
            return;
        }
        let name = |of: u32| {
            let list = if (of as usize) < at { streams } else { former };
            &list[of as usize].name
        };
        let hash = |name: &StreamName| self.hasher.hash_one(name);
        let at = u32::try_from(at).expect("streams are counted in u32");
        // The former stream may have another position by now.
        if let Ok(entry) = self.positions.find_entry(hash(old), |of| *of == at) {
            entry.remove();
        }
        let is_equal = |of: &u32| name(*of) == new;
        self.positions.entry(hash(new), is_equal, |of| hash(name(*of))).insert(at);
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

    #[test]
    fn a_table_is_changed_into_that_of_another_list() {
        let name = |of: usize| StreamName::new(&format!("x-{of}")).expect("a valid name");
        let list = |names: &[usize]| -> Vec<Stream> {
            names.iter().map(|of| Stream { name: name(*of), weight: 1, dedicated: false }).collect()
        };
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1_000 {
            let mut names: Vec<usize> = (0..rng.usize(1..20)).collect();
            let former = list(&names);
            let mut index = PositionIndex::new(&former);
            (0..former.len()).for_each(|at| index.insert(&former, at));
            for new in 0..rng.usize(0..4) {
                let at = rng.usize(0..names.len());
                names[at] = 100 + new;
            }
            let from = rng.usize(0..names.len());
            rng.shuffle(&mut names[from..]);
            let streams = list(&names);
            (0..streams.len()).for_each(|at| index.replace(&former, &streams, at));
            for of in (0..20).chain(100..104) {
                let wanted = names.iter().position(|name| *name == of);
                assert_eq!(index.get(&streams, &name(of)), wanted, "{of} in {names:?}");
            }
        }
    }
}
