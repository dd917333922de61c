//! The policy `Sticky`: loads level out, and few streams move.
//!
//! Invariant: the most loaded worker that has a stream to give and the least loaded one that has
//! room differ by at most the weight of the set's heaviest stream. Workers to avoid are left out of
//! this: they keep what they have, and get only new streams for which no other has room.
//!
//! First every stream stays that may stay, and the streams without a worker go, heaviest first,
//! each to the worker that is least loaded then. After that, while the difference above is larger
//! than the heaviest weight `w`, the most loaded worker gives its heaviest stream to the least
//! loaded one. Because that difference is larger than `w`, the receiver stays below what the giver
//! had: the highest load never rises and the lowest never falls, so the loop ends, and a plan whose
//! difference is at most `w` already is left alone.
//!
//! How many streams move, at most `R * min + (R - 1) * new`: `min` is the least number of moves
//! after which all loads lie within `w` of each other, `new` the number of streams that had no
//! worker or must leave it (which does not count as a move here), and `R` the heaviest weight
//! divided by the lightest, rounded up. For equal weights `R` is 1 and the moves are the minimum,
//! exactly. The bound holds where neither frozen streams nor the most per worker stand in the
//! way. Why:
//!
//! * Let the last move go from load `a` to load `b`, so `a - b > w`, and choose `low` between `b`
//!   and `a - w`, and `high = low + w`. Givers' loads only fall from move to move, receivers'
//!   only rise: at each move, and each placement of a new stream, the giver was above `high`,
//!   the receiver below `low`. So a receiver ends below `high` and never gives, and a giver ends
//!   above `low` and never receives: no stream moves twice.
//! * Givers so give only what they had, heaviest first and only while above `high`: the moves are
//!   at most `out(high)`, the least number of streams that must leave so that no worker is above
//!   `high`.
//! * Receivers receive only while below `low`, each time at least the lightest weight: moves and
//!   new streams together are at most `R * in(low)`, where `in(low)` is the least number of
//!   streams, of weight `w` at best, that lift every worker to `low`.
//! * A best plan leaves its loads within some `[x, x + w]`. If `x <= low`, it moves `out(x + w) >=
//!   out(high)` streams at least: no fewer than this one. If `x > low`, it places and moves
//!   `in(x) >= in(low)` at least, so `moves + new <= R * (min + new)`.
//!
//! With a limit on moves the loop stops early. The next round goes on from the same state, in the
//! same order: the rounds together are the unlimited plan, and still no stream moves twice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::step_budget::{SetContext, StepBudget};
use super::worker_loads::{PresentOwner, WorkerLoads};
use super::worker_streams::WorkerStreams;
use super::{Placement, StreamSpec, Unplaced, WorkerIndex};

/// Bits of a [`Rank`] for each of the two loads: room for 140 times the weight of the most streams
/// that a coordinator may have, at the largest weight.
const LOAD_BITS: u32 = 47;
/// How many streams of a queue are sorted at once.
const RUN: usize = 4_096;

/// Whether a receiver is avoided, then a worker's load in this set, then in the earlier sets, then
/// its index: among workers with equal loads the one that is less loaded otherwise comes first. In
/// one number, because heaps compare numbers without a branch, which takes a quarter off the time
/// of a large plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u128);

impl Rank {
    /// The rank of a worker that may give a stream.
    fn of_giver(loads: &WorkerLoads, worker: WorkerIndex) -> Self {
        let (load, total) = (loads.load(worker), loads.total(worker));
        assert!(load.max(total) >> LOAD_BITS == 0, "weights are within their limits");
        let high = u128::from(load) << LOAD_BITS | u128::from(total);
        Self(high << WorkerIndex::BITS | u128::from(worker))
    }

    /// The rank of a worker that may get one.
    fn of_receiver(loads: &WorkerLoads, worker: WorkerIndex) -> Self {
        let avoided = u128::from(loads.is_avoided(worker));
        Self(Self::of_giver(loads, worker).0 | avoided << (u128::BITS - 1))
    }

    fn load(self) -> u64 {
        (self.0 >> (LOAD_BITS + WorkerIndex::BITS)) as u64 & ((1 << LOAD_BITS) - 1)
    }

