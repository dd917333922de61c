//! The stores are copied, and put back from the copy while no replica runs.
//!
//! Invariant: who puts entries back ends the workers first that the copy may not cover, and says so
//! once where agents know later terms: nothing else is promised then.

use leasehold_types::{Epoch, WorkerKey};

use crate::system::clock::MS;
use crate::system::profile::pick;
use crate::system::store::RestoredPart;
use crate::world::World;
use crate::world::queue::SimEvent;

/// The parts that are put back; both, which alone repeats the numbers of terms, most often.
const PARTS: [RestoredPart; 4] =
    [RestoredPart::Both, RestoredPart::Both, RestoredPart::Terms, RestoredPart::Entries];

impl World {
    /// Schedules the next copy.
    pub(super) fn back_up_later(&mut self) {
        let ttl = self.profile.ttl_real();
        let later = self.rng.u64(ttl * 2..ttl * 5);
        self.after(later, SimEvent::BackUpStores);
    }

    /// Copies the stores, for use some time later. Mostly another term begins meanwhile.
    pub(super) fn back_up_stores(&mut self) {
        self.backup = Some(self.store.back_up());
        let ttl = self.profile.ttl_real();
        if self.rng.u8(0..4) > 0 {
            self.take_over_soon();
        }
        let later = self.rng.u64(ttl / 2..ttl * 4);
        self.after(later, SimEvent::RestoreStores);
    }

    /// Stops all replicas, puts the copy back, and starts them again.
    pub(super) fn restore_stores(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        let part = *pick(&mut self.rng, &PARTS);
        self.coverage.hit(match part {
            RestoredPart::Terms => "fault: terms put back from a copy",
            RestoredPart::Entries => "fault: entries put back from a copy",
            RestoredPart::Both => "fault: terms and entries put back from a copy",
        });
        let ttl = self.profile.ttl_real();
        for replica in 0..self.replicas.len() {
            self.crash_replica(replica);
            let starts = self.rng.u64(MS..ttl / 2);
            self.after(starts, SimEvent::BootReplica { replica });
        }
        self.queue.drop_store_requests();
        let uncovered = self.store.restore(backup, part);
        self.trace.say(self.t, || format!("        {part:?} put back, not covered: {uncovered:?}"));
        for pod in self.view().living() {
            if uncovered.contains(&self.pods[pod].key) {
                self.coverage.hit("fault: worker ended that a copy does not cover");
                self.end_pod(pod);
            }
        }
        if part.has_terms() {
            self.checks().terms_restored();
        }
        self.checks().entries_restored();
        self.back_up_later();
    }

    /// An agent knows a later term than the leader's, which stands: if that term was lost, a person
    /// says once that the next one is to be above it.
    pub(super) fn claim_lost_term(&mut self, worker: &WorkerKey, seen: Epoch) {
        if self.store.is_lost(seen) && self.view().pod_of(&worker.present()).is_some() {
            self.coverage.hit("a person claims a term that was lost");
            self.store.claim(seen);
        }
    }
}
