//! The coordinators of other cells that agents of this one reach. They inform people: nothing is
//! decided by them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_types::WorkerKey;
use leasehold_types::message::OtherCell;

/// The most workers that are kept: a few show what is wrong.
const WORKERS_MAX: usize = 20;

/// What connected agents of this cell have found last.
#[derive(Debug, Default)]
pub struct OtherCells {
    /// Whether there is anything; read for each message of an agent.
    any: AtomicBool,
    found: Mutex<BTreeMap<WorkerKey, OtherCell>>,
}

impl OtherCells {
    /// The agent of this worker has found this now, or nothing any more.
    pub(crate) fn note(&self, worker: &WorkerKey, found: Option<OtherCell>) {
        match found {
            None if !self.any.load(Ordering::Relaxed) => {}
            None => {
                let mut all = self.lock();
                all.remove(worker);
                self.any.store(!all.is_empty(), Ordering::Relaxed);
            }
            Some(found) => {
                let mut all = self.lock();
                if all.get(worker) == Some(&found) {
                    return;
                }
                let OtherCell { cell, coordinator } = &found;
                if all.len() < WORKERS_MAX || all.contains_key(worker) {
                    tracing::warn!(
                        %worker, coordinator, %cell,
                        "a worker's agent reaches a coordinator of another cell, which may grant \
                         the same budget and streams to others: give all replicas of a fleet one \
                         --state-dir"
                    );
                    all.insert(worker.clone(), found);
                    self.any.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// All of them, by worker.
    pub(crate) fn all(&self) -> Vec<(WorkerKey, OtherCell)> {
        self.lock().iter().map(|(worker, found)| (worker.clone(), found.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerKey, OtherCell>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
