//! Injects faults: each picks its victim and its time from the seed.

use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_types::message::Hello;
use leasehold_types::{Epoch, WorkerKey, WorkerName};

use crate::system::clock::MS;
use crate::system::faults::{Fault, Sequence};
use crate::system::journal::JournalLeft;
use crate::system::network::{Cut, SlowStore};
use crate::world::World;
use crate::world::queue::SimEvent;

/// The connection of an agent that no pod has.
const STRANGER: ConnId = ConnId(u64::MAX);

impl World {
    /// The next fault, if faults are still on.
    pub(super) fn next_fault(&mut self) {
        let every = self.profile.fault_every;
        let next = self.rng.u64(0..=2 * every);
        self.after(next, SimEvent::Fault);
        if let Some(fault) = self.profile.draw(&mut self.rng) {
            self.trace.say(self.t, || format!("        fault {fault:?}"));
            self.inject(fault);
        }
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        let replica = self.rng.usize(0..self.replicas.len());
        let Some(pod) = self.some_pod() else {
            self.new_pod(None, 0);
            return;
        };
        let ttl = self.profile.ttl_real();
        // Mostly shorter than a lease, sometimes longer.
        let most = if self.rng.u8(0..3) == 0 { ttl * 3 } else { ttl / 2 };
        let time = self.rng.u64(MS..=most);
        match fault {
            Fault::BreakLink
            | Fault::BreakAll
            | Fault::CutPod
            | Fault::CutPodWhole
            | Fault::CutStore
            | Fault::CutReplica => self.inject_network_fault(fault, pod, replica, time),
            Fault::SplitBrain => self.split_brain(),
            Fault::TakeOver if self.profile.has(Sequence::CapSwings) => self.lower_caps(pod),
            Fault::PauseReplica | Fault::CrashReplica | Fault::TakeOver | Fault::OrderDrain => {
                self.inject_replica_fault(fault, pod, replica, time);
            }
            Fault::KillPod
            | Fault::DrainPod
            | Fault::NewPod
            | Fault::ComeAndGo
            | Fault::TwinPod
            | Fault::Rollout => self.inject_lifecycle_fault(fault, pod),
            Fault::Edit => self.edit(),
            Fault::ClaimEpoch => self.claim_epoch(pod),
            Fault::CorruptEntry => {
                let key = self.pods[pod].key.clone();
                self.corrupt_entry(&key);
            }
            Fault::CrashAgent
            | Fault::LoseJournal
            | Fault::CrashAtWrite
            | Fault::FailJournal
            | Fault::DrainUnwritten
            | Fault::CrashWorker
            | Fault::Boot
            | Fault::PauseAgent
            | Fault::StopUse => {
                self.inject_pod_fault(fault, pod, time);
            }
        }
    }

    pub(super) fn some_pod(&mut self) -> Option<usize> {
        let living = self.view().living();
        (!living.is_empty()).then(|| living[self.rng.usize(0..living.len())])
    }

    fn inject_network_fault(&mut self, fault: Fault, pod: usize, replica: usize, time: u64) {
        match fault {
            Fault::BreakLink => {
                if let Some(link) = self.pods[pod].agent.as_ref().and_then(|agent| agent.link) {
                    self.coverage.hit("fault: link broken");
                    self.break_link(link);
                }
            }
            Fault::BreakAll => {
                self.coverage.hit("fault: all links broken");
                for pod in self.view().living() {
                    if let Some(link) = self.pods[pod].agent.as_ref().and_then(|agent| agent.link) {
                        self.break_link(link);
                    }
                }
            }
            Fault::CutPod => {
                self.coverage.hit("fault: one-way cut");
                let up = self.rng.bool();
                self.cut(if up { Cut::Up(pod, replica) } else { Cut::Down(pod, replica) }, time);
            }
            Fault::CutPodWhole => {
                self.coverage.hit("fault: pod cut off");
                self.cut_pod(pod, time);
            }
            Fault::CutReplica => {
                self.coverage.hit("fault: replica cut off");
                for pod in self.view().living() {
                    self.cut(Cut::Up(pod, replica), time);
                    self.cut(Cut::Down(pod, replica), time);
                }
            }
            _ => {
                self.coverage.hit("fault: store cut off");
                let times = if self.rng.u8(0..3) == 0 { 6 } else { 2 };
                self.cut(Cut::Store(replica), time * times);
            }
        }
    }

    fn inject_replica_fault(&mut self, fault: Fault, pod: usize, replica: usize, time: u64) {
        match fault {
            Fault::PauseReplica => {
                self.coverage.hit("fault: replica stopped");
                self.pause_replica(replica, self.t + time);
            }
            Fault::CrashReplica => {
                self.crash_replica(replica);
                self.after(time, SimEvent::BootReplica { replica });
            }
            Fault::TakeOver => {
                if self.replicas.iter().any(|other| other.leads().is_some()) {
                    self.coverage.hit("fault: leadership taken while the leader lives");
                }
                self.take(replica);
            }
            _ => {
                self.coverage.hit("fault: drain ordered");
                let key = self.pods[pod].key.clone();
                self.pods[pod].leaving = true;
                self.after(time, SimEvent::OrderDrain { replica, key });
            }
        }
    }

