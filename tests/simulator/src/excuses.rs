//! L6: what a failover may move, though nothing else is to.
//!
//! Invariant: an excuse is about one stream, or about what is placed together with it: the shares
//! of its pipeline or class, the streams of its set.

use std::collections::BTreeSet;

use leasehold_coordinator_core::desired::Rebalance;
use leasehold_coordinator_core::view::ClaimPhase;
use leasehold_types::{PipelineName, ShareKey, StreamKey};

use super::liveness::Change;
use super::world::World;

impl World {
    /// Whether a failover may end this stream's lease.
    pub(super) fn may_move_at_failover(&self, change: &Change, key: &StreamKey) -> bool {
        // An election and the way to the new leader can take longer than the leases of a seed
        // last; then what has ended is granted anew.
        let expired = &self.observer.streams_expired;
        match ShareKey::of(key) {
            Some(share) => {
                self.is_placed_at_failover(change, &share.pipeline)
                    || self.makes_room_at_failover(change, &share)
            }
            // One without an owner waited for a worker of its own. If it gets one, the stream that
            // had this worker is judged itself. Somebody may have ended the owner since.
            None => match change.owners.get(key) {
                None => true,
                Some(owner) if change.ended.contains_key(owner) => true,
                // A set moves only so many streams at once: others wait for one that goes late.
                Some(_) => expired.contains(key) || change.hands_over(&key.set),
            },
        }
    }

    /// Whether the next leader has to place a pipeline: what is served of one whose change waits it
    /// cannot know.
    fn is_placed_at_failover(&self, change: &Change, pipeline: &PipelineName) -> bool {
        let mut expired = self.observer.streams_expired.iter().filter_map(ShareKey::of);
        change.waiting.contains(pipeline)
            || change.breaks(pipeline)
            || expired.any(|it| it.pipeline == *pipeline)
    }

    /// Whether a share may make room for a pipeline that is placed: its class allows that.
    fn makes_room_at_failover(&self, change: &Change, share: &ShareKey) -> bool {
        let desired = self.manifests.desired();
        let pipeline = desired.pipelines.get(&share.pipeline);
        let Some(node) = pipeline.and_then(|it| it.nodes.get(&share.node)) else { return false };
        let class = desired.clusters.get(&node.class).and_then(|it| it.class.as_ref());
        let gives_way = class.is_some_and(|class| class.rebalance == Rebalance::WhenBlocked);
        let mut others = desired.pipelines.iter().filter(|(name, other)| {
            other.nodes.values().any(|other| other.class == node.class)
                && self.is_placed_at_failover(change, name)
        });
        gives_way && others.next().is_some()
    }

    /// Streams on their way from one worker to another: the next leader ends what this one began.
    pub(super) fn handed_over(&self) -> BTreeSet<StreamKey> {
        let leader = self.true_leader().and_then(|(it, _)| self.replicas[it].core.as_ref());
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
}
