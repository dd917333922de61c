//! The desired state, from its arrival until it is in force. Invariant: a manifest takes effect as
//! a whole. Its sets may be large and are read in slices; until all of them are read, the former
//! manifest stays in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, SetName, StreamName};

use super::position_index::PositionIndex;
use super::{ReplicaState, SetState, StreamSlot};
use crate::core::turn_budget::STEP;
use crate::desired::{Desired, Mode, StreamSet};

/// A manifest that is not in force yet.
#[derive(Clone, Debug)]
pub(super) struct IncomingManifest {
    desired: Arc<Desired>,
    /// The sets that are still to be read, the next one last.
    unread: Vec<SetName>,
    drafts: SetDrafts,
}

/// The sets of a manifest that may have changed, as far as they are read.
type SetDrafts = BTreeMap<SetName, SetDraft>;

/// A set as far as it is read.
#[derive(Clone, Debug)]
struct SetDraft {
    spec: Arc<StreamSet>,
    index: PositionIndex,
    /// The set in force, if it has as many streams: `index` began as a copy of its index, in which
    /// streams that have kept their places need not be entered.
    copied: Option<Arc<StreamSet>>,
    /// The position of each stream in the set that is in force; none for new streams.
    former: Vec<Option<u32>>,
    /// The empty slots for the streams of a new set.
    planned: Vec<StreamSlot>,
    /// All streams read so far are unchanged, in the same order.
    same: bool,
}

/// The changes for a leader when a manifest was put in force.
#[derive(Debug)]
pub(in crate::core) struct ManifestChange {
    /// The manifest that was in force before.
    pub(in crate::core) before: Arc<Desired>,
    /// Clusters whose sets have changed.
    pub(in crate::core) clusters: BTreeSet<ClusterName>,
    /// Sets whose definition has changed, or that are gone: workers may have streams of them.
    pub(in crate::core) altered: BTreeSet<SetName>,
    /// Sets that are gone, with their handover deadlines.
    pub(in crate::core) gone: Vec<(SetName, Duration)>,
}

impl ReplicaState {
    /// Takes a manifest in place of any other that is not in force yet; where it is short, it is
    /// put in force at once.
    pub(in crate::core) fn receive(&mut self, desired: Arc<Desired>) -> Option<ManifestChange> {
        let mut earlier = self.incoming.take().map(|incoming| incoming.drafts).unwrap_or_default();
        let mut incoming =
            IncomingManifest { desired, unread: Vec::new(), drafts: SetDrafts::new() };
        let mut length = 0;
        for (name, spec) in &incoming.desired.sets {
            if self.sets.get(name).is_some_and(|set| Arc::ptr_eq(&set.spec, spec)) {
                continue;
            }
            let earlier = earlier.remove(name).filter(|draft| Arc::ptr_eq(&draft.spec, spec));
            let draft = earlier.unwrap_or_else(|| SetDraft::new(spec, self.sets.get(name)));
            length += spec.streams.len() - draft.former.len();
            incoming.drafts.insert(name.clone(), draft);
            incoming.unread.push(name.clone());
        }
        self.incoming = Some(incoming);
        if length > STEP.min(self.config.slice as usize / 4) {
            return None;
        }
        let read = self.read_slice(usize::MAX);
        self.budget.count(read);
        self.enforce()
    }

    /// Reads further of a manifest, as far as the budget goes; puts it in force once all of it is
    /// read.
    pub(in crate::core) fn read_manifest(&mut self) -> Option<ManifestChange> {
        while self.budget.is_left() && self.incoming.is_some() {
            let most = STEP.min(self.budget.left());
            let read = self.read_slice(most);
            self.budget.spend(read.max(1));
            if let Some(enforced) = self.enforce() {
                return Some(enforced);
            }
        }
        None
    }

    /// Reads further streams of the manifest; returns how many.
    fn read_slice(&mut self, most: usize) -> usize {
        let Some(incoming) = &mut self.incoming else { return 0 };
        let mut read = 0;
        while let Some(name) = incoming.unread.last() {
            let Some(draft) = incoming.drafts.get_mut(name) else { break };
            read += draft.read(self.sets.get(name), most - read);
            if !draft.is_whole() {
                break;
            }
            incoming.unread.pop();
        }
        read
    }

