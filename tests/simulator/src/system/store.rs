//! The two stores of the election: terms, and what workers may hold. The second has one of two
//! shapes: logs in files, one a term, or entries on objects that others write to.
//!
//! Invariant: an epoch is handed out once, by compare-and-swap, until a store is put back from a
//! copy.

mod backup;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryOutcome, EntryVersion, EntryWrite, Listing, RenewalOutcome,
    StoreRequest, resolve,
};
use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_types::{Epoch, Moment, TermId, WorkerKey};

pub(crate) use self::backup::{Backup, RestoredPart};
use crate::system::clock::Real;

/// At least as long as any lease of a run.
const UNREADABLE_TTL: Duration = Duration::from_secs(10);

/// How entries are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A log for each term, which begins with the content of the one before. A change of an
    /// earlier term's log, once the next was begun, is never read.
    #[default]
    Logs,
    /// An entry for each worker, replaced where its version is the one that was read.
    Objects,
}

/// What is stored.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// The newest term that was handed out.
    pub epoch: Epoch,
    /// Who has it; `None` if its leader gave it up.
    pub owner: Option<usize>,
    /// Grows with every election and renewal.
    pub version: u64,
    /// How entries are kept.
    pub shape: Shape,
    /// What workers may hold; `None` if the entry cannot be read.
    pub register: BTreeMap<WorkerKey, Option<Entry>>,
    /// Workers whose entries were removed or replaced since the last check.
    pub changed: BTreeSet<WorkerKey>,
    /// Of objects, the newest term whose leader wrote the entry, whether or not it can be read
    /// since.
    written_by: BTreeMap<WorkerKey, Epoch>,
    /// When each term's leader has listed the entries.
    listed_at: BTreeMap<Epoch, Real>,
    /// When each term's leader has last written an entry of a worker, even if it is never read.
    wrote_at: BTreeMap<(Epoch, WorkerKey), Real>,
    /// Of objects, the versions; they outlive their entries.
    versions: BTreeMap<WorkerKey, u64>,
    /// Of logs, the newest.
    log: Epoch,
    /// Of objects, the newest term by the revision of the whole store.
    revision: Epoch,
    /// How many terms were ever taken.
    terms: u64,
    /// The terms that a copy did not have from which terms were put back: above the first, up to
    /// the second.
    lost: Option<(Epoch, Epoch)>,
    /// The newest term that was taken before entries were put back from a copy.
    replaced_to: Epoch,
}

/// What a replica asks of the store.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Read the newest term.
    Read,
    /// Take the next epoch, if no replica has since this version.
    Take {
        /// The version that was seen.
        version: u64,
        /// The new epoch is above this, too.
        above: Epoch,
    },
    /// Give this term up.
    Release(Epoch),
    /// A leader's request, its number, and when it was sent.
    Lead(Epoch, u64, Moment, StoreRequest),
    /// The second half of a change of an object: what was read has this version.
    Commit(Box<Commit>),
}

/// A change of an object that rests on what was read.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    /// The leader's term.
    pub epoch: Epoch,
    /// The number of its request.
    pub number: u64,
    /// What it wants.
    pub attempt: EntryAttempt,
    /// What it makes of what it read.
    pub entry: Option<Entry>,
    /// The version that it read.
    pub version: EntryVersion,
    /// How often it has found another since.
    pub conflicts: u32,
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// To a read: version, epoch, owner.
    State(u64, Epoch, Option<usize>),
    /// To a take: the new epoch, its identity and the version, if it was won.
    Taken(Option<(Epoch, TermId, u64)>),
    /// To a leader's request of this term and number.
    Lead(Epoch, u64, LeadAnswer),
}

/// The answer to a leader's request.
#[derive(Clone, Debug)]
pub(crate) enum LeadAnswer {
    /// To a renewal: what it found, the version since, and when it was sent.
    Renewed(RenewalOutcome, u64, Moment),
    /// To a list.
    Listed(Listing),
    /// To a write.
    Wrote(Vec<(EntryChange, EntryOutcome)>),
}

impl Request {
    /// Whether it is about the entries of workers, and not about terms.
    pub(crate) fn is_about_entries(&self) -> bool {
        match self {
            Self::Read | Self::Take { .. } | Self::Release(_) => false,
            Self::Lead(.., request) => *request != StoreRequest::Renew,
            Self::Commit(_) => true,
        }
    }
}

impl Answer {
    /// Whether it is about the entries of workers, and not about terms.
    pub(crate) fn is_about_entries(&self) -> bool {
        match self {
            Self::State(..) | Self::Taken(_) | Self::Lead(.., LeadAnswer::Renewed(..)) => false,
            Self::Lead(.., LeadAnswer::Listed(_) | LeadAnswer::Wrote(_)) => true,
        }
    }
}

