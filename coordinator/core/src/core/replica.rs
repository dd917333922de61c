//! The state that a replica keeps whether it leads or not: desired state, the turn's budget and
//! effects.

mod garbage;
mod manifest;
mod position_index;
mod preview;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{CoordinatorMessage, Refusal, RefusalReason, Terms};
use leasehold_types::{
    ClusterName, Epoch, Moment, SetName, StreamKey, StreamName, WorkerKey, WorkerName,
};

use super::Config;
use super::turn_budget::TurnBudget;
use crate::desired::{Class, Cluster, Desired, StreamSet};
use crate::effect::{Effect, Notice, Order};
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
/// The longest time between two beats. Changes that others wait for are sent at once, and a leader
/// that hangs is noticed without beats: by a standby, by agents that follow there, by keepalives.
const BEAT_MAX: Duration = Duration::from_secs(5);

/// The state that outlives a term.
#[derive(Clone, Debug)]
pub(super) struct ReplicaState {
    config: Config,
    desired: Arc<Desired>,
    /// The next desired state, which is not read to its end yet.
    incoming: Option<IncomingManifest>,
    sets: BTreeMap<SetName, SetState>,
    /// The sets of each cluster.
    cluster_sets: BTreeMap<ClusterName, BTreeSet<SetName>>,
    /// The sets of which a worker of each cluster may own streams: first for agents that cannot
    /// stop their worker, then for those that can.
    cluster_lists: BTreeMap<ClusterName, [Arc<SetList>; 2]>,
    /// The lists of sets that were in force.
    lists: SetLists,
    /// The workers that get nothing new while others have room.
    avoided: Arc<BTreeSet<WorkerKey>>,
    /// The handover deadlines of sets that are gone but have streams with claims.
    former_handovers: BTreeMap<SetName, Duration>,
    garbage: Garbage,
    /// The work in slices that the present turn may still do.
    budget: TurnBudget,
    /// Every message that had arrived before this moment has been handled: silence is measured up
    /// to here.
    heard: Moment,
    /// When it last gave a term up because another leader had had its number.
    stepped_down_at: Option<Moment>,
    effects: VecDeque<Effect>,
}

/// A stream set and where its streams are planned.
#[derive(Clone, Debug)]
pub(super) struct SetState {
    spec: Arc<StreamSet>,
    index: PositionIndex,
    streams: Vec<StreamSlot>,
    /// Some of its streams may have a planned worker.
    is_planned: bool,
    /// The last plan moved the most streams that may move at once: more moves may follow.
    limited: bool,
}

/// Where a stream is planned.
#[derive(Clone, Debug)]
pub(super) struct StreamSlot {
    /// The worker that is to have it, which all streams of a plan share. Once that account has
    /// ended, the stream counts as unplanned.
    on: Option<Arc<PlannedWorker>>,
    /// When it was last moved away from a worker that could have kept it; [`Moment::NEVER`] if it
    /// was not.
    moved_at: Moment,
    unplaced: Option<Unplaced>,
}

/// A worker in the plan, with one of its accounts: a worker that leaves and returns under its name
/// has another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlannedWorker {
    pub(super) name: WorkerName,
    pub(super) account_id: AccountId,
}

impl Default for StreamSlot {
    fn default() -> Self {
        Self { on: None, moved_at: Moment::NEVER, unplaced: None }
    }
}

impl StreamSlot {
    /// The worker that is to have it, though its account may have ended.
    pub(super) fn on(&self) -> Option<&PlannedWorker> {
        self.on.as_deref()
    }

    /// When it was last moved away from a worker that could have kept it.
    pub(super) fn moved_at(&self) -> Option<Moment> {
        Some(self.moved_at).filter(|at| *at != Moment::NEVER)
    }

    /// Why the newest plan has no worker for it.
    pub(super) fn unplaced(&self) -> Option<Unplaced> {
        self.unplaced
    }

    /// A plan places it here, or nowhere. Returns whether that is another worker than before.
    pub(super) fn place(&mut self, on: Option<Arc<PlannedWorker>>, why: Option<Unplaced>) -> bool {
        self.unplaced = why;
        let is_another = self.on != on;
        self.on = on;
        is_another
    }

    /// It moves away from a worker that could have kept it.
    pub(super) fn record_move(&mut self, now: Moment) {
        self.moved_at = now;
    }

    /// It is planned on a worker that has it already.
    pub(super) fn keep_on(&mut self, worker: Arc<PlannedWorker>) {
        self.on = Some(worker);
    }

    /// Its planned worker cannot take it.
    pub(super) fn take_off(&mut self) {
        self.on = None;
    }

    /// The worker that it is planned on, of this cluster. A plan for a worker whose account has
    /// ended says nothing about a later worker of its name.
    pub(super) fn planned_on(
        &self,
        cluster: &ClusterName,
        ledger: &Ledger,
    ) -> Option<&PlannedWorker> {
        let on = self.on()?;
        ledger.accounts().is_present(on.account_id, cluster, &on.name).then_some(on)
    }
}

impl SetState {
    /// Its definition.
    pub(super) fn spec(&self) -> &Arc<StreamSet> {
        &self.spec
    }

    /// How many streams it has.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Where each stream of its definition is planned.
    pub(super) fn slots(&self) -> &[StreamSlot] {
        &self.streams
    }

