//! The one change once faults have ended: it moves only what it must (L4, L6, L7).
//!
//! Invariant: a failover is excused for one stream, or for what is placed together with it: the
//! shares of its pipeline or class, the streams of its set.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::desired::{Policy, Rebalance};
use leasehold_coordinator_core::view::ClaimPhase;
use leasehold_types::{ClusterName, PipelineName, SetName, ShareKey, StreamKey};

use crate::observer::Checks;
use crate::system::View;
use crate::system::clock::Real;

/// The one change, and how things were before it.
#[derive(Debug)]
pub(crate) struct SystemChange {
    /// What changed.
    pub kind: ChangeKind,
    /// Who used each stream.
    pub owners: BTreeMap<StreamKey, usize>,
    /// Streams that were revoked, or that the plan had elsewhere.
    pub handed_over: BTreeSet<StreamKey>,
    /// Pipelines that waited for workers.
    pub waiting: Vec<PipelineName>,
    /// Everything that a lost worker had finds room beside the rest.
    pub fits_beside: bool,
    /// The worker that died with the leader.
    pub died: Option<usize>,
    /// Workers that died with the leader or were declared gone since, and the pipelines of which
    /// they had shares.
    pub ended: BTreeMap<usize, Vec<PipelineName>>,
}

impl SystemChange {
    /// A worker was declared gone.
    pub(crate) fn end(&mut self, pod: usize, pipelines: Vec<PipelineName>) {
        self.ended.insert(pod, pipelines);
    }

    /// Whether a stream of the set was on its way from one worker to another.
    fn hands_over(&self, set: &SetName) -> bool {
        self.handed_over.iter().any(|key| key.set == *set)
    }

    /// Whether a pipeline had to be healed since, because a worker was declared gone.
    pub(crate) fn breaks(&self, pipeline: &PipelineName) -> bool {
        self.ended.values().flatten().any(|broken| broken == pipeline)
    }
}

#[derive(Debug)]
pub(crate) enum ChangeKind {
    /// The leader dies, or another replica takes over from it.
    Failover,
    /// This pod appears.
    Join(usize),
    /// This pod is asked to leave.
    Leave(usize),
    /// This pod is lost.
    Loss(usize),
}

type Moved<'a> = Vec<(&'a StreamKey, &'a usize)>;

impl View<'_> {
    /// Streams on their way from one worker to another: the next leader ends what this one began.
    pub(crate) fn handed_over(&self) -> BTreeSet<StreamKey> {
        let leader =
            self.true_leader().and_then(|(replica, _)| self.replicas[replica].core.as_ref());
        let Some(core) = leader else { return BTreeSet::new() };
        let desired = self.manifests.desired();
        let views = desired.sets.keys().filter_map(|set| core.streams(set, None)).flatten();
        let moves = views.filter(|view| {
            view.claims.iter().any(|claim| {
                claim.phase != ClaimPhase::Held
                    || Some(&claim.worker.worker) != view.planned.as_ref()
            })
        });
        moves.map(|view| view.key).collect()
    }

    /// Whether the cluster's streams are all alike, so that the fewest moves can be counted.
    fn has_uniform_streams(&self, cluster: &ClusterName) -> bool {
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
        if !self.has_uniform_streams(cluster) {
            return None;
        }
        let desired = self.manifests.desired();
        let sets = desired.sets.values().filter(|set| set.cluster == *cluster);
        // Each set may be balanced by itself.
        let workers = self.workers_of(cluster).len();
        Some(sets.map(|set| set.streams.len().div_ceil(workers)).sum())
    }
}

