//! The store of exposures: a key for each worker, written in transactions that succeed only while
//! the leader's term stands. So an entry that is there was written by a leader in its term, and a
//! successor need not write it again. Each key is replaced only at the revision that this leader
//! knows, so that a write whose answer was lost cannot undo a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryOutcome, Listing, Namespaces,
};
use leasehold_coordinator_core::exposure::{AccountId, Entry, Exposure};
use leasehold_platform::campaign::ExposureStore;
use leasehold_platform::exposure_record::ExposureRecord;
use leasehold_types::WorkerKey;

use crate::election::{Election, HeldTerm, has_revision, put, remove};
use crate::etcd_error::EtcdError;
use crate::etcdserverpb::{KeyValue, RangeRequest, RequestOp};
use crate::keys::KeyRange;

/// The most changes in one transaction: etcd's default limit is 128 operations, and as many
/// conditions, of which two are the term's.
pub(crate) const BATCH_MAX: usize = 64;
/// Keys in one answer.
const PAGE: i64 = 1_000;

/// The most that each worker may hold.
pub(crate) type Exposures = BTreeMap<WorkerKey, Exposure>;

/// The exposures, for the leader of one term.
pub(crate) struct EtcdExposures {
    election: Election,
    held: HeldTerm,
    memory: Arc<Mutex<EntryMemory>>,
    /// Entries of the last term, where the store was replaced since.
    recovered: Exposures,
}

/// The entries as this leader knows them.
#[derive(Debug, Default)]
pub(crate) struct EntryMemory {
    exposures: Exposures,
    /// The revision of each key.
    revisions: BTreeMap<WorkerKey, i64>,
    /// Keys whose revision is to be read first: the outcome of a write is unknown.
    unknown: BTreeSet<WorkerKey>,
    /// Whether the store has had all of these entries in the leader's term.
    is_complete: bool,
}

impl EntryMemory {
    /// Entries that the store may lack.
    pub(crate) fn of_lost(exposures: Exposures) -> Self {
        Self { exposures, ..Self::default() }
    }

    /// The entries.
    pub(crate) fn exposures(&self) -> &Exposures {
        &self.exposures
    }

    /// Whether the store has had all of these entries in the leader's term.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Notes an entry of the store.
    fn note(&mut self, worker: WorkerKey, revision: i64, exposure: Exposure) {
        self.revisions.insert(worker.clone(), revision);
        self.exposures.insert(worker, exposure);
    }

    /// Notes that a change was written at this revision.
    fn written(&mut self, change: &EntryChange, revision: i64) {
        match change {
            EntryChange::Register(worker, _, exposure) => {
                self.note(worker.clone(), revision, exposure.clone());
            }
            EntryChange::Unregister(worker) => {
                self.revisions.remove(worker);
                self.exposures.remove(worker);
            }
        }
    }
}

impl EtcdExposures {
    /// The exposures of the term `held`. Those that are in `recovered` and not in the store are
    /// added before they are listed.
    pub(crate) fn new(
        election: Election,
        held: HeldTerm,
        memory: Arc<Mutex<EntryMemory>>,
        recovered: Exposures,
    ) -> Self {
        Self { election, held, memory, recovered }
    }
}

impl ExposureStore for EtcdExposures {
    /// Keys have no rights of their own below the prefix: all are asked for.
    fn list(&mut self, _: Namespaces) -> BoxFuture<'static, Result<Listing, String>> {
        let (election, held) = (self.election.clone(), self.held.clone());
        let (memory, recovered) = (Arc::clone(&self.memory), self.recovered.clone());
        Box::pin(async move {
            let listed = list(&election, &held, &memory, recovered).await;
            let exposed = listed.map_err(|error| error.to_string())?;
            // No later write of an earlier leader can succeed, as if this one had written them.
            let entry = |exposure| Entry { epoch: held.epoch, exposure };
            let exposed = exposed.into_iter().map(|(key, exposure)| (key, entry(exposure)));
            Ok(Listing { exposed: exposed.collect(), unreadable: BTreeSet::new() })
        })
    }

    fn write(
        &mut self,
        attempts: Vec<EntryAttempt>,
    ) -> BoxFuture<'static, Vec<(EntryChange, EntryOutcome)>> {
        let (election, held) = (self.election.clone(), self.held.clone());
        let memory = Arc::clone(&self.memory);
        let changes: Vec<_> = attempts.into_iter().map(|attempt| attempt.change).collect();
        Box::pin(async move {
            let outcome = match write(&election, &held, &memory, &changes).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    tracing::warn!(%error, "cannot write the exposures of workers");
                    EntryOutcome::Failed
                }
            };
            changes.into_iter().map(|change| (change, outcome)).collect()
        })
    }
}

