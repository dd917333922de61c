//! What becomes of an entry that was found in the store, for stores in which a late write of a
//! deposed leader meets the entries of its successor.

use leasehold_types::Epoch;
use leasehold_types::mutation::{self, Mutation};

use super::Change;
use crate::exposure::Entry;

/// What to write in the place of what was found, if that is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// This entry; none where there is to be none.
    Put(Option<Entry>),
    /// It is as it should be.
    Nothing,
    /// A later leader has written or adopted the entry: it is left alone.
    Superseded,
}

/// What a leader of `epoch` writes in place of what it found. A leader that tries again after
/// another's write resolves again, over the entry that it finds then.
#[must_use]
pub fn resolve(found: Option<&Entry>, change: &Change, epoch: Epoch) -> Write {
    let later = found.is_some_and(|found| found.epoch > epoch);
    match change {
        Change::Enter(_, _, exposure) if !later => {
            Write::Put(Some(Entry { epoch, exposure: exposure.clone() }))
        }
        Change::Strike(_) if !later || mutation::on(Mutation::StrikeWithoutEpoch) => match found {
            Some(_) => Write::Put(None),
            None => Write::Nothing,
        },
        Change::Enter(..) | Change::Strike(_) => Write::Superseded,
    }
}