    /// Makes two replicas believe that they lead, and moves agents between them.
    fn split_brain(&mut self) {
        let Some((old, _)) = self.view().true_leader() else { return };
        self.coverage.hit("fault: two leaders");
        let ttl = self.profile.ttl_real();
        let new = (old + 1) % self.replicas.len();
        let window = self.rng.u64(ttl..ttl * 8);
        let cut = if self.rng.bool() {
            Cut::Store(old)
        } else {
            self.coverage.hit("fault: only the store of terms cut off");
            Cut::Terms(old)
        };
        self.cut(cut, window);
        self.replicas[new].election.eager = true;
        let run = self.replicas[new].run;
        self.after(MS, SimEvent::Poll { replica: new, run });
        // One goes to the new leader, loses its journal there, and falls back to the old one.
        if let Some(pod) = self.some_pod() {
            let (there, back) = (window / 6 + 50 * MS, window / 2);
            self.after(there, SimEvent::Redirect { pod, replica: new, forget: false });
            self.after(back, SimEvent::Redirect { pod, replica: old, forget: true });
        }
        if self.rng.u8(0..3) == 0 {
            self.start_twin_at(new, window);
        }
        for pod in self.view().living() {
            for _ in 0..self.rng.u8(0..3) {
                let at = self.rng.u64(0..window / 2);
                let replica = if self.rng.bool() { old } else { new };
                let forget = self.rng.u8(0..5) == 0;
                self.after(at, SimEvent::Redirect { pod, replica, forget });
            }
        }
    }

    /// An agent loses its link, and its journal too if `forget` is set, and dials a replica.
    pub(super) fn redirect(&mut self, pod: usize, replica: usize, forget: bool) {
        if self.pods[pod].agent.is_none() {
            return;
        }
        if forget {
            self.pods[pod].redirected_to = Some(replica);
            let soon = self.rng.u64(MS..50 * MS);
            self.crash_agent(pod, false, Some(soon));
            return;
        }
        let Some(agent) = self.pods[pod].agent.as_mut() else { return };
        agent.next_address = replica;
        if let Some(link) = agent.link {
            self.break_link(link);
        }
    }

    /// An order reaches a replica. One of three is taken back, by the clock, so that it costs no
    /// random number: before the agent has it, while the worker drains, or after that.
    pub(super) fn order_drain(&mut self, replica: usize, key: WorkerKey) {
        if self.t.is_multiple_of(3) {
            let later = self.t % (2 * self.profile.ttl_real());
            self.after(later, SimEvent::Undrain { replica, key: key.clone() });
        }
        self.core_event(replica, Event::Drain(key));
    }

    /// The order is taken back. Agents that have not begun to drain are not asked to leave.
    pub(super) fn undrain(&mut self, replica: usize, key: WorkerKey) {
        self.coverage.hit("fault: drain taken back");
        for pod in 0..self.pods.len() {
            let node = &self.pods[pod];
            let agent = node.agent.as_ref().filter(|_| node.key == key && !node.left);
            if agent.is_some_and(|agent| !agent.holder.outstanding().draining) {
                self.pods[pod].leaving = false;
            }
        }
        self.core_event(replica, Event::Undrain(key));
    }

    fn inject_lifecycle_fault(&mut self, fault: Fault, pod: usize) {
        let room = self.view().living().len() < self.profile.pods_max
            && self.pods.len() < self.profile.pods_ever_max;
        let newest = self.pods.iter().map(|pod| pod.generation).max().unwrap_or(0);
        match fault {
            Fault::KillPod if self.may_be_removed(pod) => self.remove_pod(pod),
            Fault::KillPod => {
                self.coverage.hit("fault: pod killed");
                self.end_pod(pod);
            }
            Fault::DrainPod => self.drain_pod(pod),
            Fault::NewPod if room => {
                self.coverage.hit("fault: pod appeared");
                self.new_pod(None, newest);
            }
            Fault::TwinPod if room && self.may_get_twin(pod) => self.start_twin(pod, newest),
            Fault::ComeAndGo if room => {
                self.coverage.hit("fault: pod came and went");
                let pod = self.new_pod(None, newest);
                self.pods[pod].returns_at_once = true;
                let ttl = self.profile.ttl_real();
                if let Some((leader, _)) = self.view().true_leader() {
                    self.network.slow_store = Some((leader, SlowStore::AllElse, self.t + ttl));
                }
                let leaves = 50 * MS + self.rng.u64(0..ttl / 4);
                self.after(leaves, SimEvent::DrainPod { pod });
            }
            Fault::Rollout if self.pods.len() + 4 <= self.profile.pods_ever_max => {
                // One that goes back is told from others without a random number, which would make
                // other seeds of them.
                let (name, generation) = if self.t.is_multiple_of(4) {
                    ("fault: rollback", newest.saturating_sub(1))
                } else {
                    ("fault: rollout", newest + 1)
                };
                self.coverage.hit(name);
                let ttl = self.profile.ttl_real();
                for old in self.view().living().into_iter().take(3) {
                    self.new_pod(None, generation);
                    let later = self.rng.u64(0..ttl * 2);
                    self.after(later, SimEvent::DrainPod { pod: old });
                }
            }
            _ => {}
        }
    }

