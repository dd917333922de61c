//! Two agents of one name.
//!
//! Invariant: of two agents of one name the later one counts: the earlier one is over in the end.

use super::clock::MS;
use super::faults::Sequence;
use super::queue::Happening;
use super::world::World;

impl World {
    /// A platform that takes a pod for dead starts another of its name; the first, unreachable
    /// to it, runs on.
    pub(super) fn may_be_doubled(&self, pod: usize) -> bool {
        let node = &self.pods[pod];
        // The leader knows the first one's incarnation, so that the second's is above it.
        let leads = |replica: &&super::replica::Replica| replica.leads().is_some();
        let one_leads = self.replicas.iter().filter(leads).count() == 1;
        let newest = self.true_leader().map(|(_, epoch)| epoch);
        let known = node.agent.as_ref().is_some_and(|agent| Some(agent.applied.0) == newest);
        known && one_leads && !node.is_replaced() && !node.twin
    }

    /// A pod appears under the name of one that lives.
    pub(super) fn double(&mut self, pod: usize, generation: u64) {
        self.cover.hit("fault: twin appeared");
        if self.profile.has(Sequence::LateTwins) {
            // The leader has not heard of its new number when the twin's hello comes.
            self.crash_agent(pod, true, None);
            self.boot_agent(pod);
        }
        let twin = self.new_pod(Some(pod), generation);
        self.pods[twin].late_clock = self.profile.has(Sequence::LateTwins);
        let ttl = self.profile.ttl_real();
        if self.rng.bool() {
            // It may leave before the first one is known to be over.
            let leaves = self.rng.u64(ttl / 4..ttl * 4);
            self.after(leaves, Happening::DrainPod { pod: twin });
            self.take_soon();
        }
        let later = self.rng.u64(MS..ttl * 6);
        self.after(later, Happening::EndPod { pod });
    }

    /// A pod appears under the name of one that goes on with the old leader, dials the new one, and
    /// leaves soon.
    pub(super) fn twin_at(&mut self, new: usize, window: u64) {
        let room = self.living().len() < self.profile.pods_max
            && self.pods.len() < self.profile.pods_ever_max;
        let Some(pod) = self.some_pod().filter(|_| room) else { return };
        let node = &self.pods[pod];
        if node.is_replaced() || node.twin || node.agent.is_none() {
            return;
        }
        self.cover.hit("fault: twin at another leader");
        let generation = node.generation;
        let twin = self.new_pod(Some(pod), generation);
        self.pods[twin].lured = Some(new);
        let leaves = self.rng.u64(window / 12..window / 2);
        self.after(leaves, Happening::DrainPod { pod: twin });
        let later = self.rng.u64(window..window * 2);
        self.after(later, Happening::EndPod { pod });
    }

    /// While an agent that has left waits for its worker's next start, another one takes its name;
    /// its clock is behind.
    pub(super) fn take_name(&mut self, pod: usize) {
        self.cover.hit("fault: the name of an agent that left was taken");
        let ttl = self.profile.ttl_real();
        let twin = self.new_pod(Some(pod), self.pods[pod].generation);
        self.pods[twin].late_clock = true;
        let returns = self.rng.u64(ttl / 4..ttl * 3);
        self.after(returns, Happening::RestartWorker { pod });
        for (pod, lives) in [(twin, ttl * 2), (pod, ttl * 4)] {
            self.after(returns + lives, Happening::EndPod { pod });
        }
    }
}
