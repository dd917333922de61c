//! The state that a replica keeps whether it leads or not: desired state, the turn's budget and
//! effects.

mod garbage;
mod manifest;
mod position_index;
mod preview;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{CoordinatorMessage, Refusal, RefusalReason, Terms};
use leasehold_types::{ClusterName, Moment, SetName, StreamKey, StreamName, WorkerKey, WorkerName};

use super::Config;
use super::turn_budget::TurnBudget;
use crate::desired::{Class, Cluster, Desired, StreamSet};
use crate::effect::{Effect, Notice};
use crate::event::ConnId;
use crate::exposure::{AccountId, SetList, SetLists};
use crate::ledger::Ledger;
use crate::planner::streams::Unplaced;
use garbage::Garbage;
use manifest::IncomingManifest;
pub(super) use manifest::ManifestChange;
use position_index::PositionIndex;
pub(super) use preview::SetPreview;

/// Beats per lease time: an agent that misses three answers, and then asks two replicas in vain,
/// still has time left.
const BEATS_PER_TTL: u32 = 5;
/// The longest time between two beats.
const BEAT_MAX: Duration = Duration::from_secs(2);

/// The state that outlives a term.
#[derive(Clone, Debug)]
pub(super) struct ReplicaState {
    pub(super) config: Config,
    pub(super) desired: Arc<Desired>,
    /// The next desired state, which is not read to its end yet.
    incoming: Option<IncomingManifest>,
    pub(super) sets: BTreeMap<SetName, SetState>,
    /// The sets of each cluster.
    pub(super) cluster_sets: BTreeMap<ClusterName, BTreeSet<SetName>>,
    /// The sets of which a worker of each cluster may own streams: first for agents that cannot
    /// stop their worker, then for those that can.
    pub(super) cluster_lists: BTreeMap<ClusterName, [Arc<SetList>; 2]>,
    /// The lists of sets that were in force.
    pub(super) lists: SetLists,
    /// The workers that get nothing new while others have room.
    pub(super) avoided: Arc<BTreeSet<WorkerKey>>,
    /// The handover deadlines of sets that are gone but have streams with claims.
    pub(super) former_handovers: BTreeMap<SetName, Duration>,
    garbage: Garbage,
    /// The work in slices that the present turn may still do.
    pub(super) budget: TurnBudget,
    /// Every message that had arrived before this moment has been handled: silence is measured up
    /// to here.
    pub(super) heard: Moment,
    /// When it last gave a term up because another leader had had its number.
    pub(super) stepped_down_at: Option<Moment>,
    pub(super) effects: VecDeque<Effect>,
}

/// A stream set and where its streams are planned.
#[derive(Clone, Debug)]
pub(super) struct SetState {
    pub(super) spec: Arc<StreamSet>,
    index: PositionIndex,
    pub(super) streams: Vec<StreamSlot>,
    /// Some of its streams may have a planned worker.
    pub(super) is_planned: bool,
    /// The last plan moved the most streams that may move at once: more moves may follow.
    pub(super) limited: bool,
}

/// Where a stream is planned.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamSlot {
    /// The worker that is to have it. Once that account has ended, the stream counts as
    /// unplanned.
    pub(super) on: Option<PlannedWorker>,
    /// When it was last moved away from a worker that could have kept it.
    pub(super) moved_at: Option<Moment>,
    pub(super) unplaced: Option<Unplaced>,
}

/// A worker in the plan, with one of its accounts: a worker that leaves and returns under its name
/// has another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlannedWorker {
    pub(super) name: WorkerName,
    pub(super) account_id: AccountId,
}

impl StreamSlot {
    /// The worker that it is planned on, of this cluster. A plan for a worker whose account has
    /// ended says nothing about a later worker of its name.
    pub(super) fn planned_on(
        &self,
        cluster: &ClusterName,
        ledger: &Ledger,
    ) -> Option<&PlannedWorker> {
        let on = self.on.as_ref()?;
        (ledger.accounts().id_of(cluster, &on.name) == Some(on.account_id)).then_some(on)
    }
}