fn lock(memory: &Mutex<EntryMemory>) -> MutexGuard<'_, EntryMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads all entries, at one revision, and adds those that the store has lost.
async fn list(
    election: &Election,
    held: &HeldTerm,
    memory: &Mutex<EntryMemory>,
    recovered: Exposures,
) -> Result<Exposures, EtcdError> {
    let KeyRange { first, end } = election.keys().exposures();
    let mut request =
        RangeRequest { key: first, range_end: end, limit: PAGE, ..RangeRequest::default() };
    let mut read = EntryMemory::default();
    loop {
        let answer = election.client().range(request.clone()).await?;
        for kv in &answer.kvs {
            let (worker, exposure) = entry(election, kv)?;
            read.note(worker, kv.mod_revision, exposure);
        }
        let Some(last) = answer.kvs.last().filter(|_| answer.more) else { break };
        request.key = [last.key.as_slice(), b"\0"].concat();
        if request.revision == 0 {
            request.revision = answer.header.map(|header| header.revision).unwrap_or_default();
        }
    }
    let mut missing = Vec::new();
    for (worker, exposure) in recovered {
        match read.exposures.get(&worker) {
            Some(found) if *found == exposure => {}
            // What the worker was granted under both is unknown.
            Some(_) => missing.push((worker, Exposure::anything())),
            None => missing.push((worker, exposure)),
        }
    }
    // A leader that loses its term before all are added still knows them in its next one.
    read.exposures.extend(missing.iter().cloned());
    *lock(memory) = read;
    let added = missing.len();
    let register = |(worker, exposure)| {
        // No account asks for the entry.
        EntryChange::Register(worker, AccountId::default(), exposure)
    };
    let changes: Vec<_> = missing.into_iter().map(register).collect();
    for batch in changes.chunks(BATCH_MAX) {
        if write(election, held, memory, batch).await? != EntryOutcome::Done {
            return Err(EtcdError::Invalid("some entries were written meanwhile".to_owned()));
        }
    }
    if added > 0 {
        tracing::warn!(added, "added the entries of workers that etcd has lost");
    }
    let mut memory = lock(memory);
    memory.is_complete = true;
    Ok(memory.exposures.clone())
}

/// The worker of a key, and the most that the worker may hold.
fn entry(election: &Election, kv: &KeyValue) -> Result<(WorkerKey, Exposure), EtcdError> {
    let worker = election.keys().worker(&kv.key).ok_or_else(|| {
        EtcdError::Invalid(format!(
            "the key {} is of no worker: no coordinator wrote it; remove it",
            String::from_utf8_lossy(&kv.key)
        ))
    })?;
    let written = serde_json::from_slice::<ExposureRecord>(&kv.value);
    Ok((worker, written.map_or_else(|_| Exposure::anything(), Exposure::from)))
}

/// Writes all of these changes, or none.
async fn write(
    election: &Election,
    held: &HeldTerm,
    memory: &Mutex<EntryMemory>,
    changes: &[EntryChange],
) -> Result<EntryOutcome, EtcdError> {
    read_unknown(election, memory, changes).await?;
    let (mut conditions, mut success) = (Vec::new(), Vec::new());
    {
        let mut memory = lock(memory);
        for change in changes {
            let key = election.keys().exposure(change.key());
            let revision = memory.revisions.get(change.key()).copied().unwrap_or_default();
            conditions.push(has_revision(key.clone(), revision));
            success.push(operation(key, change)?);
            // Until there is an answer.
            memory.unknown.insert(change.key().clone());
        }
    }
    let Some(revision) = election.write(held, conditions, success).await? else {
        let read = election.read().await?;
        let is_present = election.is_present(held, &read);
        return Ok(if is_present { EntryOutcome::Failed } else { EntryOutcome::Superseded });
    };
    let mut memory = lock(memory);
    for change in changes {
        memory.unknown.remove(change.key());
        memory.written(change, revision);
    }
    Ok(EntryOutcome::Done)
}

fn operation(key: Vec<u8>, change: &EntryChange) -> Result<RequestOp, EtcdError> {
    match change {
        EntryChange::Register(_, _, exposure) => {
            let value = serde_json::to_vec(&ExposureRecord::from(exposure));
            Ok(put(key, value.map_err(|error| EtcdError::Invalid(error.to_string()))?))
        }
        EntryChange::Unregister(_) => Ok(remove(key)),
    }
}

/// Reads the revisions of keys with a write whose outcome is unknown. If that write has not
/// happened yet, the next one, at the revision that is read now, excludes it.
async fn read_unknown(
    election: &Election,
    memory: &Mutex<EntryMemory>,
    changes: &[EntryChange],
) -> Result<(), EtcdError> {
    let unknown: Vec<WorkerKey> = {
        let memory = lock(memory);
        let workers = changes.iter().map(EntryChange::key);
        workers.filter(|worker| memory.unknown.contains(*worker)).cloned().collect()
    };
    for worker in unknown {
        let key = election.keys().exposure(&worker);
        let request = RangeRequest { key, ..RangeRequest::default() };
        let answer = election.client().range(request).await?;
        let revision = answer.kvs.first().map(|kv| kv.mod_revision);
        let mut memory = lock(memory);
        memory.unknown.remove(&worker);
        match revision {
            Some(revision) => memory.revisions.insert(worker, revision),
            None => memory.revisions.remove(&worker),
        };
    }
    Ok(())
}
