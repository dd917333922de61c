//! The policy `Contiguous`: slices of the list, in the order of the workers' names.
//!
//! Invariant: of N streams over W workers the first N mod W own one more than the others.
//!
//! A worker that may not own all of its slice leaves the rest of it to the others. Frozen streams
//! stay, and count in their worker's slice; the other streams of the list are cut into slices.
//! Where the limit allows only some of the moves, they are made in the order of the list, and a
//! stream moves straight to its own slice or stays: none moves twice. Two full workers that would
//! have to swap streams wait until the limit allows all moves at once.

use std::collections::BTreeMap;

use super::step_budget::SetContext;
use super::worker_loads::{PresentOwner, WorkerLoads};
use super::{Placement, StreamInput, WorkerIndex, order};
use crate::desired::Policy;

/// The workers in the order in which slices go over them.
#[derive(Clone, Debug, Default)]
pub(super) struct Slices {
    /// Open workers with room.
    order: Vec<WorkerIndex>,
    /// How many workers were full when `order` was last cleared of them.
    full: usize,
}

impl Slices {
    /// The order of all open workers.
    pub(super) fn new(input: &StreamInput<'_>, loads: &WorkerLoads) -> Self {
        let mut order = Vec::new();
        if input.sets.iter().any(|set| set.policy == Policy::Contiguous) {
            order = order::natural(input.workers);
            order.retain(|worker| loads.is_open(*worker));
        }
        Self { order, full: 0 }
    }

    /// Removes the workers that the settled sets have filled up.
    pub(super) fn pass_full(&mut self, loads: &WorkerLoads) {
        if loads.full() != self.full {
            self.order.retain(|worker| loads.has_room(*worker));
            self.full = loads.full();
        }
    }

    /// How many of `loose` streams each worker gets beside its frozen ones, in order.
    fn slices(&self, loose: usize, loads: &WorkerLoads) -> Vec<(WorkerIndex, u32)> {
        let frozen: usize =
            loads.touched().iter().map(|worker| loads.owned(*worker) as usize).sum();
        let all = (loose + frozen).min(loads.free());
        if all <= self.order.len() {
            let idle = self.order.iter().filter(|worker| loads.owned(**worker) == 0);
            return idle.map(|worker| (*worker, 1)).take(all - frozen).collect();
        }
        let all = u32::try_from(all).expect("streams are counted in u32");
        let level_at =
            |worker: WorkerIndex, level: u32| level.clamp(loads.owned(worker), loads.cap(worker));
        let sum = |level| self.order.iter().map(|w| u64::from(level_at(*w, level))).sum::<u64>();
        // The highest level with a sum of at most `all` lies in `low..=high`.
        let (mut low, mut high) = (0, all);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if sum(middle) <= u64::from(all) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let mut odd = u64::from(all) - sum(low);
        let slice = |worker: &WorkerIndex| {
            let mut count = level_at(*worker, low);
            if odd > 0 && level_at(*worker, low + 1) > count {
                count += 1;
                odd -= 1;
            }
            (*worker, count - loads.owned(*worker))
        };
        self.order.iter().map(slice).collect()
    }
}

/// A stream that is not dedicated, and where the plan without a limit on moves wants it.
#[derive(Clone, Copy, Debug)]
struct SliceTarget {
    at: u32,
    target: WorkerIndex,
}

/// A set's streams that are not dedicated, as far as they are placed.
#[derive(Clone, Debug, Default)]
pub(super) struct Placing {
    phase: Phase,
    /// The position within the phase.
    at: usize,
    /// How many of the set's dedicated streams move.
    moved: usize,
    /// Streams that are not frozen, and the slices that they are cut into.
    loose: Vec<u32>,
    slices: Vec<(WorkerIndex, u32)>,
    /// The present slice, and how many streams it has.
    slice: (usize, u32),
    targets: Vec<SliceTarget>,
    /// How many streams would move, and how many still may.
    wanted: usize,
    moves: usize,
    /// Streams that may move and from where, and that have to be placed.
    movers: Vec<(SliceTarget, WorkerIndex)>,
    arrivals: Vec<SliceTarget>,
    /// Streams that are still to be placed after the phase.
    left: Vec<SliceTarget>,
    /// Movers that wait for room at their target.
    waiting: BTreeMap<WorkerIndex, Vec<(SliceTarget, WorkerIndex)>>,
    /// The present mover.
    mover: Option<(SliceTarget, WorkerIndex)>,
    /// The next worker that may have room.
    place: usize,
}

