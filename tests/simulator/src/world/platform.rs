//! The platform: it changes the desired state, creates and ends pods, and reports both late.
//!
//! Invariant: it declares only pods gone that are really dead.

use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::Order;
use leasehold_types::{AgentId, ClusterName, WorkerKey, WorkerName};

use crate::system::clock::{Clock, MS, Real};
use crate::system::faults::Sequence;
use crate::system::pipelines;
use crate::system::pod::Pod;
use crate::system::profile::one_in;
use crate::system::store::Shape;
use crate::system::worker::{Worker, WorkerKind};
use crate::world::World;
use crate::world::queue::SimEvent;

/// In worlds whose sets move, the manifests change during one registration in this many.
const EDIT_MEANWHILE_ONE_IN: u32 = 8;

impl World {
    /// Changes the desired state; each replica learns that a little later.
    pub(super) fn edit(&mut self) {
        let what = self.manifests.edit(&mut self.rng, &self.profile);
        self.coverage.hit("fault: edit");
        self.coverage.hit(what);
        self.publish_desired();
    }

    /// While entries are written of workers of some cluster, the manifests may change.
    pub(super) fn edit_meanwhile(&mut self, order: &Order) {
        let Order::Register(entries) = order else { return };
        let over = self.t >= self.profile.safety;
        if over || !self.profile.moves_sets || !one_in(&mut self.rng, EDIT_MEANWHILE_ONE_IN) {
            return;
        }
        self.coverage.hit("fault: edit while an entry is written");
        let cluster = &entries[0].0.cluster;
        self.manifests.edit_meanwhile(cluster, &mut self.rng, &self.profile);
        self.publish_desired();
    }

    /// All clusters may run another number of jobs from now on.
    pub(super) fn resize(&mut self, jobs_max: impl Fn(u32, &mut fastrand::Rng) -> u32) {
        self.manifests.version += 1;
        let desired = Arc::make_mut(&mut self.manifests.current);
        for cluster in desired.clusters.values_mut().filter(|cluster| cluster.class.is_none()) {
            let cluster = Arc::make_mut(cluster);
            cluster.jobs_max = jobs_max(cluster.jobs_max, &mut self.rng);
        }
        self.publish_desired();
    }

    /// Defines the classes again that still have workers.
    pub(super) fn restore_classes(&mut self) {
        if self.profile.pipelines {
            let living = self.view().living().into_iter();
            let lived_in = living.map(|pod| self.pods[pod].key.cluster.clone()).collect();
            self.manifests.restore(&mut self.rng, &self.profile, &lived_in);
            self.publish_desired();
        }
    }

    fn publish_desired(&mut self) {
        let (version, desired) = (self.manifests.version, self.manifests.desired());
        for replica in 0..self.replicas.len() {
            let lag = self.rng.u64(0..=self.profile.platform_lag);
            let desired = Arc::clone(&desired);
            self.after(lag, SimEvent::Desired { replica, version, desired });
        }
    }

    /// A pod appears: under a name of its own, or, as a twin, under that of another.
    pub(super) fn new_pod(&mut self, twin_of: Option<usize>, generation: u64) -> usize {
        let clusters = self.clusters_for_pods();
        let key = match twin_of {
            Some(other) => self.pods[other].key.clone(),
            None => {
                let index = self.manifests.next_pod;
                self.manifests.next_pod += 1;
                // Every cluster gets one before any gets a second.
                let cluster = clusters[index as usize % clusters.len()].clone();
                let worker = WorkerName::new(&format!("w{index}")).expect("a name");
                WorkerKey { cluster, worker }
            }
        };
        let counts = self.rng.u8(0..3) == 0 || self.profile.has(Sequence::CapSwings);
        let kind = if counts { WorkerKind::Count } else { WorkerKind::Gate };
        let stoppable = !one_in(&mut self.rng, self.profile.unstoppable_one_in);
        let worker = Worker::new(kind, stoppable);
        let clock = Clock::new(&mut self.rng, self.profile.bounds.drift_ppm);
        let mut node = Pod::new(key, clock, generation, worker);
        node.drain_deadline =
            self.rng.bool().then_some(self.profile.ttl * self.rng.u32(1..=6) + Duration::ZERO);
        node.stays = self.rng.bool();
        node.ends_worker = !node.stays && self.pods.len() % 2 == 1;
        node.address = pipelines::address(self.pods.len());
        node.exposes_bindings = !self.profile.pipelines || self.rng.u8(0..8) > 0;
        if let Some(other) = twin_of {
            self.pods[other].replaced_at = Some(self.t);
            node.twin = true;
            node.takes_name = self.keeps_names && self.rng.bool();
            if node.takes_name {
                self.coverage.hit("fault: twin takes the name over");
            }
        }
        self.pods.push(node);
        let pod = self.pods.len() - 1;
        let (first, second) = (self.rng.u64(0..50 * MS), self.rng.u64(0..200 * MS));
        self.after(first, SimEvent::BootAgent { pod, run: 0 });
        self.after(second, SimEvent::BootWorker { pod, start: 0 });
        pod
    }

