//! Sequences of faults that chance alone hardly ever produces, and pods that take a living pod's
//! name.

use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::Event;

use crate::system::clock::{MS, Real};
use crate::system::faults::Sequence;
use crate::system::network::{Cut, SlowStore};
use crate::system::replica::Replica;
use crate::system::store::Request;
use crate::world::World;
use crate::world::queue::SimEvent;

impl World {
    /// How long a turn continues that is about to remove a worker: meanwhile another replica takes
    /// over and serves that worker, and this one takes over again. Soon after the turn the other
    /// one leads once more, and cannot reach the worker at first.
    pub(super) fn lose_and_retake_term(&mut self, replica: usize) -> Real {
        if !self.profile.has(Sequence::RetakenTerms) {
            return 0;
        }
        let pending = &self.replicas[replica].driver.effects;
        let struck = pending.iter().find_map(|effect| match effect {
            Effect::Order { order: Order::Unregister(keys), .. } => keys.first().cloned(),
            _ => None,
        });
        let leads = self.view().true_leader().is_some_and(|(leader, _)| leader == replica);
        let Some(key) = struck.filter(|_| leads && self.t < self.profile.safety) else { return 0 };
        let Some(pod) = self.view().pod_of(&key) else { return 0 };
        self.coverage.hit("fault: term lost and taken again within a turn");
        let ttl = self.profile.ttl_real();
        let other = (replica + 1) % self.replicas.len();
        let turn = ttl * 2;
        self.take_at(other, MS);
        self.after(ttl / 8, SimEvent::Redirect { pod, replica: other, forget: false });
        self.after(ttl / 8 + MS, SimEvent::RestartWorker { pod });
        let again = self.rng.u64(ttl..turn - ttl / 4);
        self.take_at(replica, again);
        self.take_at(replica, again + 100 * MS);
        for side in [Cut::Up(pod, other), Cut::Down(pod, other)] {
            self.after(again, SimEvent::Cut(side, ttl * 3));
        }
        self.take_at(other, turn + 50 * MS);
        self.take_at(other, turn + 150 * MS);
        turn
    }

    fn take_at(&mut self, replica: usize, after: Real) {
        let run = self.replicas[replica].run;
        self.after(after, SimEvent::TakeOver { replica, run });
    }

    /// A replica reads the store of terms, and then takes the next term even if another one leads.
    pub(super) fn take_over(&mut self, replica: usize) {
        self.replicas[replica].election.eager = true;
        self.ask_store(replica, Request::Read);
    }

    /// The entry of a worker is written late. Meanwhile the worker is cut off and
    /// declared gone; it comes back while the entry is removed. Then the leader dies.
    pub(super) fn delay_entry(&mut self, replica: usize, order: &Order) {
        let Order::Register(entries) = order else { return };
        let slow = self.network.slow_store.is_some_and(|(.., until)| until > self.t);
        let over = self.t >= self.profile.safety;
        if slow || over || !self.profile.has(Sequence::LateEntries) {
            return;
        }
        let Some(pod) = self.view().pod_of(&entries[0].0) else { return };
        let ttl = self.profile.ttl_real();
        let until = self.profile.safety.min(self.t + ttl * 8);
        self.network.slow_store = Some((replica, SlowStore::All, until));
        let cut = self.rng.u64(ttl / 2..ttl * 2);
        self.cut_pod(pod, cut);
        self.after(cut / 2, SimEvent::DeclareGone { replica, pod });
        let dies = self.rng.u64(cut..cut + ttl * 2);
        self.after(dies, SimEvent::CrashReplica { replica });
    }

    /// Declares a worker gone that holds nothing and has no entry.
    pub(super) fn declare_empty_worker_gone(&mut self, replica: usize, pod: usize) {
        let now = self.view().local_of_pod(pod);
        let node = &self.pods[pod];
        let runs = node.jobs_possible(now) > 0 || node.size_in_effect(now) > 0;
        let holds = runs || !node.worker.streams.is_empty();
        let key = node.key.clone();
        if !holds && !self.store.register.contains_key(&key) {
            self.coverage.hit("fault: an empty worker declared gone");
            self.core_event(replica, Event::Gone(vec![key]));
        }
    }