    /// Puts the manifest in force if it is read to its end.
    fn enforce(&mut self) -> Option<ManifestChange> {
        let incoming = self.incoming.as_ref()?;
        if mutation::on(Mutation::ActOnHalfManifest) && !incoming.unread.is_empty() {
            let mut half = (*incoming.desired).clone();
            half.sets.retain(|name, _| !incoming.unread.contains(name));
            return Some(self.put_in_force(Arc::new(half), SetDrafts::new()));
        }
        let IncomingManifest { desired, drafts, .. } =
            self.incoming.take_if(|incoming| incoming.unread.is_empty())?;
        Some(self.put_in_force(desired, drafts))
    }

    fn put_in_force(&mut self, desired: Arc<Desired>, drafts: SetDrafts) -> ManifestChange {
        let before = std::mem::replace(&mut self.desired, desired);
        let unread = before.unread.difference(&self.desired.unread).cloned();
        let mut enforced = ManifestChange {
            // Sets whose list could not be read before; they are readable or gone now.
            altered: unread.collect(),
            clusters: BTreeSet::new(),
            gone: Vec::new(),
            before,
        };
        self.put_sets_in_force(drafts, &mut enforced);
        let is_class = |desired: &Desired, name: &ClusterName| {
            desired.clusters.get(name).map(|cluster| cluster.class.is_some())
        };
        let (before, now) = (&enforced.before, &self.desired);
        let names = before.clusters.keys().chain(now.clusters.keys());
        let other = names.filter(|name| is_class(before, name) != is_class(now, name));
        let relisted: BTreeSet<_> = other.chain(&enforced.clusters).cloned().collect();
        for cluster in relisted {
            self.list_sets(&cluster);
        }
        enforced
    }

    /// Brings the sets up to what is desired.
    fn put_sets_in_force(&mut self, mut drafts: SetDrafts, enforced: &mut ManifestChange) {
        let desired = self.desired.clone();
        let gone: Vec<_> =
            self.sets.extract_if(.., |name, _| !desired.sets.contains_key(name)).collect();
        for (name, set) in gone {
            self.leave_cluster(&name, &set.spec.cluster);
            enforced.clusters.insert(set.spec.cluster.clone());
            enforced.gone.push((name.clone(), set.spec.handover_deadline));
            self.garbage.add_spec(set.spec);
            self.garbage.add_planned(set.streams);
            enforced.altered.insert(name);
        }
        for (name, spec) in &desired.sets {
            let Some(draft) = drafts.remove(name) else { continue };
            let set = self.sets.get_mut(name);
            if let Some(set) = set.filter(|set| draft.is_same(set)) {
                let former = std::mem::replace(&mut set.spec, draft.spec);
                self.garbage.add_spec(former);
                continue;
            }
            let former = self.sets.remove(name);
            if let Some(former) = &former {
                self.leave_cluster(name, &former.spec.cluster);
                enforced.clusters.insert(former.spec.cluster.clone());
            }
            self.cluster_sets.entry(spec.cluster.clone()).or_default().insert(name.clone());
            enforced.clusters.insert(spec.cluster.clone());
            let (set, former) = draft.put_in_place_of(former);
            if let Some(SetState { spec, streams, .. }) = former {
                self.garbage.add_spec(spec);
                self.garbage.add_planned(streams);
            }
            self.sets.insert(name.clone(), set);
            self.former_handovers.remove(name);
            enforced.altered.insert(name.clone());
        }
    }

    /// A set no longer runs on a cluster.
    fn leave_cluster(&mut self, set: &SetName, cluster: &ClusterName) {
        if let Some(sets) = self.cluster_sets.get_mut(cluster) {
            sets.remove(set);
            if sets.is_empty() {
                self.cluster_sets.remove(cluster);
            }
        }
    }

    /// Notes the sets of which the workers of a cluster may own streams from now on.
    fn list_sets(&mut self, name: &ClusterName) {
        let Some(cluster) = self.desired.clusters.get(name) else {
            self.cluster_lists.remove(name);
            return;
        };
        let mut unstoppable = BTreeMap::new();
        let mut stoppable = BTreeMap::new();
        for (set, SetState { spec, .. }) in
            self.sets_of(name).filter_map(|set| self.sets.get_key_value(set))
        {
            unstoppable.insert(set.clone(), true);
            stoppable.insert(set.clone(), spec.mode == Mode::Pinned);
        }
        if cluster.class.is_some() {
            unstoppable.insert(name.shares(), true);
            stoppable.insert(name.shares(), false);
        }
        let lists = [unstoppable, stoppable].map(|list| Arc::new(list.into_iter().collect()));
        for list in &lists {
            self.lists.note(name, list);
        }
        self.cluster_lists.insert(name.clone(), lists);
    }
}

