//! The coordinators of other cells that agents of this one reach. They inform people: nothing is
//! decided by them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// What the agent of one session has found; forgotten with the session.
#[derive(Debug)]
pub(crate) struct FoundBy {
    worker: WorkerKey,
    all: Arc<OtherCells>,
}

impl OtherCells {
    /// The place for what the agent of this worker finds.
    pub(crate) fn found_by(self: &Arc<Self>, worker: WorkerKey) -> FoundBy {
        FoundBy { worker, all: Arc::clone(self) }
    }

    /// All of them, by worker.
    pub(crate) fn all(&self) -> Vec<(WorkerKey, OtherCell)> {
        self.lock().iter().map(|(worker, found)| (worker.clone(), found.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerKey, OtherCell>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FoundBy {
    /// The agent has found this at its last look; `None` if nothing.
    pub(crate) fn note(&self, found: Option<OtherCell>) {
        let Some(found) = found else { return self.forget() };
        let mut all = self.all.lock();
        let has_room = all.len() < WORKERS_MAX || all.contains_key(&self.worker);
        if !has_room || all.get(&self.worker) == Some(&found) {
            return;
        }
        let OtherCell { cell, coordinator } = &found;
        tracing::warn!(
            worker = %self.worker, coordinator, %cell,
            "a worker's agent reaches a coordinator of another cell, which may grant the same \
             budget and streams to others: give all replicas of a fleet one store (--state-dir, or \
             the Lease of one namespace)"
        );
        all.insert(self.worker.clone(), found);
        self.all.any.store(true, Ordering::Relaxed);
    }

    fn forget(&self) {
        if self.all.any.load(Ordering::Relaxed) {
            let mut all = self.all.lock();
            all.remove(&self.worker);
            self.all.any.store(!all.is_empty(), Ordering::Relaxed);
        }
    }
}

impl Drop for FoundBy {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{CellId, ClusterName, WorkerName};

    use super::*;

    #[test]
    fn what_an_agent_has_found_is_kept_until_it_finds_nothing_or_leaves() {
        let worker = |number: usize| WorkerKey {
            cluster: ClusterName::new("builds").unwrap(),
            worker: WorkerName::new(&format!("w-{number}")).unwrap(),
        };
        let found = || Some(OtherCell { cell: CellId(7), coordinator: "host:7400".into() });
        let cells = Arc::new(OtherCells::default());
        let agents: Vec<_> =
            (0..=WORKERS_MAX).map(|number| cells.found_by(worker(number))).collect();
        agents[0].note(None);
        assert_eq!(cells.all(), []);
        agents.iter().for_each(|agent| agent.note(found()));
        assert_eq!(cells.all().len(), WORKERS_MAX);
        agents[0].note(None);
        assert_eq!(cells.all().len(), WORKERS_MAX - 1);
        agents[WORKERS_MAX].note(found());
        assert_eq!(cells.all().len(), WORKERS_MAX, "there is room again");
        drop(agents);
        assert_eq!(cells.all(), []);
    }
}