    /// Whether it is the rank of a receiver that is avoided.
    fn is_avoided(self) -> bool {
        self.0 >> (u128::BITS - 1) == 1
    }

    fn worker(self) -> WorkerIndex {
        self.0 as WorkerIndex
    }
}

/// A set's streams that are not dedicated, as far as they are placed.
#[derive(Clone, Debug, Default)]
pub(super) struct Placing {
    phase: Phase,
    /// The position within the phase.
    at: usize,
    /// How many of the set's dedicated streams move.
    moved: usize,
    heaviest: u64,
    /// Streams whose living worker may not keep them.
    evicted: Vec<u32>,
    fresh: Vec<u32>,
    /// Workers that have more streams than they may own.
    overfull: Vec<WorkerIndex>,
    /// The streams of each worker; made when the first stream is to leave its worker.
    worker_streams: Option<WorkerStreams>,
    /// The streams that are to be placed, in that order.
    queue: Vec<u32>,
    sorting: Sorting,
    /// The workers of the set that have room, the least loaded one on top; and all its workers,
    /// the most loaded one on top.
    receivers: BinaryHeap<Reverse<Rank>>,
    givers: BinaryHeap<Rank>,
    /// How many more streams may move.
    moves: usize,
}

/// The phases in which the streams are placed, in order.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    /// Every stream stays where it is if its worker may own it.
    #[default]
    Keep,
    /// The streams are listed by worker, to take from overfull workers.
    ListOverfull,
    /// Overfull workers lose the streams beyond the most that they may own.
    Shed,
    /// Those streams are put in the order of the list.
    Recount,
    /// Checks whether the streams without a worker are sorted already.
    CheckOrder,
    Sort,
    Fill,
    /// The streams are listed by worker, to move some for balance.
    ListAll,
    Level,
    Done,
}

impl Placing {
    /// A set before its streams are placed; `moved` of its dedicated streams move.
    pub(super) fn new(moved: usize) -> Self {
        Self { moved, ..Self::default() }
    }

    /// Makes a further step; returns whether all streams are placed.
    pub(super) fn step(&mut self, context: &mut SetContext<'_>) -> bool {
        loop {
            let next = match self.phase {
                Phase::Keep => self.keep(context),
                Phase::ListOverfull => self.sorted(context, Phase::Shed),
                Phase::Shed => self.shed(context),
                Phase::Recount => self.recount(context),
                Phase::CheckOrder => self.check_order(context),
                Phase::Sort => self.sort(context),
                Phase::Fill => self.fill(context),
                Phase::ListAll => self.sorted(context, Phase::Level),
                Phase::Level => self.level(context),
                Phase::Done => return true,
            };
            let Some(next) = next else { return false };
            (self.phase, self.at) = (next, 0);
        }
    }

    /// Leaves every stream where it is if its worker may own it.
    fn keep(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        let streams = context.set.streams;
        for at in context.budget.next_range(&mut self.at, streams.len()) {
            let stream = &streams[at];
            if stream.dedicated {
                continue;
            }
            self.heaviest = self.heaviest.max(u64::from(stream.weight));
            match context.loads.present_owner(stream) {
                PresentOwner::Kept(worker) => {
                    context.loads.add(worker, stream.weight);
                    context.placements[at] = Placement::On(worker);
                }
                PresentOwner::Evicted => self.evicted.push(at as u32),
                PresentOwner::Fresh => self.fresh.push(at as u32),
            }
        }
        if self.at < streams.len() {
            return None;
        }
        let loads = &*context.loads;
        let overfull = |worker: &WorkerIndex| loads.owned(*worker) > loads.cap(*worker);
        self.overfull = loads.touched().iter().copied().filter(overfull).collect();
        context.budget.spend(loads.touched().len());
        if self.overfull.is_empty() {
            self.enqueue(context);
            return Some(Phase::CheckOrder);
        }
        Some(Phase::ListOverfull)
    }

