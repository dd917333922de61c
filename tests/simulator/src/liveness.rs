//! After the faults: the system converges, then stays still, and answers one change with the
//! fewest moves.
//!
//! Invariant: what it demands is promised by L1 to L7 of the protocol's page.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::desired::{Policy, Rebalance};
use leasehold_coordinator_core::view::Presence;
use leasehold_types::{ClusterName, PipelineName, SetName, ShareKey, StreamKey};

use super::clock::Real;
use super::queue::Happening;
use super::world::World;

/// How far the liveness phase has come.
#[derive(Debug, Default)]
pub(super) enum Stage {
    /// It converges.
    #[default]
    Converging,
    /// It had converged, and one thing changed.
    Changed(Change),
    /// All is done.
    Done,
}

/// The one change, and how things were before it.
#[derive(Debug)]
pub(super) struct Change {
    what: What,
    pub(super) owners: BTreeMap<StreamKey, usize>,
    /// Streams that were asked back, or that the plan had elsewhere.
    handed_over: BTreeSet<StreamKey>,
    /// Pipelines that waited for workers.
    pub(super) waiting: Vec<PipelineName>,
    /// All that a worker had which is lost finds room beside everything else.
    fits_beside: bool,
    /// Workers that somebody declared gone since, and the pipelines of which they had shares.
    pub(super) ended: BTreeMap<usize, Vec<PipelineName>>,
}

impl Change {
    /// A worker was declared gone.
    pub(super) fn end(&mut self, pod: usize, pipelines: Vec<PipelineName>) {
        self.ended.insert(pod, pipelines);
    }

    /// Whether a stream of the set was on its way from one worker to another.
    pub(super) fn hands_over(&self, set: &SetName) -> bool {
        self.handed_over.iter().any(|key| key.set == *set)
    }

    /// Whether a pipeline was to be healed since, because a worker was declared gone.
    pub(super) fn breaks(&self, pipeline: &PipelineName) -> bool {
        self.ended.values().flatten().any(|it| it == pipeline)
    }
}

#[derive(Debug)]
enum What {
    Failover,
    Join(usize),
    Leave(usize),
    Loss(usize),
}

impl World {
    /// Looks whether it has converged, and goes on from there.
    pub(super) fn look(&mut self) {
        let ttl = self.profile.ttl_real();
        self.after(ttl / 2, Happening::Look);
        let waited = self.t - self.calm_since.unwrap_or(self.t);
        self.check_drain(waited);
        if let Stage::Changed(Change { what: What::Failover, .. }) = self.stage {
            self.check_served_again(waited);
        }
        self.check_deposed();
        if let Err(why) = self.converged() {
            self.trace.say(self.t, || format!("        not converged: {why:?}"));
            if waited > self.patience() / 2 {
                self.declare_gone();
            }
            if waited > self.patience() {
                let property = why.0;
                self.fail(property, || format!("not converged: {}", why.1));
            }
            return;
        }
        // Still for longer than any cooldown and settling that a manifest may ask for.
        if self.t - self.observer.last_change < self.stillness() {
            if waited > self.patience() {
                self.fail("L4", || "it moves again and again".into());
            }
            return;
        }
        self.cover.hit("converged and still");
        self.expect_leader();
        match std::mem::take(&mut self.stage) {
            Stage::Converging => {
                if !self.hinder() {
                    self.change_one_thing();
                }
            }
            Stage::Changed(change) => {
                self.check_change(&change);
                self.stage = Stage::Done;
            }
            Stage::Done => self.stage = Stage::Done,
        }
    }

    /// L7: a drain that nothing disturbs is over at its deadline, in an agent that leaves or says
    /// what outlived it.
    fn check_drain(&mut self, waited: Real) {
        let Stage::Changed(Change { what: What::Leave(pod), .. }) = self.stage else { return };
        let node = &self.pods[pod];
        if node.dead || node.left || !node.leaving || self.observer.drains_overdue.contains(&pod) {
            return;
        }
        let desired = self.manifests.desired();
        let Some(cluster) = desired.clusters.get(&node.key.cluster) else { return };
        let deadline = node.drain_deadline.unwrap_or(cluster.drain_deadline);
        // Its clock may be slow, and its last words may be on their way.
        let most = deadline.as_nanos() as Real * 5 / 4 + self.profile.ttl_real() * 2;
        if waited > most {
            self.fail("L7", || format!("p{pod} drains for longer than {deadline:?}"));
        }
    }

