//! In which slot the claims on a stream are, by hash. A table that grows is filled anew: there are
//! many small ones, so that no single claim waits for a large one.

use std::hash::{BuildHasher, RandomState};

use leasehold_types::StreamKey;

/// The streams of a first table that stands alone.
const FEW: usize = 1_024;
/// So many tables take its place.
const TABLES: usize = 2_048;

#[expect(clippy::disallowed_types, reason = "looked up, never walked: no order is seen")]
type Table = std::collections::HashMap<StreamKey, u32>;

/// The slots of all streams with claims.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimIndex {
    /// All streams, up to [`FEW`] of them.
    few: Table,
    /// All streams, once there are more; empty before that.
    many: Vec<Table>,
    /// Chooses the table of `many` that a stream is in.
    hasher: RandomState,
}

impl ClaimIndex {
    pub(super) fn get(&self, stream: &StreamKey) -> Option<u32> {
        let table = if self.many.is_empty() { &self.few } else { &self.many[self.table(stream)] };
        table.get(stream).copied()
    }

    pub(super) fn insert(&mut self, stream: StreamKey, slot: u32) {
        if self.many.is_empty() && self.few.len() == FEW {
            self.many.resize_with(TABLES, Table::default);
            for (stream, slot) in std::mem::take(&mut self.few) {
                self.table_mut(&stream).insert(stream, slot);
            }
        }
        self.table_mut(&stream).insert(stream, slot);
    }

    pub(super) fn remove(&mut self, stream: &StreamKey) {
        self.table_mut(stream).remove(stream);
    }

    fn table(&self, stream: &StreamKey) -> usize {
        self.hasher.hash_one(stream) as usize % TABLES
    }

    fn table_mut(&mut self, stream: &StreamKey) -> &mut Table {
        if self.many.is_empty() {
            return &mut self.few;
        }
        let table = self.table(stream);
        &mut self.many[table]
    }
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
        for at in 0..all {
            assert_eq!(index.get(&stream(at)), None);
            index.insert(stream(at), at as u32);
        }
        for at in (0..all).step_by(2) {
            index.remove(&stream(at));
        }
        for at in 0..all {
            assert_eq!(index.get(&stream(at)), (at % 2 == 1).then_some(at as u32));
        }
    }
}
