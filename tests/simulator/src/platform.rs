//! The platform: the manifests and their edits, pods that come and go, and its words about them,
//! which lag.
//!
//! Invariant: it says "gone" only of what is really dead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, Stream, StreamSet,
};
use leasehold_types::{ClusterName, SetName, StreamName, WorkerKey, WorkerName};

use super::clock::{Clock, MS, Real};
use super::faults::{Profile, Sequence, one_in, pick};
use super::pipelines;
use super::pod::Pod;
use super::queue::Happening;
use super::worker::{Kind, Worker};
use super::world::World;

/// The desired state and its version.
#[derive(Debug)]
pub(super) struct Manifests {
    /// Grows with every edit.
    pub version: u64,
    current: Arc<Desired>,
    next_stream: u32,
    next_pod: u32,
}

/// The streams of a large set move in so few rounds, so that a run sees the end of it.
const ROUNDS_MAX: usize = 64;

impl Manifests {
    /// What a seed begins with.
    pub(super) fn new(rng: &mut fastrand::Rng, profile: &Profile) -> Self {
        let mut desired = Desired::default();
        // Pipelines are beside jobs and streams, or alone.
        let sizes = profile.sizes;
        let clusters = rng.usize(1..=sizes.clusters_max);
        let alone = profile.pipelines && rng.u8(0..3) == 0;
        for index in 0..if alone { 0 } else { clusters } {
            let name = ClusterName::new(&format!("k{index}")).expect("a name");
            let cluster = Cluster {
                jobs_max: rng.u32(1..=sizes.jobs_max),
                jobs_per_worker_max: rng.u32(1..=6),
                drain_deadline: profile.ttl * rng.u32(2..=8),
                ttl: profile.ttl,
                floor: u32::from(rng.u8(0..4) == 0),
                lost_after: None,
                class: None,
            };
            desired.clusters.insert(name, Arc::new(cluster));
        }
        let mut manifests =
            Self { version: 1, current: Arc::new(Desired::default()), next_stream: 0, next_pod: 0 };
        for index in 0..if alone { 0 } else { rng.usize(1..=sizes.sets_max) } {
            let name = SetName::new(&format!("s{index}")).expect("a name");
            let clusters: Vec<_> = desired.clusters.keys().cloned().collect();
            let count = rng.usize(1..=sizes.streams_max);
            let streams = (0..count).map(|_| manifests.stream(rng)).collect();
            let set = StreamSet {
                cluster: pick(rng, &clusters).clone(),
                streams,
                policy: if rng.u8(0..4) == 0 { Policy::Contiguous } else { Policy::Sticky },
                mode: if rng.u8(0..3) == 0 { Mode::Pinned } else { Mode::Expiring },
                handover_deadline: profile.ttl * rng.u32(1..=4) / 2,
                moves: Moves {
                    per_round_max: (*pick(rng, &[1, 3, 100])).max(count / ROUNDS_MAX),
                    cooldown: profile.ttl * rng.u32(0..=2),
                    settle: profile.ttl * rng.u32(0..=1) / 8,
                },
            };
            desired.sets.insert(name, Arc::new(set));
        }
        if profile.pipelines {
            pipelines::begin(&mut desired, rng, profile);
        }
        manifests.current = Arc::new(desired);
        manifests
    }

    /// The desired state now.
    pub(super) fn desired(&self) -> Arc<Desired> {
        Arc::clone(&self.current)
    }

    fn stream(&mut self, rng: &mut fastrand::Rng) -> Stream {
        self.next_stream += 1;
        Stream {
            name: StreamName::new(&format!("x:{}", self.next_stream)).expect("a name"),
            weight: if rng.u8(0..4) == 0 { rng.u32(1..=4) } else { 1 },
            dedicated: rng.u8(0..16) == 0,
        }
    }

