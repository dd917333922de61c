//! Copies of the stores, and what is lost where one is put back.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_types::{Epoch, WorkerKey};

use super::Store;

/// A copy of both stores.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    epoch: Epoch,
    owner: Option<usize>,
    register: BTreeMap<WorkerKey, Option<Entry>>,
    written_by: BTreeMap<WorkerKey, Epoch>,
    log: Epoch,
    revision: Epoch,
}

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestoredPart {
    /// The store of terms alone: the other one still shows the numbers of later terms.
    Terms,
    /// The store of entries alone.
    Entries,
    /// Both, so that numbers of terms come again.
    Both,
}

impl RestoredPart {
    /// Whether terms are put back.
    pub(crate) fn has_terms(self) -> bool {
        matches!(self, Self::Terms | Self::Both)
    }

    fn has_entries(self) -> bool {
        matches!(self, Self::Entries | Self::Both)
    }
}

impl Store {
    /// Copies both stores.
    pub(crate) fn back_up(&self) -> Backup {
        Backup {
            epoch: self.epoch,
            owner: self.owner,
            register: self.register.clone(),
            written_by: self.written_by.clone(),
            log: self.log,
            revision: self.revision,
        }
    }

    /// Puts a copy back. Returns the names whose entries are others than before, which the copy may
    /// not cover.
    pub(crate) fn restore(&mut self, backup: Backup, part: RestoredPart) -> BTreeSet<WorkerKey> {
        // Everybody who has read this store is dead; a version is never used twice.
        self.version += 1;
        self.listed_at.clear();
        self.wrote_at.clear();
        if part.has_entries() {
            self.replaced_to = self.replaced_to.max(self.epoch);
        }
        if part.has_terms() {
            let (from, to) = self.lost.unwrap_or((backup.epoch, self.epoch));
            self.lost = Some((from.min(backup.epoch), to.max(self.epoch)));
            (self.epoch, self.owner) = (backup.epoch, backup.owner);
        }
        if part == RestoredPart::Both {
            self.revision = backup.revision;
        }
        if !part.has_entries() {
            return BTreeSet::new();
        }
        self.log = backup.log;
        self.written_by = backup.written_by;
        let before = std::mem::replace(&mut self.register, backup.register);
        let mut keys: BTreeSet<_> = before.keys().chain(self.register.keys()).cloned().collect();
        for key in &keys {
            self.touch(key);
        }
        self.changed.extend(keys.iter().cloned());
        keys.retain(|key| exposure_in(&before, key) != exposure_in(&self.register, key));
        keys.iter().map(WorkerKey::present).collect()
    }

    /// Whether a term of this number may have been lost when terms were put back from a copy.
    /// Another one of the same number may have been taken since.
    pub(crate) fn is_lost(&self, epoch: Epoch) -> bool {
        self.lost.is_some_and(|(from, to)| from < epoch && epoch <= to)
    }

    /// The newest term of which entries may have been lost when a copy was put back.
    pub(crate) fn replaced_to(&self) -> Epoch {
        self.replaced_to
    }

    /// Has the next term be above this one, which nobody holds.
    pub(crate) fn claim(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            (self.epoch, self.owner) = (epoch, None);
            self.version += 1;
        }
    }
}

/// The exposure in an entry of any writer; the inner `None` is an entry that cannot be read.
fn exposure_in<'a>(
    register: &'a BTreeMap<WorkerKey, Option<Entry>>,
    key: &WorkerKey,
) -> Option<Option<&'a Exposure>> {
    register.get(key).map(|entry| entry.as_ref().map(|entry| &entry.exposure))
}