    fn sorted(&mut self, context: &mut SetContext<'_>, next: Phase) -> Option<Phase> {
        let streams = context.set.streams;
        let worker_streams = self
            .worker_streams
            .get_or_insert_with(|| WorkerStreams::new(streams.len(), context.loads));
        for at in context.budget.next_range(&mut self.at, streams.len()) {
            worker_streams.enter(at, &streams[at], context.placements[at], context.loads);
        }
        (self.at == streams.len()).then_some(next)
    }

    /// Takes from workers the streams beyond the most that they may own, frozen ones last.
    fn shed(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        let worker_streams = self.worker_streams.as_mut().expect("the streams are listed");
        let streams = context.set.streams;
        while let Some(&worker) = self.overfull.get(self.at) {
            while context.loads.owned(worker) > context.loads.cap(worker) {
                if !context.budget.is_left() {
                    return None;
                }
                let slot = context.loads.slot(worker);
                let at = worker_streams.pop(slot, streams, true, context.budget);
                let at = at.expect("an owned stream is listed") as usize;
                context.loads.take(worker, streams[at].weight);
                context.placements[at] = Placement::Unplaced(Unplaced::WorkersFull);
                context.budget.spend(1);
            }
            self.at += 1;
        }
        self.evicted.clear();
        Some(Phase::Recount)
    }

    /// Collects the streams that may not stay with their living worker, in the order of the list.
    fn recount(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        let streams = context.set.streams;
        for at in context.budget.next_range(&mut self.at, streams.len()) {
            let unplaced = matches!(context.placements[at], Placement::Unplaced(_));
            let fresh = matches!(context.loads.present_owner(&streams[at]), PresentOwner::Fresh);
            if unplaced && !fresh && !streams[at].dedicated {
                self.evicted.push(at as u32);
            }
        }
        if self.at < streams.len() {
            return None;
        }
        self.enqueue(context);
        Some(Phase::CheckOrder)
    }

    /// Queues the streams without a place, as many as there is room for: first those that had a
    /// worker.
    fn enqueue(&mut self, context: &mut SetContext<'_>) {
        let loads = &*context.loads;
        let owned = loads.touched().iter().map(|worker| loads.owned(*worker) as usize);
        let free = loads.free().saturating_sub(owned.sum());
        let forced = self.evicted.len().min(free);
        self.moves = context.set.moves_max.saturating_sub(self.moved).saturating_sub(forced);
        self.queue = std::mem::take(&mut self.evicted);
        self.queue.append(&mut self.fresh);
        self.queue.truncate(free);
        let ranks = loads.touched().iter().filter(|worker| loads.has_room(**worker));
        let rank = |worker: &WorkerIndex| Reverse(Rank::of_receiver(loads, *worker));
        self.receivers = ranks.map(rank).collect::<Vec<_>>().into();
        context.budget.spend(loads.touched().len());
    }

    /// Whether the queue is in order: heaviest first.
    fn check_order(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        let weight = |at: usize| context.set.streams[self.queue[at] as usize].weight;
        let mut pairs = context.budget.next_range(&mut self.at, self.queue.len().saturating_sub(1));
        if pairs.any(|at| weight(at) < weight(at + 1)) {
            return Some(Phase::Sort);
        }
        (self.at + 1 >= self.queue.len()).then_some(Phase::Fill)
    }

    fn sort(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        let done = self.sorting.step(&mut self.queue, context.set.streams, context.budget);
        done.then(|| {
            self.sorting = Sorting::default();
            Phase::Fill
        })
    }

    fn fill(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        for at in context.budget.next_range(&mut self.at, self.queue.len()) {
            self.least(context.loads).expect("the queue is no longer than there is loads");
            self.give_least(self.queue[at], context);
        }
        if self.at < self.queue.len() {
            return None;
        }
        self.queue = Vec::new();
        Some(self.begin_level(context))
    }

    /// Brings the least loaded worker that has room to the top of the receivers.
    fn least(&mut self, loads: &mut WorkerLoads) -> Option<Rank> {
        if let Some(worker) = loads.least_untouched() {
            let rank = Rank::of_receiver(loads, worker);
            if self.receivers.peek().is_none_or(|Reverse(top)| rank < *top) {
                loads.touch(worker);
                self.receivers.push(Reverse(rank));
            }
        }
        self.receivers.peek().map(|Reverse(rank)| *rank)
    }