    /// Another replica takes over when it next reads the store.
    pub(super) fn take_over_soon(&mut self) {
        if let Some((leader, _)) = self.view().true_leader() {
            let next = (leader + 1) % self.replicas.len();
            self.replicas[next].election.eager = true;
        }
    }

    /// An unknown agent sends a hello to the leader, as a worker of some pod's cluster.
    fn claim_epoch(&mut self, pod: usize) {
        let Some((leader, epoch)) = self.view().true_leader() else { return };
        self.coverage.hit("fault: an epoch that never was");
        let cluster = self.pods[pod].key.cluster.clone();
        let worker = WorkerName::new("stranger").expect("a name");
        let hello = Hello {
            epoch_seen: Some(Epoch(epoch.0 + self.rng.u64(1..1_000))),
            ..Hello::example(WorkerKey { cluster, worker })
        };
        self.core_event(leader, Event::Hello(STRANGER, hello, None));
    }

    fn inject_pod_fault(&mut self, fault: Fault, pod: usize, time: u64) {
        match fault {
            Fault::CrashAgent => {
                self.coverage.hit("fault: agent crashed");
                self.crash_agent(pod, true, Some(time));
            }
            Fault::LoseJournal => {
                self.coverage.hit("fault: journal lost");
                self.crash_agent(pod, false, Some(time));
                if self.rng.bool() {
                    // After two restarts in a row the journal must still count as lost.
                    let again = time + self.rng.u64(0..self.profile.ttl_real());
                    self.after(again, SimEvent::CrashAgain { pod });
                }
            }
            Fault::CrashAtWrite => {
                let writes = self.rng.u32(0..6);
                self.pods[pod].disk.borrow_mut().crash_after = Some(writes);
            }
            Fault::FailJournal => self.fail_journal(pod, time),
            Fault::DrainUnwritten => {
                self.coverage.hit("fault: drain on a full disk");
                self.pods[pod].disk.borrow_mut().failing = true;
                self.after(time, SimEvent::RepairJournal { pod });
                self.drain_pod(pod);
            }
            Fault::CrashWorker => {
                self.coverage.hit("fault: worker crashed");
                self.crash_worker(pod, Some(time));
                if self.rng.u8(0..3) == 0 {
                    self.coverage.hit("fault: worker and agent crashed");
                    self.crash_agent(pod, true, Some(time));
                }
            }
            Fault::Boot => {
                self.coverage.hit("fault: host booted");
                let left = [JournalLeft::All, JournalLeft::Earlier, JournalLeft::Nothing]
                    [self.rng.usize(0..3)];
                self.boot_host(pod, left, time);
            }
            Fault::PauseAgent => {
                self.coverage.hit("fault: agent stopped");
                let node = &mut self.pods[pod];
                node.paused_until = node.paused_until.max(self.t + time);
            }
            _ => {
                let worker = &self.pods[pod].worker;
                let first = worker.streams.iter().next();
                if let Some((stream, used)) = first.map(|(key, used)| (key.clone(), used.token)) {
                    self.coverage.hit("fault: worker let a stream go unasked");
                    self.stop_use(pod, stream, used);
                }
            }
        }
    }

    /// The journal refuses all records for a while, only long ones, or only the next ones.
    fn fail_journal(&mut self, pod: usize, time: u64) {
        self.coverage.hit("fault: journal fails");
        if self.rng.u8(0..3) == 0 {
            self.coverage.hit("fault: only short records fit");
            self.fill_disk_nearly(pod);
            return;
        }
        if self.rng.bool() {
            // One or two writes fail, and the agent dies soon after.
            let (fails, left) = (self.rng.u32(1..=2), self.rng.u32(0..4));
            let mut disk = self.pods[pod].disk.borrow_mut();
            (disk.failing_next, disk.crash_after) = (fails, Some(left));
            return;
        }
        self.pods[pod].disk.borrow_mut().failing = true;
        self.after(time, SimEvent::RepairJournal { pod });
    }

    /// A disk has room for short records only, for longer than leases last, while streams are
    /// revoked from a worker that keeps them.
    fn fill_disk_nearly(&mut self, pod: usize) {
        self.pods[pod].disk.borrow_mut().nearly_full = true;
        let ttl = self.profile.ttl_real();
        let time = self.rng.u64(ttl..ttl * 6);
        self.after(time, SimEvent::RepairJournal { pod });
        if let Some((leader, _)) = self.view().true_leader().filter(|_| self.rng.bool()) {
            let key = self.pods[pod].key.clone();
            self.pods[pod].leaving = true;
            self.after(MS, SimEvent::OrderDrain { replica: leader, key });
        }
        // It may be started again before there is more room.
        let dies = self.rng.u64(0..time * 2);
        self.after(dies, SimEvent::CrashAgain { pod });
    }
}
