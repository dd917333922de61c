//! Where each stream of a set is in the manifest's list, by name: a table that is filled in slices
//! and dropped at once, however large it is.

use std::hash::{BuildHasher, RandomState};

use leasehold_types::StreamName;

use crate::desired::Stream;

/// A slot that nothing is in.
const FREE: u32 = u32::MAX;

/// Positions in a list by the hashes of the names there. Invariant: at least half of the slots are
/// free, so that a search comes to an end soon.
#[derive(Clone, Debug)]
pub(super) struct PositionIndex {
    hasher: RandomState,
    slots: Vec<u32>,
}

impl PositionIndex {
    /// An empty table for the streams of a list.
    pub(super) fn new(streams: &[Stream]) -> Self {
        let slots = (2 * streams.len()).next_power_of_two();
        Self { hasher: RandomState::new(), slots: vec![FREE; slots] }
    }

    /// Inserts the stream at this position; of equal names, the last one counts.
    pub(super) fn insert(&mut self, streams: &[Stream], at: usize) {
        let slot = self.slot(streams, &streams[at].name);
        self.slots[slot] = u32::try_from(at).expect("streams are counted in u32");
    }

    /// The position of a stream.
    pub(super) fn get(&self, streams: &[Stream], name: &StreamName) -> Option<usize> {
        let at = self.slots[self.slot(streams, name)];
        (at != FREE).then_some(at as usize)
    }

    /// The slot that a name is in, or would be.
    fn slot(&self, streams: &[Stream], name: &StreamName) -> usize {
        let mask = self.slots.len() - 1;
        let first = self.hasher.hash_one(name) as usize;
        let slots = (0..=mask).map(|step| first.wrapping_add(step) & mask);
        let mut fitting = slots.filter(|slot| {
            let at = self.slots[*slot];
            at == FREE || streams[at as usize].name == *name
        });
        fitting.next().expect("half of the slots are free")
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