impl SetDraft {
    /// The draft of a set that replaces `before`, if that is in force.
    fn new(spec: &Arc<StreamSet>, before: Option<&SetState>) -> Self {
        let former = Vec::with_capacity(spec.streams.len());
        let is_alike = |set: &&SetState| set.len() == spec.streams.len() && set.index.has_room();
        let before = before.filter(is_alike);
        let (index, copied) = match before {
            Some(set) => (set.index.clone(), Some(Arc::clone(&set.spec))),
            None => (PositionIndex::new(&spec.streams), None),
        };
        Self { spec: spec.clone(), index, copied, former, planned: Vec::new(), same: true }
    }

    /// Reads further streams; returns how many.
    fn read(&mut self, before: Option<&SetState>, most: usize) -> usize {
        let streams = &self.spec.streams;
        let start = self.former.len();
        let end = start.saturating_add(most).min(streams.len());
        for (at, stream) in streams.iter().enumerate().take(end).skip(start) {
            match &self.copied {
                Some(copied) => self.index.replace(&copied.streams, streams, at),
                None => self.index.insert(streams, at),
            }
            let found = before.and_then(|set| {
                Some((set, former_position(set, self.former.last(), &stream.name)?))
            });
            let is_same = |set: &SetState, was| was == at && set.spec.streams[was] == *stream;
            self.same &= found.is_some_and(|(set, was)| is_same(set, was));
            self.former.push(found.map(|(_, was)| was as u32));
        }
        if before.is_none() {
            self.planned.reserve_exact(streams.len() - self.planned.len());
            self.planned.resize_with(end, StreamSlot::default);
        }
        end - start
    }

    fn is_whole(&self) -> bool {
        self.former.len() == self.spec.streams.len()
    }

    /// Whether this equals the present set.
    fn is_same(&self, set: &SetState) -> bool {
        let StreamSet { cluster, streams, policy, mode, handover_deadline, moves } = &*self.spec;
        let same_streams = self.same && streams.len() == set.streams.len();
        let same_rules = (*policy, *mode, *handover_deadline, *moves)
            == (set.spec.policy, set.spec.mode, set.spec.handover_deadline, set.spec.moves);
        same_streams && same_rules && *cluster == set.spec.cluster
    }

    /// The new set, in which streams of the former set keep their planned workers. Also returns the
    /// rest of the former set.
    fn put_in_place_of(self, mut former: Option<SetState>) -> (SetState, Option<SetState>) {
        let Self { spec, index, copied: _, former: positions, mut planned, same: _ } = self;
        let kept = former.as_mut().filter(|former| former.spec.cluster == spec.cluster);
        let streams = match kept {
            Some(former) => rearranged(&mut former.streams, &positions),
            None => {
                planned.resize_with(spec.streams.len(), StreamSlot::default);
                planned
            }
        };
        let is_planned = former.as_ref().is_some_and(|former| former.is_planned);
        (SetState { spec, index, streams, is_planned, limited: false }, former)
    }
}

/// Where a stream is in the former set. Most streams come after the same one as before, whose
/// position is the last that was found: looking there is faster than the index.
fn former_position(
    former: &SetState,
    last: Option<&Option<u32>>,
    name: &StreamName,
) -> Option<usize> {
    let next = last.copied().map_or(Some(0), |last| Some(last? as usize + 1));
    let is_it = |at: &usize| former.spec.streams.get(*at).is_some_and(|next| next.name == *name);
    next.filter(is_it).or_else(|| former.position(name))
}

/// The slots of streams in a new order: each stream's former position, none where it is new. The
/// slots of streams that are gone stay in `former`.
fn rearranged(former: &mut Vec<StreamSlot>, positions: &[Option<u32>]) -> Vec<StreamSlot> {
    let kept = positions.iter().take_while(|at| at.is_some()).count();
    let in_order = positions[..kept].is_sorted_by(|one, next| one < next);
    if !in_order || positions[kept..].iter().any(Option::is_some) {
        let kept = |at: &Option<u32>| Some(std::mem::take(&mut former[(*at)? as usize]));
        return positions.iter().map(kept).map(Option::unwrap_or_default).collect();
    }
    // Most edits remove a few streams or add some at the end. Then the others move up in place,
    // which takes a fraction of the time of a new list.
    let mut streams = std::mem::take(former);
    for (to, from) in positions[..kept].iter().flatten().enumerate() {
        streams.swap(to, *from as usize);
    }
    former.extend(streams.drain(kept..));
    streams.resize_with(positions.len(), StreamSlot::default);
    streams
}