/// The phases in which the streams are placed, in order.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    /// Frozen streams are placed.
    #[default]
    Freeze,
    /// The others are cut into slices, except those that find no room.
    Cut,
    /// The moves are counted.
    Count,
    /// All moves are made.
    MoveAll,
    /// The limit allows only some of the moves: streams that are in their slice stay.
    Stay,
    /// The others stay for now, if their worker has room.
    Wait,
    /// Streams without a worker go to their slice, where that has room.
    Arrive,
    /// Streams move to workers with room; those that have waited for the freed room follow.
    Move,
    /// Streams without a worker go to where there is room now.
    ArriveLate,
    /// The rest of them go anywhere.
    Rest,
    Done,
}

impl Placing {
    /// A set before its streams are placed; `moved` of its dedicated streams move.
    pub(super) fn new(moved: usize) -> Self {
        Self { moved, ..Self::default() }
    }

    /// Makes a further step; returns whether all streams are placed.
    pub(super) fn step(&mut self, slices: &Slices, context: &mut SetContext<'_>) -> bool {
        loop {
            let next = match self.phase {
                Phase::Freeze => self.freeze(slices, context),
                Phase::Cut => self.cut(context),
                Phase::Count => self.count(context),
                Phase::MoveAll => self.move_all(context),
                Phase::Stay => self.stay(context),
                Phase::Wait => self.wait(context),
                Phase::Arrive => self.arrive(context, Phase::Move),
                Phase::Move => self.make_moves(context),
                Phase::ArriveLate => self.arrive(context, Phase::Rest),
                Phase::Rest => self.place_rest(&slices.order, context),
                Phase::Done => return true,
            };
            let Some(next) = next else { return false };
            (self.phase, self.at) = (next, 0);
        }
    }

    fn freeze(&mut self, slices: &Slices, context: &mut SetContext<'_>) -> Option<Phase> {
        let streams = context.set.streams;
        for at in context.budget.next_range(&mut self.at, streams.len()) {
            let stream = &streams[at];
            match context.loads.present_owner(stream) {
                _ if stream.dedicated => {}
                PresentOwner::Kept(worker) if stream.frozen && context.loads.has_room(worker) => {
                    context.loads.add(worker, stream.weight);
                    context.placements[at] = Placement::On(worker);
                }
                _ => self.loose.push(at as u32),
            }
        }
        if self.at < streams.len() {
            return None;
        }
        self.slices = slices.slices(self.loose.len(), context.loads);
        context.budget.spend(slices.order.len());
        Some(Phase::Cut)
    }

    fn cut(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        for at in context.budget.next_range(&mut self.at, self.loose.len()) {
            let (mut slice, mut taken) = self.slice;
            while self.slices.get(slice).is_some_and(|(_, count)| *count == taken) {
                (slice, taken) = (slice + 1, 0);
            }
            let Some((target, _)) = self.slices.get(slice) else { return Some(Phase::Count) };
            self.targets.push(SliceTarget { at: self.loose[at], target: *target });
            self.slice = (slice, taken + 1);
        }
        (self.at == self.loose.len()).then_some(Phase::Count)
    }

    fn count(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        for slice_target in
            &self.targets[context.budget.next_range(&mut self.at, self.targets.len())]
        {
            self.wanted +=
                match context.loads.present_owner(&context.set.streams[slice_target.at as usize]) {
                    PresentOwner::Kept(worker) => usize::from(worker != slice_target.target),
                    PresentOwner::Evicted => 1,
                    PresentOwner::Fresh => 0,
                };
        }
        if self.at < self.targets.len() {
            return None;
        }
        self.moves = context.set.moves_max.saturating_sub(self.moved);
        Some(if self.wanted <= self.moves { Phase::MoveAll } else { Phase::Stay })
    }

