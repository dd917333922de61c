//! Agents that have left, as a coordinator has told them (S22).

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::event::Elected;
use leasehold_coordinator_core::exposure::Entry;
use leasehold_types::{Epoch, Incarnation, WorkerKey};

use crate::observer::Checks;

/// Agents that count as having left.
#[derive(Debug, Default)]
pub(crate) struct AnsweredGoodbyes {
    /// Their pods, with the agent's incarnation and the epoch of the leader that said so.
    pods: BTreeMap<usize, (Incarnation, Epoch)>,
    /// Workers whose entries were written by requests that count as failed.
    late: BTreeSet<WorkerKey>,
}

impl Checks<'_> {
    /// An agent that holds nothing says that a coordinator has let it leave.
    pub(crate) fn note_left(&mut self, pod: usize) {
        let node = &self.view.pods[pod];
        let disk = node.disk.borrow();
        let known = disk.memory.incarnation.zip(disk.memory.epoch);
        if let Some(known) = known {
            self.observer.goodbyes.pods.insert(pod, known);
        }
    }

    /// An agent dials a coordinator: it may be granted something again.
    pub(crate) fn note_back(&mut self, pod: usize) {
        self.observer.goodbyes.pods.remove(&pod);
    }

    /// A write has arrived that its leader counts as failed: the removal of the entry may have
    /// come before it.
    pub(crate) fn note_late_write(&mut self, key: &WorkerKey) {
        self.observer.goodbyes.late.insert(key.clone());
    }

    /// Entries were put back from a copy.
    pub(crate) fn entries_restored(&mut self) {
        self.observer.goodbyes.pods.clear();
    }

    /// S22: no later leader finds an entry of an agent that has left, but for one that was written
    /// late: by a leader that was deposed before, or by a request that counts as failed.
    pub(crate) fn check_entries_read(&mut self, replica: usize, elected: &Elected) {
        for (pod, (incarnation, epoch)) in self.observer.goodbyes.pods.clone() {
            // The core of a deposed leader may learn late of what it read.
            if elected.epoch <= epoch {
                continue;
            }
            let key = &self.view.pods[pod].key;
            // The entry of a name says nothing of which of its pods it stands for.
            let shared = self.view.pods.iter().filter(|other| other.key == *key).count() > 1;
            self.coverage.hit("checked: a leader finds no agent that left");
            let late = self.observer.goodbyes.late.contains(key);
            let entry = elected.exposed.get(key).filter(|_| !shared && !late);
            let is_of_it =
                |entry: &Entry| entry.exposure.incarnation <= incarnation && entry.epoch >= epoch;
            if entry.is_some_and(is_of_it) {
                let key = key.clone();
                self.fail("S22", || format!("c{replica} finds an entry of {key}, which has left"));
            }
        }
    }
}
