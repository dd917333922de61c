//! The queue of changes of entries, at most one per worker. A failed change is retried only after
//! all others were tried, so that entries that cannot be written do not delay the others. Removals
//! wait behind registrations. A change that would replace an unreadable entry waits for a renewal
//! of leadership.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{Moment, WorkerKey};

use super::EntryOutcome;
use super::entry::{EntryAttempt, EntryChange, EntryVersion};

/// The changes that are not done.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    enters: BTreeMap<WorkerKey, EntryChange>,
    strikes: BTreeMap<WorkerKey, EntryChange>,
    failed: BTreeMap<WorkerKey, EntryChange>,
    /// Entries that could not be read, and when that was known: their changes wait.
    unreadable: BTreeMap<WorkerKey, (Moment, EntryVersion)>,
    /// Unreadable versions that were read before a successful renewal was sent.
    confirmed: BTreeMap<WorkerKey, EntryVersion>,
    in_flight_keys: BTreeSet<WorkerKey>,
    batches: usize,
}

impl Changes {
    /// Adds a change in place of an earlier one of the same worker.
    pub(super) fn add(&mut self, change: EntryChange) {
        let key = change.key().clone();
        self.enters.remove(&key);
        self.strikes.remove(&key);
        self.failed.remove(&key);
        let due = match change {
            EntryChange::Register(..) => &mut self.enters,
            EntryChange::Unregister(_) => &mut self.strikes,
        };
        due.insert(key, change);
    }

    /// Takes at most `max` changes that are due, of workers with nothing in flight. They are in
    /// flight from here on.
    pub(super) fn take(&mut self, max: usize) -> Vec<EntryAttempt> {
        let mut taken = Vec::new();
        for due in [&mut self.enters, &mut self.strikes] {
            let waits =
                |key| self.in_flight_keys.contains(key) || self.unreadable.contains_key(key);
            let keys = due.keys().filter(|key| !waits(*key));
            let keys: Vec<_> = keys.take(max - taken.len()).cloned().collect();
            for key in keys {
                let confirmed = self.confirmed.get(&key).copied().unwrap_or_default();
                let change = due.remove(&key);
                taken.extend(change.map(|change| EntryAttempt { change, confirmed }));
                self.in_flight_keys.insert(key);
            }
        }
        self.batches += usize::from(!taken.is_empty());
        taken
    }

    /// How many requests are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.batches
    }

    /// A request was answered.
    pub(super) fn answered(&mut self) {
        self.batches = self.batches.saturating_sub(1);
    }

    /// A change was tried. Returns whether it is still the newest one of its worker.
    pub(super) fn end(&mut self, change: &EntryChange, written: EntryOutcome, now: Moment) -> bool {
        let key = change.key();
        self.in_flight_keys.remove(key);
        let is_newest = !self.enters.contains_key(key) && !self.strikes.contains_key(key);
        match written {
            EntryOutcome::Failed if is_newest => {
                self.failed.insert(key.clone(), change.clone());
            }
            EntryOutcome::Failed => {}
            EntryOutcome::Unreadable(version) => {
                self.unreadable.insert(key.clone(), (now, version));
                if is_newest {
                    self.add(change.clone());
                }
            }
            EntryOutcome::Done | EntryOutcome::Superseded => drop(self.confirmed.remove(key)),
        }
        is_newest
    }

    /// A renewal that was sent then has succeeded: no later leader wrote the entries that were
    /// found unreadable before.
    pub(super) fn confirm(&mut self, sent_at: Moment) {
        let read_before = |_: &WorkerKey, found: &mut (Moment, EntryVersion)| found.0 <= sent_at;
        for (key, (_, version)) in self.unreadable.extract_if(.., read_before) {
            self.confirmed.insert(key, version);
        }
    }

    /// Makes failed changes due again, once every other change was tried.
    pub(super) fn retry(&mut self) {
        if self.enters.is_empty() && self.strikes.is_empty() {
            for (_, change) in std::mem::take(&mut self.failed) {
                self.add(change);
            }
        }
    }

    /// Whether a change of this worker's entry is not done.
    pub(super) fn has_pending(&self, key: &WorkerKey) -> bool {
        self.in_flight_keys.contains(key)
            || [&self.enters, &self.strikes, &self.failed].iter().any(|due| due.contains_key(key))
    }

    /// Whether anything failed and was not tried again.
    pub(super) fn have_failed(&self) -> bool {
        !self.failed.is_empty()
    }
}
