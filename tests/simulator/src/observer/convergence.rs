//! Whether the system has converged once faults have ended (L1, L2, L3).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leasehold_coordinator_core::desired::{Cluster, RolloutOrder};
use leasehold_coordinator_core::view::Presence;
use leasehold_types::{ClusterName, StreamKey};

use crate::system::View;
use crate::system::clock::Real;

impl View<'_> {
    pub(crate) fn quiet_period(&self) -> Real {
        let desired = self.manifests.desired();
        let waits = desired.sets.values().map(|set| set.moves.cooldown + set.moves.settle * 5);
        let longest = waits.max().unwrap_or_default().as_nanos() as Real;
        self.profile.ttl_real() * 2 + longest
    }

    pub(crate) fn convergence_timeout(&self) -> Real {
        let leadership = self.profile.leadership.as_nanos() as Real;
        self.profile.ttl_real() * 60 + leadership * 4
    }

    pub(crate) fn converged(&self) -> Result<(), (&'static str, String)> {
        let Some((leader, _)) = self.true_leader() else {
            return Err(("L1", "no replica leads".into()));
        };
        let core = self.replicas[leader].core.as_ref().ok_or(("L1", "no core".to_owned()))?;
        let now = self.local_of_replica(leader);
        for view in core.clusters(now) {
            if let Some(held) = view.held {
                return Err(("L1", format!("{} is held: {held}", view.name)));
            }
            if view.unreported + view.lost > 0 {
                return Err(("L1", format!("{}: unreported or lost workers", view.name)));
            }
        }
        for pod in self.living() {
            let node = &self.pods[pod];
            if node.leaving || node.is_replaced() {
                return Err(("L7", format!("p{pod} has not left yet")));
            }
            // A stopped agent whose lease is longer than its class's present one may be lost only
            // after the system was still: after the change, and not because of it.
            if self.was_stopped_lately(pod) {
                return Err(("L1", format!("p{pod} was stopped")));
            }
            if !node.worker.alive || node.agent.is_none() {
                return Err(("L1", format!("p{pod} has not come back yet")));
            }
            let presence = core.worker(&node.key, now).map(|view| view.presence);
            if presence != Some(Presence::Connected) {
                return Err(("L1", format!("p{pod} is {presence:?} to c{leader}")));
            }
        }
        let clusters: Vec<ClusterName> =
            self.manifests.desired().clusters.keys().cloned().collect();
        for cluster in clusters {
            self.pools_converged(&cluster)?;
            self.streams_converged(&cluster)?;
        }
        self.pipelines_converged(core)
    }

    pub(crate) fn workers_of(&self, cluster: &ClusterName) -> Vec<usize> {
        let mut living = self.living();
        living.retain(|pod| self.pods[*pod].key.cluster == *cluster);
        living
    }

    /// L3: the whole budget is granted, as far as workers can use it.
    fn pools_converged(&self, cluster: &ClusterName) -> Result<(), (&'static str, String)> {
        let desired = self.manifests.desired();
        let wanted = &desired.clusters[cluster];
        let workers = self.workers_of(cluster);
        let most = wanted.jobs_per_worker_max.saturating_mul(workers.len() as u32);
        let size = |pod: &usize| self.pods[*pod].size_in_effect(self.local_of_pod(*pod));
        let granted: u32 = workers.iter().map(size).sum();
        let due = wanted.jobs_max.min(most);
        if granted != due {
            let details = workers.iter().map(|pod| {
                let memory = &self.pods[*pod].disk.borrow().memory;
                let (jobs, real) = (&memory.jobs, self.pods[*pod].worker.jobs.len());
                let (size, draining, failing) = (size(pod), memory.draining, memory.failing);
                format!(
                    "p{pod}: {size} of {:?}, draining {draining}, failing {failing}, {jobs:?} {} \
                     {:?} {real}",
                    memory.pool, memory.unnamed, memory.count
                )
            });
            let details: Vec<_> = details.collect();
            let what = format!("{cluster}: {granted} slots in effect, {due} are due: {details:?}");
            return Err(("L3", what));
        }
        let shares = workers.iter().map(|pod| (self.pods[*pod].generation, size(pod)));
        check_shares(shares, wanted).map_err(|why| ("L3", format!("{cluster}: {why}")))
    }

    /// L2: every stream has an owner while there is room. That is any worker for a stream that is
    /// not dedicated, and as many dedicated ones as workers can be spared for them.
    fn streams_converged(&self, cluster: &ClusterName) -> Result<(), (&'static str, String)> {
        let desired = self.manifests.desired();
        let owners = self.owners();
        let workers = self.workers_of(cluster);
        let sets = desired.sets.iter().filter(|(_, set)| set.cluster == *cluster);
        let streams = sets.clone().flat_map(|(_, set)| set.streams.iter());
        let dedicated = streams.clone().filter(|stream| stream.dedicated).count();
        // If any stream is not dedicated, one worker gets no dedicated stream.
        let shared = usize::from(dedicated < streams.count());
        let room = dedicated.min(workers.len().saturating_sub(shared));
        let mut placed = 0;
        let mut waiting = Vec::new();
        let stray = owners.keys().filter(|key| !key.set.is_shares()).find(|key| {
            let set = desired.sets.get(&key.set);
            set.is_none_or(|set| !set.streams.iter().any(|stream| stream.name == key.stream))
        });
        if let Some(stray) = stray {
            return Err(("L1", format!("{stray} is used and no longer desired")));
        }
        for (name, set) in sets {
            for stream in set.streams.iter() {
                let key = StreamKey { set: name.clone(), stream: stream.name.clone() };
                match owners.get(&key) {
                    None if !stream.dedicated && !workers.is_empty() => {
                        return Err(("L2", self.explain_unowned(&key)));
                    }
                    None => waiting.push(key),
                    Some(pod) if !workers.contains(pod) => {
                        return Err(("L2", format!("{key} is owned by p{pod} of another cluster")));
                    }
                    Some(_) => placed += usize::from(stream.dedicated),
                }
            }
        }
        if placed < room {
            let why: Vec<_> = waiting.iter().map(|key| self.explain_unowned(key)).collect();
            let why = why.join("; ");
            let what = format!("{cluster}: {placed} dedicated streams owned, room for {room}");
            return Err(("L2", format!("{what}; {why}")));
        }
        Ok(())
    }

    fn explain_unowned(&self, key: &StreamKey) -> String {
        let details = self.true_leader().and_then(|(leader, _)| {
            let now = self.local_of_replica(leader);
            self.replicas[leader].core.as_ref()?.explain_stream(key, now)
        });
        format!("{key} has no owner: {details:?}")
    }

    /// The pool sizes of the living pods whose clusters have none to change: where slots of an
    /// agent that has lost its memory still count, pools change when they no longer do.
    pub(crate) fn settled_pool_sizes(&self) -> BTreeMap<usize, u32> {
        let size = |pod: usize| Some((pod, self.pods[pod].disk.borrow().memory.pool?.1));
        let mut pods = self.living();
        pods.retain(|pod| self.has_settled_slots(&self.pods[*pod].key.cluster));
        pods.into_iter().filter_map(size).collect()
    }

    /// Whether the leader knows who uses each slot of a cluster that counts.
    fn has_settled_slots(&self, cluster: &ClusterName) -> bool {
        let Some((leader, _)) = self.true_leader() else { return false };
        let now = self.local_of_replica(leader);
        let core = self.replicas[leader].core.as_ref();
        let mut workers = core.and_then(|core| core.workers(cluster, now)).into_iter().flatten();
        workers.all(|worker| {
            let known = worker.granted.max(worker.in_effect).max(worker.running.unwrap_or(0));
            worker.committed <= known
        })
    }

    /// The pod that really uses each stream.
    pub(crate) fn owners(&self) -> BTreeMap<StreamKey, usize> {
        let mut owners = BTreeMap::new();
        for pod in self.living() {
            let now = self.local_of_pod(pod);
            owners.extend(self.uses_now(pod, now).map(|key| (key.clone(), pod)));
        }
        owners
    }
}

/// Whether workers of these generations have the shares of the budget that its order gives them:
/// those of the newest generation all that they can use, the next ones what is left, and workers of
/// one generation alike.
fn check_shares(workers: impl Iterator<Item = (u64, u32)>, wanted: &Cluster) -> Result<(), String> {
    let mut of_generation: BTreeMap<Reverse<u64>, Vec<u32>> = BTreeMap::new();
    for (generation, size) in workers {
        let rank = match wanted.rollout_order {
            RolloutOrder::Newest => Reverse(generation),
            RolloutOrder::Fair => Reverse(0),
        };
        of_generation.entry(rank).or_default().push(size);
    }
    let mut left = wanted.jobs_max;
    for (Reverse(generation), sizes) in &of_generation {
        let most = wanted.jobs_per_worker_max.saturating_mul(sizes.len() as u32);
        let (due, granted) = (left.min(most), sizes.iter().sum::<u32>());
        let spread =
            sizes.iter().max().zip(sizes.iter().min()).map_or(0, |(most, least)| most - least);
        if granted != due || spread > 1 {
            return Err(format!("{due} slots are due to generation {generation}: {sizes:?}"));
        }
        left -= due;
    }
    Ok(())
}