    fn stillness(&self) -> Real {
        let desired = self.manifests.desired();
        let waits = desired.sets.values().map(|set| set.moves.cooldown + set.moves.settle * 5);
        let longest = waits.max().unwrap_or_default().as_nanos() as Real;
        self.profile.ttl_real() * 2 + longest
    }

    fn patience(&self) -> Real {
        let leadership = self.profile.leadership.as_nanos() as Real;
        self.profile.ttl_real() * 60 + leadership * 4
    }

    fn converged(&self) -> Result<(), (&'static str, String)> {
        let Some((leader, _)) = self.true_leader() else {
            return Err(("L1", "nobody leads".into()));
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
            // Under a longer lease than its class's present one, a stopped agent is not lost for
            // as long as everything is to be still: it would be lost after a change, not by it.
            if self.is_hindered(pod) {
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

    fn workers_of(&self, cluster: &ClusterName) -> Vec<usize> {
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
            let told = workers.iter().map(|pod| {
                let memory = &self.pods[*pod].disk.borrow().memory;
                let (jobs, real) = (&memory.jobs, self.pods[*pod].worker.jobs.len());
                format!(
                    "p{pod}: {:?} {jobs:?} {} {:?} {real}",
                    memory.pool, memory.unnamed, memory.count
                )
            });
            let told: Vec<_> = told.collect();
            let what = format!("{cluster}: {granted} slots in effect, {due} are due: {told:?}");
            return Err(("L3", what));
        }
        Ok(())
    }

    /// L2: every stream has an owner while there is room. That is any worker for a stream that is
    /// not dedicated, and as many dedicated ones as workers can be spared for them.
    fn streams_converged(&self, cluster: &ClusterName) -> Result<(), (&'static str, String)> {
        let desired = self.manifests.desired();
        let owners = self.owners();
        let workers = self.workers_of(cluster);
        let sets = desired.sets.iter().filter(|(_, set)| set.cluster == *cluster);
        let streams = sets.clone().flat_map(|(_, set)| &set.streams);
        let dedicated = streams.clone().filter(|stream| stream.dedicated).count();
        // Where any stream is not dedicated, one worker is reserved for none.
        let shared = usize::from(dedicated < streams.count());
        let room = dedicated.min(workers.len().saturating_sub(shared));
        let mut placed = 0;
        let mut waiting = Vec::new();
        let stray = owners.keys().filter(|key| !key.set.is_shares()).find(|key| {
            let set = desired.sets.get(&key.set);
            set.is_none_or(|set| !set.streams.iter().any(|stream| stream.name == key.stream))
        });
        if let Some(stray) = stray {
            return Err(("L1", format!("{stray} is desired no more, and used")));
        }
        for (name, set) in sets {
            for stream in &set.streams {
                let key = StreamKey { set: name.clone(), stream: stream.name.clone() };
                match owners.get(&key) {
                    None if !stream.dedicated && !workers.is_empty() => {
                        return Err(("L2", self.why_unowned(&key)));
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
            let why: Vec<_> = waiting.iter().map(|key| self.why_unowned(key)).collect();
            let why = why.join("; ");
            let what = format!("{cluster}: {placed} dedicated streams owned, room for {room}");
            return Err(("L2", format!("{what}; {why}")));
        }
        Ok(())
    }

    fn why_unowned(&self, key: &StreamKey) -> String {
        let told = self.true_leader().and_then(|(leader, _)| {
            let now = self.local_of_replica(leader);
            self.replicas[leader].core.as_ref()?.explain_stream(key, now)
        });
        format!("{key} has no owner: {told:?}")
    }

    /// Who really uses each stream.
    fn owners(&self) -> BTreeMap<StreamKey, usize> {
        let mut owners = BTreeMap::new();
        for pod in self.living() {
            let now = self.local_of_pod(pod);
            owners.extend(self.uses_now(pod, now).map(|key| (key.clone(), pod)));
        }
        owners
    }

    fn change_one_thing(&mut self) {
        let living = self.living();
        let Some(pod) = self.rng.choice(living) else {
            self.stage = Stage::Done;
            return;
        };
        let (owners, handed_over) = (self.owners(), self.handed_over());
        self.observer.streams_changed.clear();
        self.observer.streams_expired.clear();
        let mut waiting = self.waiting_pipelines();
        let mut fits_beside = false;
        // Where there are pipelines, a loss is what heals them.
        let kinds = if self.profile.pipelines { 8 } else { 5 };
        let what = match self.rng.u8(0..kinds) {
            0 | 1 => {
                let (leader, _) = self.true_leader().expect("it has converged");
                let standby = (leader + 1) % self.replicas.len();
                match self.rng.bool() {
                    true => {
                        self.crash_replica(leader);
                        self.after(
                            super::clock::MS * 50,
                            Happening::BootReplica { replica: leader },
                        );
                    }
                    false => self.cover.hit("checked: a leader that lives is followed"),
                }
                self.expect_failover();
                // A standby that loses its connection to the leader does not wait.
                self.replicas[standby].election.eager = true;
                let run = self.replicas[standby].run;
                self.after(super::clock::MS, Happening::Poll { replica: standby, run });
                What::Failover
            }
            2 => {
                let newest = self.pods.iter().map(|pod| pod.generation).max().unwrap_or(0);
                What::Join(self.new_pod(None, newest))
            }
            3 | 5.. => {
                // Where there is one, one that serves something.
                let serving =
                    self.living().into_iter().filter(|it| !self.pipelines_at(*it).is_empty());
                let serving: Vec<_> = serving.collect();
                let pod = self.rng.choice(serving).unwrap_or(pod);
                waiting.extend(self.pipelines_at(pod));
                fits_beside = self.fits_beside(pod);
                self.end_pod(pod);
                What::Loss(pod)
            }
            _ => {
                // What its worker was never told of, its agent holds all the same.
                waiting.extend(self.pipelines_at(pod));
                self.drain_pod(pod);
                What::Leave(pod)
            }
        };
        self.trace.say(self.t, || format!("        one change: {what:?}"));
        let ended = BTreeMap::new();
        let change = Change { what, owners, handed_over, waiting, fits_beside, ended };
        self.stage = Stage::Changed(change);
        self.calm_since = Some(self.t);
        self.observer.last_change = self.t;
    }

    /// L4, L6: no move that the change did not ask for.
    fn check_change(&mut self, change: &Change) {
        let owners = self.owners();
        let moved = change.owners.iter().filter(|(key, pod)| owners.get(*key) != Some(*pod));
        let moved: Vec<_> = moved.filter(|(_, pod)| !change.ended.contains_key(pod)).collect();
        match change.what {
            What::Failover => {
                self.cover.hit("checked: a failover moves nothing");
                self.cover.hit("checked: a fleet is served again after a failover");
                let moved: BTreeSet<_> = moved.into_iter().map(|(key, _)| key).collect();
                let changed = moved.iter().copied().chain(&self.observer.streams_changed);
                let wrong: BTreeSet<_> =
                    changed.filter(|key| !self.may_move_at_failover(change, key)).collect();
                if !wrong.is_empty() {
                    let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
                    self.fail("L6", || format!("a failover moved {wrong:?}"));
                }
            }
            What::Join(pod) => {
                self.cover.hit("checked: a join moves the fewest");
                let (shares, moved) = parted(moved);
                self.check_shares_moved(change, &shares, None);
                let most = self.moves_at_join(pod);
                let away =
                    moved.iter().any(|(key, _)| owners.get(*key).is_some_and(|to| *to != pod));
                if let Some(most) = most.filter(|most| away || moved.len() > *most) {
                    let detail = format!("a join of p{pod} moved {moved:?}; at most {most} due");
                    self.fail("L4", || detail);
                }
            }
            What::Leave(pod) | What::Loss(pod) => {
                self.cover.hit(match change.what {
                    What::Loss(_) => "checked: a loss moves only its own",
                    _ => "checked: a leave moves only its own",
                });
                let (shares, moved) = parted(moved);
                self.check_shares_moved(change, &shares, Some(pod));
                if change.fits_beside {
                    self.check_healed(change, &shares, pod);
                }
                let others = moved.iter().any(|(_, from)| **from != pod);
                if others && self.plain(&self.pods[pod].key.cluster.clone()) {
                    let detail = format!("the end of p{pod} moved {moved:?}");
                    self.fail("L4", || detail);
                }
            }
        }
    }

    /// L4 for shares: a healthy pipeline that has nothing on a worker that leaves stays as it is.
    fn check_shares_moved(
        &mut self,
        change: &Change,
        moved: &[(&StreamKey, &usize)],
        left: Option<usize>,
    ) {
        let desired = self.manifests.desired();
        let mut classes = desired.clusters.values().filter_map(|cluster| cluster.class.as_ref());
        if classes.any(|class| class.rebalance == Rebalance::WhenBlocked) {
            return;
        }
        let pipeline = |key: &StreamKey| ShareKey::of(key).map(|share| share.pipeline);
        let had = change.owners.iter().filter(|(_, pod)| Some(**pod) == left);
        let had: Vec<_> = had.filter_map(|(key, _)| pipeline(key)).collect();
        let wrong = moved.iter().find(|(key, _)| {
            let excused =
                |it| had.contains(&it) || change.waiting.contains(&it) || change.breaks(&it);
            pipeline(key).is_some_and(|it| !excused(it))
        });
        if change.owners.keys().any(|key| key.set.is_shares()) {
            self.cover.hit("checked: healthy pipelines stay as they are");
        }
        if let Some((key, from)) = wrong {
            self.fail("L4", || format!("{key} left p{from} for nothing: {:?}", change.what));
        }
    }

    /// L4 for shares: where all that a lost worker had fits beside everything else, whatever is
    /// healed keeps what it still has.
    fn check_healed(&mut self, change: &Change, moved: &[(&StreamKey, &usize)], lost: usize) {
        self.cover.hit("checked: what is healed keeps what it has");
        let expired: Vec<_> =
            self.observer.streams_expired.iter().filter_map(ShareKey::of).collect();
        let ended = |key: &StreamKey| {
            let pipeline = ShareKey::of(key).map(|share| share.pipeline);
            pipeline.as_ref().is_some_and(|it| change.breaks(it))
                || expired.iter().any(|share| Some(&share.pipeline) == pipeline.as_ref())
        };
        let wrong = moved.iter().find(|(key, from)| **from != lost && !ended(key));
        if let Some((key, from)) = wrong {
            self.fail("L4", || format!("{key} left p{from} when p{lost} was lost"));
        }
    }

    /// Whether the cluster's streams are all alike, so that the fewest moves are plain to see.
    fn plain(&self, cluster: &ClusterName) -> bool {
        let desired = self.manifests.desired();
        let mut sets = desired.sets.values().filter(|set| set.cluster == *cluster);
        sets.all(|set| {
            let alike =
                |s: &leasehold_coordinator_core::desired::Stream| s.weight == 1 && !s.dedicated;
            set.policy == Policy::Sticky && set.streams.iter().all(alike)
        })
    }

    fn moves_at_join(&self, pod: usize) -> Option<usize> {
        let cluster = &self.pods[pod].key.cluster;
        if !self.plain(cluster) {
            return None;
        }
        let desired = self.manifests.desired();
        let sets = desired.sets.values().filter(|set| set.cluster == *cluster);
        // Each set may be balanced by itself.
        let workers = self.workers_of(cluster).len();
        Some(sets.map(|set| set.streams.len().div_ceil(workers)).sum())
    }
}

type Moved<'a> = Vec<(&'a StreamKey, &'a usize)>;

/// Shares of pipelines, and streams.
fn parted(moved: Moved<'_>) -> (Moved<'_>, Moved<'_>) {
    moved.into_iter().partition(|(key, _)| key.set.is_shares())
}