    fn move_all(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        for slice_target in
            &self.targets[context.budget.next_range(&mut self.at, self.targets.len())]
        {
            context.put(slice_target.at, slice_target.target);
        }
        (self.at == self.targets.len()).then_some(Phase::Done)
    }

    fn stay(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        for slice_target in
            &self.targets[context.budget.next_range(&mut self.at, self.targets.len())]
        {
            match context.loads.present_owner(&context.set.streams[slice_target.at as usize]) {
                PresentOwner::Kept(worker) if worker == slice_target.target => {
                    context.put(slice_target.at, worker);
                }
                PresentOwner::Kept(_) | PresentOwner::Evicted | PresentOwner::Fresh => {}
            }
        }
        (self.at == self.targets.len()).then_some(Phase::Wait)
    }

    fn wait(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        for slice_target in
            &self.targets[context.budget.next_range(&mut self.at, self.targets.len())]
        {
            match context.loads.present_owner(&context.set.streams[slice_target.at as usize]) {
                PresentOwner::Kept(worker) if worker == slice_target.target => {}
                PresentOwner::Kept(worker) if context.loads.has_room(worker) => {
                    context.put(slice_target.at, worker);
                    self.movers.push((*slice_target, worker));
                }
                PresentOwner::Kept(_) | PresentOwner::Evicted => {
                    self.moves = self.moves.saturating_sub(1);
                    self.arrivals.push(*slice_target);
                }
                PresentOwner::Fresh => self.arrivals.push(*slice_target),
            }
        }
        (self.at == self.targets.len()).then_some(Phase::Arrive)
    }

    fn arrive(&mut self, context: &mut SetContext<'_>, next: Phase) -> Option<Phase> {
        for slice_target in
            &self.arrivals[context.budget.next_range(&mut self.at, self.arrivals.len())]
        {
            if context.loads.has_room(slice_target.target) {
                context.put(slice_target.at, slice_target.target);
            } else {
                self.left.push(*slice_target);
            }
        }
        if self.at < self.arrivals.len() {
            return None;
        }
        self.arrivals = std::mem::take(&mut self.left);
        Some(next)
    }

    fn make_moves(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        while self.moves > 0 {
            if !context.budget.is_left() {
                return None;
            }
            context.budget.spend(1);
            let Some((slice_target, from)) = self.mover.take() else {
                let Some(next) = self.movers.get(self.at) else { break };
                self.mover = Some(*next);
                self.at += 1;
                continue;
            };
            if !context.loads.has_room(slice_target.target) {
                self.waiting.entry(slice_target.target).or_default().push((slice_target, from));
                continue;
            }
            self.moves -= 1;
            context.loads.take(from, context.set.streams[slice_target.at as usize].weight);
            context.put(slice_target.at, slice_target.target);
            self.mover = self.waiting.get_mut(&from).and_then(Vec::pop);
        }
        Some(Phase::ArriveLate)
    }

    fn place_rest(&mut self, order: &[WorkerIndex], context: &mut SetContext<'_>) -> Option<Phase> {
        for slice_target in
            &self.arrivals[context.budget.next_range(&mut self.at, self.arrivals.len())]
        {
            while order.get(self.place).is_some_and(|worker| !context.loads.has_room(*worker)) {
                self.place += 1;
            }
            let place = order.get(self.place);
            let place = place.expect("a slice is no larger than the room of its worker");
            context.put(slice_target.at, *place);
        }
        (self.at == self.arrivals.len()).then_some(Phase::Done)
    }
}

impl SetContext<'_> {
    fn put(&mut self, at: u32, worker: WorkerIndex) {
        self.loads.add(worker, self.set.streams[at as usize].weight);
        self.placements[at as usize] = Placement::On(worker);
    }
}
