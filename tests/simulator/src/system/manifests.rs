//! The manifests of a run: what it begins with, and how they are edited.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, RolloutOrder, Stream, StreamSet,
};
use leasehold_types::{ClusterName, SetName, StreamName};

use crate::system::pipelines;
use crate::system::profile::{Profile, TTL_QUARTERS, pick};

/// The desired state and its version.
#[derive(Debug)]
pub(crate) struct Manifests {
    /// Grows with every edit.
    pub version: u64,
    pub current: Arc<Desired>,
    pub next_stream: u32,
    pub next_pod: u32,
    /// The set that was removed last, until it comes back.
    removed: Option<(SetName, Arc<StreamSet>)>,
}

/// A cluster that no pod is made for.
const IDLE: &str = "idle";

/// The streams of a large set move in at most this many rounds, so that the moves end within the
/// run.
const ROUNDS_MAX: usize = 64;
/// One budget in this many is shared out without regard to generations.
const FAIR_EVERY: u32 = 4;

impl Manifests {
    /// What a seed begins with.
    pub(crate) fn new(rng: &mut fastrand::Rng, profile: &Profile) -> Self {
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
                lost_after: profile.lost_after,
                ..Cluster::example()
            };
            desired.clusters.insert(name, Arc::new(cluster));
        }
        let mut manifests = Self {
            version: 1,
            current: Arc::new(Desired::default()),
            next_stream: 0,
            next_pod: 0,
            removed: None,
        };
        for index in 0..if alone { 0 } else { rng.usize(1..=sizes.sets_max) } {
            let name = SetName::new(&format!("s{index}")).expect("a name");
            let clusters: Vec<_> = desired.clusters.keys().cloned().collect();
            let count = rng.usize(1..=sizes.streams_max);
            let streams = (0..count).map(|_| manifests.stream(rng)).collect();
            let set = StreamSet {
                cluster: pick(rng, &clusters).clone(),
                streams: Arc::new(streams),
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
        if profile.moves_sets
            && let Some(first) = desired.clusters.values().next().cloned()
        {
            desired.clusters.insert(idle(), first);
        }
        if profile.pipelines {
            pipelines::begin(&mut desired, rng, profile);
        }
        manifests.current = Arc::new(desired);
        manifests
    }

    /// The desired state now.
    pub(crate) fn desired(&self) -> Arc<Desired> {
        Arc::clone(&self.current)
    }

    /// The clusters and classes that pods are made for.
    pub(crate) fn clusters_for_pods(&self) -> Vec<ClusterName> {
        let idle = idle();
        self.current.clusters.keys().filter(|name| **name != idle).cloned().collect()
    }

    pub(crate) fn stream(&mut self, rng: &mut fastrand::Rng) -> Stream {
        self.next_stream += 1;
        Stream {
            name: StreamName::new(&format!("x:{}", self.next_stream)).expect("a name"),
            weight: if rng.u8(0..4) == 0 { rng.u32(1..=4) } else { 1 },
            dedicated: rng.u8(0..16) == 0,
        }
    }

    pub(crate) fn edit(&mut self, rng: &mut fastrand::Rng, profile: &Profile) -> &'static str {
        self.version += 1;
        let mut desired = (*self.current).clone();
        if profile.moves_sets
            && (desired.sets.is_empty() || rng.bool())
            && let Some(what) = self.move_set(&mut desired, rng)
        {
            self.current = Arc::new(desired);
            return what;
        }
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
            0..=2 => {
                cluster.jobs_max = rng.u32(0..=profile.sizes.jobs_max);
                cluster.rollout_order = match cluster.jobs_max % FAIR_EVERY {
                    0 => RolloutOrder::Fair,
                    _ => RolloutOrder::Newest,
                };
            }
            4 => {
                cluster.jobs_per_worker_max = rng.u32(1..=6);
                cluster.floor = cluster.floor.min(cluster.jobs_per_worker_max);
            }
            3 | 5 => cluster.ttl = profile.ttl * rng.u32(TTL_QUARTERS) / 4,
            6 => cluster.floor = rng.u32(0..=1),
            7 => Arc::make_mut(&mut set.streams).push(self.stream(rng)),
            8 if set.streams.len() > 1 => {
                let at = rng.usize(0..set.streams.len());
                Arc::make_mut(&mut set.streams).remove(at);
            }
            9 => {
                set.policy = match set.policy {
                    Policy::Sticky => Policy::Contiguous,
                    Policy::Contiguous => Policy::Sticky,
                }
            }
            10 => set.mode = other_mode(set.mode),
            _ => {
                let at = rng.usize(0..set.streams.len());
                Arc::make_mut(&mut set.streams)[at].weight = rng.u32(1..=4);
                set.moves.cooldown = profile.ttl * rng.u32(0..=2);
            }
        }
        self.current = Arc::new(desired);
        "edit: a cluster or set"
    }

    /// While an entry of one of its workers is written, a cluster's leases get another length, or a
    /// set another cluster.
    pub(crate) fn edit_meanwhile(
        &mut self,
        cluster: &ClusterName,
        rng: &mut fastrand::Rng,
        profile: &Profile,
    ) {
        let mut desired = (*self.current).clone();
        let ttl = profile.ttl * rng.u32(TTL_QUARTERS) / 4;
        match desired.clusters.get_mut(cluster) {
            Some(cluster) if rng.bool() => Arc::make_mut(cluster).ttl = ttl,
            _ => _ = self.move_set(&mut desired, rng),
        }
        self.version += 1;
        self.current = Arc::new(desired);
    }

    /// A set gets another cluster, is removed, or comes back with another cluster; its mode may
    /// change with that. `None` if there is no other cluster or no set.
    fn move_set(&mut self, desired: &mut Desired, rng: &mut fastrand::Rng) -> Option<&'static str> {
        let back = self.removed.take_if(|_| desired.sets.is_empty() || rng.bool());
        let (name, mut set) = match back.clone() {
            Some(back) => back,
            None => {
                let at = rng.usize(0..desired.sets.len().max(1));
                let (name, set) = desired.sets.iter().nth(at)?;
                (name.clone(), Arc::clone(set))
            }
        };
        if back.is_none() && self.removed.is_none() && rng.u8(0..3) == 0 {
            self.removed = desired.sets.remove_entry(&name);
            return Some("edit: a set removed");
        }
        let clusters = desired.clusters.iter().filter(|(_, cluster)| cluster.class.is_none());
        let others: Vec<_> =
            clusters.map(|(name, _)| name).filter(|name| **name != set.cluster).collect();
        let changed = Arc::make_mut(&mut set);
        changed.cluster = (*rng.choice(others)?).clone();
        if rng.bool() {
            changed.mode = other_mode(changed.mode);
        }
        desired.sets.insert(name, set);
        Some(match back {
            Some(_) => "edit: a set back on another cluster",
            None => "edit: a set moved",
        })
    }

    pub(crate) fn restore(
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

fn idle() -> ClusterName {
    ClusterName::new(IDLE).expect("a name")
}

fn other_mode(mode: Mode) -> Mode {
    match mode {
        Mode::Expiring => Mode::Pinned,
        Mode::Pinned => Mode::Expiring,
    }
}
