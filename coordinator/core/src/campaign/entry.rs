//! Changes of entries, and how a change applies to the entry that the store has: a late write of a
//! deposed leader must not replace the entries of its successor.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Epoch, WorkerKey};

use crate::exposure::{AccountId, Entry, Exposure};

/// The version of the stored object that holds an entry; later versions are larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryVersion(pub u64);

/// A change of one worker's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// The worker may hold this much, by this account.
    Register(WorkerKey, AccountId, Exposure),
    /// The worker holds nothing.
    Unregister(WorkerKey),
}

impl EntryChange {
    /// The worker.
    #[must_use]
    pub fn key(&self) -> &WorkerKey {
        match self {
            Self::Register(key, ..) | Self::Unregister(key) => key,
        }
    }
}

/// A change that is to be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryAttempt {
    /// The change.
    pub change: EntryChange,
    /// An entry that cannot be read may be replaced up to this version: leadership was renewed
    /// after it was read.
    pub confirmed: EntryVersion,
}

/// What to write in place of the entry that was found, if it is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryWrite {
    /// Write this entry; none removes the entry.
    Put(Option<Entry>),
    /// The store already has the wanted state.
    Nothing,
    /// A later leader has written or adopted the entry: it is left alone.
    Superseded,
    /// It cannot be read, so a later leader may have written it.
    Unreadable,
}

/// What a leader of `epoch` writes in place of the entry that it found. After a conflicting write
/// the leader resolves again with the entry that it finds then.
///
/// An unreadable entry does not show who wrote it. But a leader whose term was renewed after the
/// entry was read knows that no later leader wrote it.
#[must_use]
pub fn resolve(
    found: Option<&Entry>,
    version: EntryVersion,
    attempt: &EntryAttempt,
    epoch: Epoch,
) -> EntryWrite {
    let unreadable = found.is_some_and(|found| found.is_unreadable());
    let overwrites = mutation::on(Mutation::UnreadableOverwritten);
    if unreadable && version > attempt.confirmed && !overwrites {
        return EntryWrite::Unreadable;
    }
    let later = found.is_some_and(|found| found.epoch > epoch);
    match &attempt.change {
        EntryChange::Register(_, _, exposure) if !later => {
            EntryWrite::Put(Some(Entry { epoch, exposure: exposure.clone() }))
        }
        EntryChange::Unregister(_) if !later || mutation::on(Mutation::UnregisterWithoutEpoch) => {
            match found {
                Some(_) => EntryWrite::Put(None),
                None => EntryWrite::Nothing,
            }
        }
        EntryChange::Register(..) | EntryChange::Unregister(_) => EntryWrite::Superseded,
    }
}