    /// Where the stream at this place of its definition is planned.
    pub(super) fn slot(&self, at: usize) -> &StreamSlot {
        &self.streams[at]
    }

    /// The same, to be planned. Until it is marked so, a set counts as not planned.
    pub(super) fn slot_mut(&mut self, at: usize) -> &mut StreamSlot {
        &mut self.streams[at]
    }

    /// Some of its streams may have a planned worker from now on.
    pub(super) fn mark_planned(&mut self) {
        self.is_planned = true;
    }

    /// Whether the last plan moved the most streams that may move at once: more moves may follow.
    pub(super) fn is_limited(&self) -> bool {
        self.limited
    }

    /// See [`Self::is_limited`].
    pub(super) fn set_limited(&mut self, limited: bool) {
        self.limited = limited;
    }

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

    /// A replica with the same desired state and nothing planned, for a what-if.
    pub(super) fn copy_desired(&self) -> Self {
        Self {
            desired: Arc::clone(&self.desired),
            heard: self.heard,
            avoided: Arc::clone(&self.avoided),
            ..Self::new(self.config)
        }
    }

    pub(super) fn config(&self) -> Config {
        self.config
    }

    /// The desired state that is in force.
    pub(super) fn desired(&self) -> &Arc<Desired> {
        &self.desired
    }

    /// Puts another desired state in force, without its sets: for a what-if of pipelines. Returns
    /// the one before.
    pub(super) fn replace_desired(&mut self, desired: Arc<Desired>) -> Arc<Desired> {
        mem::replace(&mut self.desired, desired)
    }

    /// The sets that are in force.
    pub(super) fn sets(&self) -> &BTreeMap<SetName, SetState> {
        &self.sets
    }

    /// A set that is in force, to be planned.
    pub(super) fn set_mut(&mut self, name: &SetName) -> Option<&mut SetState> {
        self.sets.get_mut(name)
    }

    /// The clusters that have sets.
    pub(super) fn clusters_with_sets(&self) -> impl Iterator<Item = &ClusterName> {
        self.cluster_sets.keys()
    }

    /// The sets of which a worker of a cluster may own streams: first for agents that cannot stop
    /// their worker, then for those that can.
    pub(super) fn cluster_lists(&self, cluster: &ClusterName) -> Option<&[Arc<SetList>; 2]> {
        self.cluster_lists.get(cluster)
    }

    /// The lists of sets that were in force.
    pub(super) fn lists(&self) -> &SetLists {
        &self.lists
    }

    /// The workers that get nothing new while others have room.
    pub(super) fn avoided(&self) -> &Arc<BTreeSet<WorkerKey>> {
        &self.avoided
    }

    /// Other workers are avoided from now on. Returns those before.
    pub(super) fn replace_avoided(
        &mut self,
        workers: Arc<BTreeSet<WorkerKey>>,
    ) -> Arc<BTreeSet<WorkerKey>> {
        mem::replace(&mut self.avoided, workers)
    }

    /// The handover deadline of a set that is gone but has streams with claims.
    pub(super) fn former_handover(&self, set: &SetName) -> Option<Duration> {
        self.former_handovers.get(set).copied()
    }

    /// Keeps the handover deadlines of sets that are gone while they have claims.
    pub(super) fn keep_handovers(
        &mut self,
        gone: Vec<(SetName, Duration)>,
        has_claims: impl Fn(&SetName) -> bool,
    ) {
        self.former_handovers.extend(gone);
        self.former_handovers.retain(|set, _| has_claims(set));
    }

    /// The work in slices that the present turn may still do.
    pub(super) fn budget(&self) -> &TurnBudget {
        &self.budget
    }

    /// The same, to be spent.
    pub(super) fn budget_mut(&mut self) -> &mut TurnBudget {
        &mut self.budget
    }

    /// The workers that get nothing new while others have room, and the budget to spend on them.
    pub(super) fn avoided_and_budget(&mut self) -> (&BTreeSet<WorkerKey>, &mut TurnBudget) {
        (&self.avoided, &mut self.budget)
    }

    /// The moment up to which every message that had arrived has been handled: silence is measured
    /// up to it.
    pub(super) fn heard(&self) -> Moment {
        self.heard
    }

    /// When it last gave a term up because another leader had had its number.
    pub(super) fn stepped_down_at_mut(&mut self) -> &mut Option<Moment> {
        &mut self.stepped_down_at
    }

    /// The effects that wait to be taken, oldest first.
    pub(super) fn effects(&self) -> impl Iterator<Item = &Effect> {
        self.effects.iter()
    }

    /// The next effect, oldest first.
    pub(super) fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Sends a message on a connection.
    pub(super) fn send(&mut self, conn: ConnId, message: CoordinatorMessage) {
        self.effects.push_back(Effect::Send { conn, message });
    }

    /// Closes a connection.
    pub(super) fn close(&mut self, conn: ConnId) {
        self.effects.push_back(Effect::Close(conn));
    }

    /// Has the stores do something for a term.
    pub(super) fn order(&mut self, epoch: Epoch, order: Order) {
        self.effects.push_back(Effect::Order { epoch, order });
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
        self.send(conn, CoordinatorMessage::Refusal(Refusal { reason, message }));
        self.close(conn);
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
            self.garbage.add_planned(mem::replace(&mut set.streams, streams));
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
        set.mark_planned();
        Some(set.slot_mut(at))
    }
}