impl Checks<'_> {
    /// Whether a failover may end this stream's lease.
    fn may_move_at_failover(&self, change: &SystemChange, key: &StreamKey) -> bool {
        // An election and the way to the new leader can take longer than the leases of a seed
        // last; then what has ended is granted again.
        let expired = &self.observer.streams_expired;
        match ShareKey::of(key) {
            Some(share) => {
                self.is_placed_at_failover(change, &share.pipeline)
                    || self.makes_room_at_failover(change, &share)
            }
            // One without an owner waited for a worker of its own. If it gets one, the stream that
            // had this worker is judged itself. The owner may have been declared gone since.
            None => match change.owners.get(key) {
                None => true,
                Some(owner) if change.ended.contains_key(owner) => true,
                Some(owner) if self.may_follow_the_dead(change, *owner) => true,
                // A set moves a bounded number of streams at once: others wait for a late one.
                Some(_) => expired.contains(key) || change.hands_over(&key.set),
            },
        }
    }

    /// Whether streams of a pod may move since another worker of its cluster died with the leader,
    /// or was declared gone since.
    fn may_follow_the_dead(&self, change: &SystemChange, owner: usize) -> bool {
        let cluster = |pod: usize| &self.view.pods[pod].key.cluster;
        let mut dead = change.died.iter().chain(change.ended.keys());
        dead.any(|dead| cluster(*dead) == cluster(owner))
            && !self.view.has_uniform_streams(cluster(owner))
    }

    /// Whether the next leader has to place a pipeline: it cannot know which
    /// shares are served of a pipeline whose change waits.
    fn is_placed_at_failover(&self, change: &SystemChange, pipeline: &PipelineName) -> bool {
        let mut expired = self.observer.streams_expired.iter().filter_map(ShareKey::of);
        change.waiting.contains(pipeline)
            || change.breaks(pipeline)
            || expired.any(|share| share.pipeline == *pipeline)
    }

    /// Whether a share may make room for a pipeline that is placed: its class allows that.
    fn makes_room_at_failover(&self, change: &SystemChange, share: &ShareKey) -> bool {
        let desired = self.view.manifests.desired();
        let pipeline = desired.pipelines.get(&share.pipeline);
        let Some(node) = pipeline.and_then(|pipeline| pipeline.nodes.get(&share.node)) else {
            return false;
        };
        let class = desired.clusters.get(&node.class).and_then(|cluster| cluster.class.as_ref());
        let gives_way = class.is_some_and(|class| class.rebalance == Rebalance::WhenBlocked);
        let mut others = desired.pipelines.iter().filter(|(name, other)| {
            other.nodes.values().any(|other| other.class == node.class)
                && self.is_placed_at_failover(change, name)
        });
        gives_way && others.next().is_some()
    }

    /// L7: a drain that nothing disturbs is over at its deadline, and the agent leaves or
    /// reports what is left. A worker whose agent has lost its journal leaves once leases that an
    /// earlier agent was granted before the failover have ended.
    pub(crate) fn check_drain(&mut self, pod: usize, waited: Real) {
        let node = &self.view.pods[pod];
        if node.dead || node.left || !node.leaving || self.observer.drains_overdue.contains(&pod) {
            return;
        }
        let desired = self.view.manifests.desired();
        let Some(cluster) = desired.clusters.get(&node.key.cluster) else { return };
        let deadline = node.drain_deadline.unwrap_or(cluster.drain_deadline);
        // Its clock may be slow, and its last messages may be on their way.
        let most = deadline.as_nanos() as Real * 5 / 4 + self.view.profile.ttl_real() * 2;
        if waited > most && !self.view.is_kept_by_earlier_agent(pod) {
            self.fail("L7", || format!("p{pod} drains for longer than {deadline:?}"));
        }
    }

    /// L4, L6: no move that the change did not ask for.
    pub(crate) fn check_change(&mut self, change: &SystemChange) {
        let owners = self.view.owners();
        let moved = change.owners.iter().filter(|(key, pod)| owners.get(*key) != Some(*pod));
        let moved: Vec<_> = moved.filter(|(_, pod)| !change.ended.contains_key(pod)).collect();
        match change.kind {
            ChangeKind::Failover => {
                self.coverage.hit("checked: a failover moves nothing");
                self.coverage.hit("checked: a fleet is served again after a failover");
                let moved: BTreeSet<_> = moved.into_iter().map(|(key, _)| key).collect();
                let changed = moved.iter().copied().chain(&self.observer.streams_changed);
                let wrong: BTreeSet<_> =
                    changed.filter(|key| !self.may_move_at_failover(change, key)).collect();
                if !wrong.is_empty() {
                    let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
                    self.fail("L6", || format!("a failover moved {wrong:?}"));
                }
                self.check_slots_kept(change);
            }
            // Its first entry was written so late that its leader gave it up meanwhile: it joined
            // twice.
            ChangeKind::Join(pod) if self.observer.lost.contains(&self.view.pods[pod].key) => {
                self.coverage.hit("a worker that joined was lost");
            }
            ChangeKind::Join(pod) => {
                self.coverage.hit("checked: a join moves the fewest");
                let (shares, moved) = split_shares(moved);
                self.check_shares_moved(change, &shares, None);
                let most = self.view.moves_at_join(pod);
                let away =
                    moved.iter().any(|(key, _)| owners.get(*key).is_some_and(|to| *to != pod));
                if let Some(most) = most.filter(|most| away || moved.len() > *most) {
                    let detail = format!("a join of p{pod} moved {moved:?}; at most {most} due");
                    self.fail("L4", || detail);
                }
            }
            ChangeKind::Leave(pod) | ChangeKind::Loss(pod) => {
                self.coverage.hit(match change.kind {
                    ChangeKind::Loss(_) => "checked: a loss moves only its own",
                    _ => "checked: a leave moves only its own",
                });
                let (shares, moved) = split_shares(moved);
                self.check_shares_moved(change, &shares, Some(pod));
                if change.fits_beside {
                    self.check_healed(change, &shares, pod);
                }
                let others = moved.iter().any(|(_, from)| **from != pod);
                if others && self.view.has_uniform_streams(&self.view.pods[pod].key.cluster.clone())
                {
                    let detail = format!("the end of p{pod} moved {moved:?}");
                    self.fail("L4", || detail);
                }
            }
        }
    }

    /// L6 for slots: no pool was made smaller, not even for a while.
    fn check_slots_kept(&mut self, change: &SystemChange) {
        // The slots of a worker that was declared gone are shared out.
        if change.ended.keys().any(|pod| Some(*pod) != change.died) {
            return;
        }
        self.coverage.hit("checked: a failover moves no slot");
        let (before, taken) = (&self.observer.slots_before, &self.observer.slots_taken);
        if let Some((pod, size)) = taken.first_key_value() {
            let (pod, size, had) = (*pod, *size, before[pod]);
            self.fail("L6", || {
                format!("a failover shrank the pool of p{pod} from {had} to {size}")
            });
        }
    }

    /// L4 for shares: a healthy pipeline that has nothing on a worker that leaves stays as it is.
    fn check_shares_moved(
        &mut self,
        change: &SystemChange,
        moved: &[(&StreamKey, &usize)],
        left: Option<usize>,
    ) {
        let desired = self.view.manifests.desired();
        let mut classes = desired.clusters.values().filter_map(|cluster| cluster.class.as_ref());
        if classes.any(|class| class.rebalance == Rebalance::WhenBlocked) {
            return;
        }
        let pipeline = |key: &StreamKey| ShareKey::of(key).map(|share| share.pipeline);
        let had = change.owners.iter().filter(|(_, pod)| Some(**pod) == left);
        let had: Vec<_> = had.filter_map(|(key, _)| pipeline(key)).collect();
        let wrong = moved.iter().find(|(key, _)| {
            let excused = |name| {
                had.contains(&name) || change.waiting.contains(&name) || change.breaks(&name)
            };
            pipeline(key).is_some_and(|name| !excused(name))
        });
        if change.owners.keys().any(|key| key.set.is_shares()) {
            self.coverage.hit("checked: healthy pipelines stay as they are");
        }
        if let Some((key, from)) = wrong {
            self.fail("L4", || format!("{key} left p{from} for nothing: {:?}", change.kind));
        }
    }

    /// L4 for shares: where all that a lost worker had fits beside everything else, a healed
    /// pipeline keeps what it still has.
    fn check_healed(&mut self, change: &SystemChange, moved: &[(&StreamKey, &usize)], lost: usize) {
        self.coverage.hit("checked: what is healed keeps what it has");
        let expired: Vec<_> =
            self.observer.streams_expired.iter().filter_map(ShareKey::of).collect();
        let ended = |key: &StreamKey| {
            let pipeline = ShareKey::of(key).map(|share| share.pipeline);
            pipeline.as_ref().is_some_and(|name| change.breaks(name))
                || expired.iter().any(|share| Some(&share.pipeline) == pipeline.as_ref())
        };
        let wrong = moved.iter().find(|(key, from)| **from != lost && !ended(key));
        if let Some((key, from)) = wrong {
            self.fail("L4", || format!("{key} left p{from} when p{lost} was lost"));
        }
    }
}

/// Shares of pipelines, and streams.
fn split_shares(moved: Moved<'_>) -> (Moved<'_>, Moved<'_>) {
    moved.into_iter().partition(|(key, _)| key.set.is_shares())
}