    /// Clusters may run fewer jobs for a while, and more again when another replica takes over; one
    /// agent is stopped meanwhile, so that what is free is held.
    pub(super) fn lower_caps(&mut self, pod: usize) {
        self.coverage.hit("fault: caps fell and rose around a failover");
        let ttl = self.profile.ttl_real();
        self.resize(|jobs, rng| rng.u32(0..=jobs / 2));
        let rises = self.rng.u64(ttl / 4..ttl * 3 / 2);
        self.after(rises, SimEvent::RaiseCaps { pod });
    }

    /// The second half of [`World::lower_caps`].
    pub(super) fn raise_caps(&mut self, pod: usize) {
        let ttl = self.profile.ttl_real();
        let most = self.profile.sizes.jobs_max;
        self.resize(|_, rng| rng.u32(1..=most));
        if let Some((leader, _)) = self.view().true_leader() {
            let at = self.rng.u64(MS..ttl / 4);
            self.take_at((leader + 1) % self.replicas.len(), at);
        }
        let node = &mut self.pods[pod];
        node.paused_until = node.paused_until.max(self.t + ttl * 2);
    }

    /// Whether a twin of this pod may start: a platform that cannot reach a pod takes it for dead
    /// and starts another of its name, while the first one runs on.
    pub(super) fn may_get_twin(&self, pod: usize) -> bool {
        let node = &self.pods[pod];
        // The leader knows the first one's incarnation, so that the second's is above it.
        let leads = |replica: &&Replica| replica.leads().is_some();
        let one_leads = self.replicas.iter().filter(leads).count() == 1;
        let newest = self.view().true_leader().map(|(_, epoch)| epoch);
        let known = node.agent.as_ref().is_some_and(|agent| Some(agent.applied.0) == newest);
        known && one_leads && !node.is_replaced() && !node.twin
    }

    /// A pod appears under the name of one that lives.
    pub(super) fn start_twin(&mut self, pod: usize, generation: u64) {
        self.coverage.hit("fault: twin appeared");
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
            self.after(leaves, SimEvent::DrainPod { pod: twin });
            self.take_over_soon();
        }
        let later = self.rng.u64(MS..ttl * 6);
        self.after(later, SimEvent::EndPod { pod });
    }

    /// A pod appears under the name of one that continues with the old leader, dials the new one,
    /// and leaves soon.
    pub(super) fn start_twin_at(&mut self, new: usize, window: u64) {
        let room = self.view().living().len() < self.profile.pods_max
            && self.pods.len() < self.profile.pods_ever_max;
        let Some(pod) = self.some_pod().filter(|_| room) else { return };
        let node = &self.pods[pod];
        if node.is_replaced() || node.twin || node.agent.is_none() {
            return;
        }
        self.coverage.hit("fault: twin at another leader");
        let generation = node.generation;
        let twin = self.new_pod(Some(pod), generation);
        self.pods[twin].redirected_to = Some(new);
        let leaves = self.rng.u64(window / 12..window / 2);
        self.after(leaves, SimEvent::DrainPod { pod: twin });
        let later = self.rng.u64(window..window * 2);
        self.after(later, SimEvent::EndPod { pod });
    }

    /// While an agent that has left waits for its worker's next start, another one takes its name;
    /// its clock is behind.
    pub(super) fn take_name(&mut self, pod: usize) {
        self.coverage.hit("fault: the name of an agent that left was taken");
        let ttl = self.profile.ttl_real();
        let twin = self.new_pod(Some(pod), self.pods[pod].generation);
        self.pods[twin].late_clock = true;
        let returns = self.rng.u64(ttl / 4..ttl * 3);
        self.after(returns, SimEvent::RestartWorker { pod });
        for (pod, lives) in [(twin, ttl * 2), (pod, ttl * 4)] {
            self.after(returns + lives, SimEvent::EndPod { pod });
        }
    }
}