    /// Gives a stream to the receiver on top.
    fn give_least(&mut self, at: u32, context: &mut SetContext<'_>) {
        let weight = context.set.streams[at as usize].weight;
        let mut top = self.receivers.peek_mut().expect("a receiver is on top");
        let worker = top.0.worker();
        context.loads.add(worker, weight);
        top.0 = Rank::of_receiver(context.loads, worker);
        context.placements[at as usize] = Placement::On(worker);
        if !context.loads.has_room(worker) {
            PeekMut::pop(top);
        }
    }

    /// Whether nothing moves for balance: the difference of two loads is within the heaviest
    /// weight, or only workers to avoid have room.
    fn is_level(&self, most: u64, least: Rank) -> bool {
        least.is_avoided() || most <= least.load() + self.heaviest
    }

    fn begin_level(&mut self, context: &mut SetContext<'_>) -> Phase {
        let most = context.loads.touched().iter().map(|worker| context.loads.load(*worker)).max();
        context.budget.spend(context.loads.touched().len());
        let ends = most.zip(self.least(context.loads));
        if self.moves == 0 || ends.is_none_or(|(most, least)| self.is_level(most, least)) {
            return Phase::Done;
        }
        let loads = &*context.loads;
        let rank = |worker: &WorkerIndex| Rank::of_giver(loads, *worker);
        self.givers = loads.touched().iter().map(rank).collect();
        match self.worker_streams {
            Some(_) => Phase::Level,
            None => Phase::ListAll,
        }
    }

    /// Moves streams from the most to the least loaded worker until the loads are level.
    fn level(&mut self, context: &mut SetContext<'_>) -> Option<Phase> {
        let mut worker_streams = self.worker_streams.take().expect("the streams are listed");
        while self.moves > 0 {
            if !context.budget.is_left() {
                self.worker_streams = Some(worker_streams);
                return None;
            }
            context.budget.spend(1);
            let Some(least) = self.least(context.loads) else { break };
            let Some(most) = self.givers.peek().copied() else { break };
            if self.is_level(most.load(), least) {
                break;
            }
            let mut giver = self.givers.peek_mut().expect("a giver is on top");
            let worker = most.worker();
            let slot = context.loads.slot(worker);
            let Some(at) = worker_streams.pop(slot, context.set.streams, false, context.budget)
            else {
                PeekMut::pop(giver);
                continue;
            };
            context.loads.take(worker, context.set.streams[at as usize].weight);
            *giver = Rank::of_giver(context.loads, worker);
            drop(giver);
            self.give_least(at, context);
            self.moves -= 1;
        }
        Some(Phase::Done)
    }
}

/// A queue that is sorted in steps, heaviest first: runs first, which are then merged. Among equal
/// weights the first in the list comes first.
#[derive(Clone, Debug, Default)]
struct Sorting {
    /// Weight and position in one number, which compares without a branch; in sorted runs.
    keys: Vec<u64>,
    /// The least remaining key of each run, and its position.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    merged: usize,
}

impl Sorting {
    /// Makes a further step; returns whether the queue is sorted.
    fn step(&mut self, queue: &mut [u32], streams: &[StreamSpec], budget: &mut StepBudget) -> bool {
        let key = |at: &u32| {
            let weight = streams[*at as usize].weight;
            u64::from(u32::MAX - weight) << u32::BITS | u64::from(*at)
        };
        while self.keys.len() < queue.len() {
            if !budget.is_left() {
                return false;
            }
            let start = self.keys.len();
            let run = &queue[start..queue.len().min(start + RUN)];
            self.keys.extend(run.iter().map(key));
            self.keys[start..].sort_unstable();
            self.heads.push(Reverse((self.keys[start], start)));
            budget.spend(run.len());
        }
        for place in budget.next_range(&mut self.merged, queue.len()) {
            let mut head = self.heads.peek_mut().expect("each key is in one run");
            let Reverse((key, at)) = *head;
            queue[place] = key as u32;
            let next = at + 1;
            if next % RUN == 0 || next == self.keys.len() {
                PeekMut::pop(head);
            } else {
                *head = Reverse((self.keys[next], next));
            }
        }
        self.merged == queue.len()
    }
}
