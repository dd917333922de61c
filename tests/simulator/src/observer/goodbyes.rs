//! Agents that have left, as a coordinator has told them (S22).

use std::collections::BTreeMap;

use leasehold_coordinator_core::event::Elected;
use leasehold_coordinator_core::exposure::Entry;
use leasehold_types::{Epoch, Incarnation};

use crate::observer::Checks;

/// The pods whose agents count as having left, with the agent's incarnation and the epoch of the
/// leader that said so.
#[derive(Debug, Default)]
pub(crate) struct AnsweredGoodbyes(BTreeMap<usize, (Incarnation, Epoch)>);

impl Checks<'_> {
    /// An agent that holds nothing says that a coordinator has let it leave.
    pub(crate) fn note_left(&mut self, pod: usize) {
        let node = &self.view.pods[pod];
        // The entry of a name says nothing of which of its pods it stands for.
        let shared = self.view.pods.iter().filter(|other| other.key == node.key).count() > 1;
        let disk = node.disk.borrow();
        let known = disk.memory.incarnation.zip(disk.memory.epoch);
        if let Some(known) = known.filter(|_| !shared) {
            self.observer.goodbyes.0.insert(pod, known);
        }
    }

    /// An agent dials a coordinator: it may be granted something again.
    pub(crate) fn note_back(&mut self, pod: usize) {
        self.observer.goodbyes.0.remove(&pod);
    }

    /// Entries were put back from a copy.
    pub(crate) fn entries_restored(&mut self) {
        self.observer.goodbyes.0.clear();
    }

    /// S22: no later leader finds an entry of an agent that has left, but for one that a leader
    /// which was deposed before has written late.
    pub(crate) fn check_entries_read(&mut self, replica: usize, elected: &Elected) {
        for (pod, (incarnation, epoch)) in self.observer.goodbyes.0.clone() {
            // The core of a deposed leader may learn late of what it read.
            if elected.epoch <= epoch {
                continue;
            }
            let key = &self.view.pods[pod].key;
            let shared = self.view.pods.iter().filter(|other| other.key == *key).count() > 1;
            self.coverage.hit("checked: a leader finds no agent that left");
            let entry = elected.exposed.get(key).filter(|_| !shared);
            let is_of_it =
                |entry: &Entry| entry.exposure.incarnation <= incarnation && entry.epoch >= epoch;
            if entry.is_some_and(is_of_it) {
                let key = key.clone();
                self.fail("S22", || format!("c{replica} finds an entry of {key}, which has left"));
            }
        }
    }
}