impl SetState {
    /// Where a stream is in the manifest's list.
    pub(super) fn position(&self, name: &StreamName) -> Option<usize> {
        self.index.get(&self.spec.streams, name)
    }
}

impl ReplicaState {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            desired: Arc::default(),
            incoming: None,
            sets: BTreeMap::new(),
            cluster_sets: BTreeMap::new(),
            cluster_lists: BTreeMap::new(),
            lists: SetLists::default(),
            avoided: Arc::default(),
            former_handovers: BTreeMap::new(),
            garbage: Garbage::default(),
            budget: TurnBudget::default(),
            heard: Moment::EARLIEST,
            stepped_down_at: None,
            effects: VecDeque::new(),
        }
    }

    /// Begins a turn that has heard everything that had arrived before `heard`.
    pub(super) fn begin_turn(&mut self, heard: Moment) {
        self.heard = self.heard.max(heard);
        self.budget.allow(self.config.slice);
        self.drop_garbage();
    }

    /// Whether a manifest has arrived that is not in force yet.
    pub(super) fn is_reading_manifest(&self) -> bool {
        self.incoming.is_some()
    }

    /// Whether work is left for another turn.
    pub(super) fn has_more(&self) -> bool {
        self.is_reading_manifest() || !self.garbage.is_empty()
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Notice(notice));
    }

    pub(super) fn refuse(&mut self, conn: ConnId, reason: RefusalReason, message: String) {
        let message = CoordinatorMessage::Refusal(Refusal { reason, message });
        self.effects.push_back(Effect::Send { conn, message });
        self.effects.push_back(Effect::Close(conn));
    }

    /// The class of this name, where a manifest defines one.
    pub(super) fn class(&self, name: &ClusterName) -> Option<&Class> {
        self.desired.clusters.get(name)?.class.as_ref()
    }

    /// The sets of a cluster, by name.
    pub(super) fn sets_of(&self, cluster: &ClusterName) -> impl Iterator<Item = &SetName> {
        self.cluster_sets.get(cluster).into_iter().flatten()
    }

    /// Drops a reference to a set. Dropping the last one takes long, so that goes through the
    /// garbage.
    pub(super) fn drop_spec(&mut self, name: &SetName, spec: Arc<StreamSet>) {
        if !self.sets.get(name).is_some_and(|set| Arc::ptr_eq(&set.spec, &spec)) {
            self.garbage.add_spec(spec);
        }
    }

    /// Drops the ledger of a term that has ended, in slices.
    pub(super) fn drop_ledger(&mut self, ledger: Ledger) {
        self.garbage.add_ledger(ledger);
    }

    /// Forgets where an earlier term planned the streams. Their slots stay with the sets, because a
    /// million of them take long to allocate; each new term begins with empty ones.
    pub(super) fn forget_plans(&mut self) {
        for set in self.sets.values_mut().filter(|set| set.is_planned) {
            let streams = vec![StreamSlot::default(); set.streams.len()];
            self.garbage.add_planned(std::mem::replace(&mut set.streams, streams));
            (set.limited, set.is_planned) = (false, false);
        }
    }

    /// The times that hold for a cluster's agents.
    pub(super) fn terms(&self, cluster: &Cluster) -> Terms {
        Terms {
            ttl: cluster.ttl,
            beat: (cluster.ttl / BEATS_PER_TTL).min(BEAT_MAX),
            reserve: self.config.bounds.outlast(cluster.ttl),
            drain_deadline: cluster.drain_deadline,
        }
    }

    /// The stream's set and its place in it, where it is desired.
    pub(super) fn planned(&self, stream: &StreamKey) -> Option<(&SetState, &StreamSlot)> {
        let set = self.sets.get(&stream.set)?;
        let at = set.position(&stream.stream)?;
        Some((set, &set.streams[at]))
    }

    pub(super) fn planned_mut(&mut self, stream: &StreamKey) -> Option<&mut StreamSlot> {
        let set = self.sets.get_mut(&stream.set)?;
        let at = set.position(&stream.stream)?;
        set.is_planned = true;
        Some(&mut set.streams[at])
    }
}