    fn edit(&mut self, rng: &mut fastrand::Rng, profile: &Profile) -> &'static str {
        self.version += 1;
        let mut desired = (*self.current).clone();
        if profile.pipelines && (desired.sets.is_empty() || rng.u8(0..3) > 0) {
            let what = pipelines::edit(&mut desired, rng, profile);
            self.current = Arc::new(desired);
            return what;
        }
        let clusters = desired.clusters.iter().filter(|(_, cluster)| cluster.class.is_none());
        let cluster_names: Vec<_> = clusters.map(|(name, _)| name.clone()).collect();
        let set_names: Vec<_> = desired.sets.keys().cloned().collect();
        let cluster = desired.clusters.get_mut(pick(rng, &cluster_names)).map(Arc::make_mut);
        let cluster = cluster.expect("it was listed");
        let set = desired.sets.get_mut(pick(rng, &set_names)).map(Arc::make_mut);
        let set = set.expect("it was listed");
        match rng.u8(0..12) {
            0..=2 => cluster.jobs_max = rng.u32(0..=profile.sizes.jobs_max),
            4 => {
                cluster.jobs_per_worker_max = rng.u32(1..=6);
                cluster.floor = cluster.floor.min(cluster.jobs_per_worker_max);
            }
            3 | 5 => cluster.ttl = profile.ttl * rng.u32(3..=6) / 4,
            6 => cluster.floor = rng.u32(0..=1),
            7 => set.streams.push(self.stream(rng)),
            8 if set.streams.len() > 1 => {
                set.streams.remove(rng.usize(0..set.streams.len()));
            }
            9 => {
                set.policy = match set.policy {
                    Policy::Sticky => Policy::Contiguous,
                    Policy::Contiguous => Policy::Sticky,
                }
            }
            10 => {
                set.mode = match set.mode {
                    Mode::Expiring => Mode::Pinned,
                    Mode::Pinned => Mode::Expiring,
                }
            }
            _ => {
                let at = rng.usize(0..set.streams.len());
                set.streams[at].weight = rng.u32(1..=4);
                set.moves.cooldown = profile.ttl * rng.u32(0..=2);
            }
        }
        self.current = Arc::new(desired);
        "edit: a cluster or set"
    }

    fn restore(
        &mut self,
        rng: &mut fastrand::Rng,
        profile: &Profile,
        lived_in: &BTreeSet<ClusterName>,
    ) {
        self.version += 1;
        let mut desired = (*self.current).clone();
        pipelines::restore(&mut desired, rng, profile, lived_in);
        self.current = Arc::new(desired);
    }
}

impl World {
    /// The desired state changes; each replica learns it some time.
    pub(super) fn edit(&mut self) {
        let what = self.manifests.edit(&mut self.rng, &self.profile);
        self.cover.hit("fault: edit");
        self.cover.hit(what);
        self.tell_desired();
    }

    /// All clusters may run another number of jobs from now on.
    pub(super) fn resize(&mut self, jobs_max: impl Fn(u32, &mut fastrand::Rng) -> u32) {
        self.manifests.version += 1;
        let desired = Arc::make_mut(&mut self.manifests.current);
        for cluster in desired.clusters.values_mut().filter(|it| it.class.is_none()) {
            let cluster = Arc::make_mut(cluster);
            cluster.jobs_max = jobs_max(cluster.jobs_max, &mut self.rng);
        }
        self.tell_desired();
    }

    /// Classes whose workers live are there again.
    pub(super) fn restore_classes(&mut self) {
        if self.profile.pipelines {
            let living = self.living().into_iter();
            let lived_in = living.map(|pod| self.pods[pod].key.cluster.clone()).collect();
            self.manifests.restore(&mut self.rng, &self.profile, &lived_in);
            self.tell_desired();
        }
    }