impl Store {
    /// A store that holds nothing.
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, ..Self::default() }
    }

    /// Takes the next epoch. It is above those that the entries of logs name, and those that the
    /// revisions of objects show.
    pub(crate) fn take(
        &mut self,
        replica: usize,
        version: u64,
        above: Epoch,
    ) -> Option<(Epoch, TermId, u64)> {
        if version != self.version {
            return None;
        }
        let shown = match self.shape {
            Shape::Logs => self.log,
            Shape::Objects => self.revision,
        };
        self.epoch = self.epoch.max(shown).max(above).next();
        self.revision = self.epoch;
        self.owner = Some(replica);
        self.version += 1;
        self.terms += 1;
        let term = TermId(fastrand::Rng::with_seed(self.terms).u64(1..));
        Some((self.epoch, term, self.version))
    }

    /// Gives a term up.
    pub(crate) fn release(&mut self, replica: usize, epoch: Epoch) {
        if self.epoch == epoch && self.owner == Some(replica) {
            self.owner = None;
            self.version += 1;
        }
    }

    /// Renews a term.
    pub(crate) fn renew(&mut self, replica: usize, epoch: Epoch) -> RenewalOutcome {
        if self.epoch != epoch || self.owner != Some(replica) {
            return RenewalOutcome::Deposed;
        }
        self.version += 1;
        RenewalOutcome::Leads
    }

    /// The leader of this term has written entries of these workers.
    pub(crate) fn note_written<'a>(
        &mut self,
        epoch: Epoch,
        attempts: impl IntoIterator<Item = &'a EntryAttempt>,
        t: Real,
    ) {
        for attempt in attempts {
            self.wrote_at.insert((epoch, attempt.change.key().clone()), t);
        }
    }

    /// The later term whose leader has not seen what that of this one last wrote of a worker.
    pub(crate) fn unseen_by(&self, epoch: Epoch, key: &WorkerKey) -> Option<Epoch> {
        let wrote_at = self.wrote_at.get(&(epoch, key.clone()))?;
        let mut later = self.listed_at.range(epoch.next()..);
        later.find(|(_, listed_at)| *listed_at < wrote_at).map(|(later, _)| *later)
    }

    /// When the leader of this term has listed the entries.
    pub(crate) fn listed_at(&self, epoch: Epoch) -> Option<Real> {
        self.listed_at.get(&epoch).copied()
    }

    /// Every entry. The leader of a term begins its log with what it reads.
    pub(crate) fn list(&mut self, epoch: Epoch, t: Real) -> BTreeMap<WorkerKey, Entry> {
        self.listed_at.insert(epoch, t);
        if self.shape == Shape::Logs {
            self.log = self.log.max(epoch);
            for entry in self.register.values_mut().flatten() {
                entry.epoch = self.log;
            }
        }
        let entries = self.register.iter();
        entries
            .map(|(key, entry)| (key.clone(), entry.clone().unwrap_or_else(unreadable)))
            .collect()
    }

    /// Writes to a term's log.
    pub(crate) fn append(&mut self, epoch: Epoch, attempts: &[EntryAttempt]) {
        if epoch < self.log {
            return;
        }
        for EntryAttempt { change, .. } in attempts {
            self.changed.insert(change.key().clone());
            match change {
                EntryChange::Register(key, _, exposure) => {
                    let exposure = exposure.clone();
                    self.register.insert(key.clone(), Some(Entry { epoch, exposure }));
                }
                EntryChange::Unregister(key) => {
                    self.register.remove(key);
                }
            }
        }
    }

    /// Reads an object: its version, and what the change makes of it.
    pub(crate) fn look(&self, epoch: Epoch, attempt: &EntryAttempt) -> (EntryVersion, EntryWrite) {
        let unreadable = unreadable();
        let key = attempt.change.key();
        let found = self.register.get(key);
        let found = found.map(|found| found.as_ref().unwrap_or(&unreadable));
        let version = EntryVersion(self.versions.get(key).copied().unwrap_or(0));
        (version, resolve(found, version, attempt, epoch))
    }

    /// Replaces an object, unless it has changed.
    pub(crate) fn commit(&mut self, commit: &Commit) -> bool {
        let key = commit.attempt.change.key();
        let version = self.versions.entry(key.clone()).or_default();
        if *version != commit.version.0 {
            return false;
        }
        *version += 1;
        self.changed.insert(key.clone());
        match &commit.entry {
            Some(entry) => {
                self.written_by.insert(key.clone(), entry.epoch);
                self.register.insert(key.clone(), Some(entry.clone()));
            }
            None => {
                self.written_by.remove(key);
                self.register.remove(key);
            }
        }
        true
    }

    /// The term whose leader wrote the entry of a worker, for objects.
    pub(crate) fn written_by(&self, key: &WorkerKey) -> Option<Epoch> {
        self.written_by.get(key).copied()
    }

    /// Another writer writes to an object.
    pub(crate) fn touch(&mut self, key: &WorkerKey) {
        *self.versions.entry(key.clone()).or_default() += 1;
    }

    /// Makes an entry unreadable, and returns whether there was one that could be read.
    pub(crate) fn corrupt(&mut self, key: &WorkerKey) -> bool {
        let Some(entry) = self.register.get_mut(key) else { return false };
        let could_be_read = entry.take().is_some();
        self.touch(key);
        could_be_read
    }
}

/// What an entry counts as that cannot be read; its leases do not outlast a run.
fn unreadable() -> Entry {
    let unreadable = Entry::unreadable();
    let exposure = Exposure { ttl: UNREADABLE_TTL, ..unreadable.exposure };
    Entry { exposure, ..unreadable }
}