    /// Every cluster and class that pods are made for, one after the other.
    fn clusters_for_pods(&self) -> Vec<ClusterName> {
        let mut all = self.manifests.clusters_for_pods();
        if self.profile.pipelines {
            // A class gets two pods for each one of a cluster.
            all.extend(pipelines::classes(&self.manifests.current));
        }
        all
    }

    /// Asks a pod to leave: its agent drains, and the pod ends when the agent has left.
    pub(super) fn drain_pod(&mut self, pod: usize) {
        if self.quiet_since.is_some() && self.paused_pod(pod) {
            // Its agent learns of that when it continues.
            let goes_on = self.pods[pod].paused_until - self.t;
            self.after(goes_on, SimEvent::DrainPod { pod });
            return;
        }
        if std::mem::replace(&mut self.pods[pod].leaving, true) {
            return;
        }
        self.coverage.hit("fault: pod asked to leave");
        if !self.paused_pod(pod) {
            self.agent_call(pod, leasehold_agent_core::Holder::drain);
        }
    }

    /// Ends a pod: none of its processes runs any longer.
    pub(super) fn end_pod(&mut self, pod: usize) {
        if std::mem::replace(&mut self.pods[pod].dead, true) {
            return;
        }
        self.trace.say(self.t, || format!("        p{pod} is dead"));
        self.crash_worker(pod, None);
        self.crash_agent(pod, true, None);
    }

    /// Whether the platform removes this pod though it runs: it does in some worlds where it says
    /// who may speak.
    pub(super) fn may_be_removed(&mut self, pod: usize) -> bool {
        let node = &self.pods[pod];
        let alone = !(node.twin || node.is_replaced() || node.removed);
        let removes = self.profile.removes_pods && self.store.shape == Shape::Objects;
        removes && alone && self.rng.bool()
    }

    /// The platform removes a pod that it cannot reach: no agent of it may speak from now on. It
    /// runs on for a while, and counts as gone when it has really ended.
    pub(super) fn remove_pod(&mut self, pod: usize) {
        self.coverage.hit("fault: pod removed that runs on");
        self.pods[pod].removed = true;
        let key = self.pods[pod].key.clone();
        for replica in 0..self.replicas.len() {
            let lag = self.rng.u64(0..=self.profile.platform_lag);
            self.after(lag, SimEvent::Removed { replica, key: key.clone() });
        }
        let ends = self.rng.u64(MS..self.profile.ttl_real() * 4);
        self.after(ends, SimEvent::EndPod { pod });
    }

    /// A leader gives a silent worker up. With `lost.after` a person promises that it has ended by
    /// then.
    pub(super) fn end_given_up(&mut self, worker: &WorkerKey) {
        let name = worker.present();
        for pod in self.view().living() {
            if self.pods[pod].key == name {
                self.coverage.hit("fault: worker given up that lived");
                self.end_pod(pod);
            }
        }
    }

    /// Lists which of the pods that a leader may wait for are gone.
    pub(super) fn list(&mut self) {
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].leads().is_none() {
                continue;
            }
            let mut keys: Vec<WorkerKey> = self.store.register.keys().cloned().collect();
            keys.extend(self.known_to(replica));
            keys.sort();
            keys.dedup();
            keys.retain(|key| self.is_gone(replica, key));
            if !keys.is_empty() {
                let lag = self.rng.u64(0..=self.profile.platform_lag);
                self.after(lag, SimEvent::Gone { replica, keys });
            }
        }
        let every: Real = self.profile.ttl_real() / 2;
        self.after(every, SimEvent::ListPods);
    }

    fn known_to(&self, replica: usize) -> Vec<WorkerKey> {
        let now = self.view().local_of_replica(replica);
        let Some(core) = self.replicas[replica].core.as_ref() else { return Vec::new() };
        let clusters = self.manifests.current.clusters.keys();
        let workers = clusters.filter_map(|cluster| core.workers(cluster, now)).flatten();
        workers.map(|worker| worker.key).collect()
    }

    /// Whether no pod of this name lives; where names are kept, whether the pod does not whose
    /// agent the account is of at this replica.
    pub(super) fn is_gone(&self, replica: usize, key: &WorkerKey) -> bool {
        let name = key.present();
        let listed = |pod: &&Pod| pod.key == name && (!pod.dead || self.t < pod.listed_from);
        let mut living = self.pods.iter().filter(listed);
        match self.agent_of(replica, key) {
            Some(agent) => !living.any(|pod| pod.identities.contains(&agent)),
            None => living.next().is_none(),
        }
    }

    /// The identity of the agent that an account is of, where names are kept: as the replica knows
    /// it, or as it is stored.
    fn agent_of(&self, replica: usize, key: &WorkerKey) -> Option<AgentId> {
        if !self.keeps_names {
            return None;
        }
        let now = self.view().local_of_replica(replica);
        let core = self.replicas[replica].core.as_ref();
        let known = core.and_then(|core| core.worker(key, now));
        let written = || self.store.register.get(key)?.as_ref()?.exposure.identity;
        known.map_or_else(written, |known| known.agent)
    }
}