    fn tell_desired(&mut self) {
        let (version, desired) = (self.manifests.version, self.manifests.desired());
        for replica in 0..self.replicas.len() {
            let lag = self.rng.u64(0..=self.profile.platform_lag);
            let desired = Arc::clone(&desired);
            self.after(lag, Happening::Desired { replica, version, desired });
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
        let counts = self.rng.u8(0..3) == 0 || self.profile.has(Sequence::Squeezes);
        let kind = if counts { Kind::Count } else { Kind::Gate };
        let stoppable = !one_in(&mut self.rng, self.profile.unstoppable_one_in);
        let worker = Worker::new(kind, stoppable);
        let clock = Clock::new(&mut self.rng, self.profile.bounds.drift_ppm);
        let mut node = Pod::new(key, clock, generation, worker);
        node.drain_deadline =
            self.rng.bool().then_some(self.profile.ttl * self.rng.u32(1..=6) + Duration::ZERO);
        node.stays = self.rng.bool();
        node.address = pipelines::address(self.pods.len());
        node.shows_bindings = !self.profile.pipelines || self.rng.u8(0..8) > 0;
        if let Some(other) = twin_of {
            self.pods[other].replaced_at = Some(self.t);
            node.twin = true;
        }
        self.pods.push(node);
        let pod = self.pods.len() - 1;
        let (first, second) = (self.rng.u64(0..50 * MS), self.rng.u64(0..200 * MS));
        self.after(first, Happening::BootAgent { pod, run: 0 });
        self.after(second, Happening::BootWorker { pod, start: 0 });
        pod
    }

    /// Every cluster and class that pods are made for, one after the other.
    fn clusters_for_pods(&self) -> Vec<ClusterName> {
        let clusters = &self.manifests.current.clusters;
        let mut all: Vec<_> = clusters.keys().cloned().collect();
        if self.profile.pipelines {
            // A class has two for one of a cluster.
            all.extend(pipelines::classes(&self.manifests.current));
        }
        all
    }

    /// Pods that are not dead.
    pub(super) fn living(&self) -> Vec<usize> {
        (0..self.pods.len()).filter(|pod| !self.pods[*pod].dead).collect()
    }

    /// A pod is asked to leave: its agent is told, and it ends at its grace period's end.
    pub(super) fn drain_pod(&mut self, pod: usize) {
        if self.calm_since.is_some() && self.paused_pod(pod) {
            // Its agent hears of it when it goes on.
            let goes_on = self.pods[pod].paused_until - self.t;
            self.after(goes_on, Happening::DrainPod { pod });
            return;
        }
        if std::mem::replace(&mut self.pods[pod].leaving, true) {
            return;
        }
        self.cover.hit("fault: pod asked to leave");
        if !self.paused_pod(pod) {
            self.agent_call(pod, leasehold_agent_core::Holder::drain);
        }
    }

    /// Nothing of a pod runs any more.
    pub(super) fn end_pod(&mut self, pod: usize) {
        if std::mem::replace(&mut self.pods[pod].dead, true) {
            return;
        }
        self.trace.say(self.t, || format!("        p{pod} is dead"));
        self.crash_worker(pod, None);
        self.crash_agent(pod, true, None);
    }

    /// The platform's look at its pods: which of those that a leader may wait for are gone?
    pub(super) fn list(&mut self) {
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].leads().is_none() {
                continue;
            }
            let mut keys: Vec<WorkerKey> = self.store.register.keys().cloned().collect();
            keys.extend(self.known_to(replica));
            keys.sort();
            keys.dedup();
            keys.retain(|key| self.is_gone(key));
            if !keys.is_empty() {
                let lag = self.rng.u64(0..=self.profile.platform_lag);
                self.after(lag, Happening::Gone { replica, keys });
            }
        }
        let every: Real = self.profile.ttl_real() / 2;
        self.after(every, Happening::List);
    }

    fn known_to(&self, replica: usize) -> Vec<WorkerKey> {
        let now = self.local_of_replica(replica);
        let Some(core) = self.replicas[replica].core.as_ref() else { return Vec::new() };
        let clusters = self.manifests.current.clusters.keys();
        let workers = clusters.filter_map(|cluster| core.workers(cluster, now)).flatten();
        workers.map(|worker| worker.key).collect()
    }

    /// Whether no pod of this name lives.
    pub(super) fn is_gone(&self, key: &WorkerKey) -> bool {
        !self.pods.iter().any(|pod| pod.key == *key && !pod.dead)
    }
}