#[cfg(test)]
mod tests {
    use leasehold_types::WorkerName;

    use super::*;
    use crate::core::replica::PlannedWorker;
    use crate::desired::{Moves, Policy, Stream};
    use crate::exposure::AccountId;

    fn set(numbers: &[u32]) -> Arc<StreamSet> {
        let name = |number: u32| StreamName::new(&format!("s-{number}")).expect("a valid name");
        let stream = |number: &u32| Stream { name: name(*number), weight: 1, dedicated: false };
        Arc::new(StreamSet {
            cluster: ClusterName::new("c").expect("a valid name"),
            streams: Arc::new(numbers.iter().map(stream).collect()),
            policy: Policy::Sticky,
            mode: Mode::Expiring,
            handover_deadline: Duration::ZERO,
            moves: Moves { per_round_max: 1, cooldown: Duration::ZERO, settle: Duration::ZERO },
        })
    }

    #[test]
    fn a_draft_finds_each_stream_in_the_former_set() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1_000 {
            let old: Vec<u32> = (0..rng.u32(0..12)).collect();
            let mut new = old.clone();
            new.retain(|_| rng.u8(0..5) > 0);
            if rng.u8(0..4) == 0 {
                rng.shuffle(&mut new);
            }
            for added in 0..rng.u32(0..3) {
                new.insert(rng.usize(0..=new.len()), 100 + added);
            }
            let mut first = SetDraft::new(&set(&old), None);
            first.read(None, usize::MAX);
            let (former, _) = first.put_in_place_of(None);
            let mut draft = SetDraft::new(&set(&new), Some(&former));
            while !draft.is_whole() {
                draft.read(Some(&former), rng.usize(1..5));
            }
            let position = |number: &u32| old.iter().position(|of| of == number);
            let wanted: Vec<_> = new.iter().map(|number| Some(position(number)? as u32)).collect();
            assert_eq!(draft.former, wanted, "from {old:?} to {new:?}");
            assert_eq!(draft.is_same(&former), old == new, "from {old:?} to {new:?}");
            let (state, _) = draft.put_in_place_of(Some(former));
            for (at, stream) in state.spec.streams.iter().enumerate() {
                assert_eq!(state.position(&stream.name), Some(at), "from {old:?} to {new:?}");
            }
            assert_eq!(state.position(&StreamName::first()), None);
        }
    }

    #[test]
    fn a_streams_slot_moves_with_the_stream() {
        let worker = |at: usize| WorkerName::new(&format!("w-{at}")).expect("a valid name");
        let planned = |at| {
            let on = PlannedWorker { name: worker(at), account_id: AccountId(1) };
            StreamSlot { on: Some(Arc::new(on)), ..StreamSlot::default() }
        };
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1_000 {
            let count = rng.usize(0..8);
            let mut positions: Vec<_> = (0..count as u32).map(Some).collect();
            positions.retain(|_| rng.u8(0..4) > 0);
            if rng.bool() {
                rng.shuffle(&mut positions);
            }
            for _ in 0..rng.usize(0..3) {
                let at = if rng.bool() { positions.len() } else { rng.usize(0..=positions.len()) };
                positions.insert(at, None);
            }
            let mut former: Vec<_> = (0..count).map(planned).collect();
            let streams = rearranged(&mut former, &positions);
            let on: Vec<_> =
                streams.into_iter().map(|stream| Some(stream.on?.name.clone())).collect();
            let wanted: Vec<_> =
                positions.iter().map(|position| position.map(|at| worker(at as usize))).collect();
            assert_eq!(on, wanted);
            let left: Vec<_> =
                former.into_iter().filter_map(|stream| Some(stream.on?.name.clone())).collect();
            let mut gone: Vec<_> = (0..count)
                .filter(|at| !positions.contains(&Some(*at as u32)))
                .map(worker)
                .collect();
            gone.sort();
            let mut left = left;
            left.sort();
            assert_eq!(left, gone);
        }
    }
}
