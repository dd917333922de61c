//! The policy `Sticky`: loads level out, and few streams move.
//!
//! Invariant: the most loaded worker that has a stream to give and the least loaded one that has
//! room differ by at most the weight of the set's heaviest stream.
//!
//! First every stream that may stay stays, and the streams without a worker go, heaviest first,
//! each to the worker that is then least loaded. After that, while the difference above is
//! larger than the heaviest weight `w`, the most loaded worker gives its heaviest stream to the
//! least loaded one. Because that difference is larger than `w`, the receiver stays below what
//! the giver had: the highest load never rises and the lowest never falls, so the loop ends, and
//! a plan whose difference is at most `w` already is left alone.
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

use super::room::{Room, Stand};
use super::{Placement, SetInput, StreamSpec, WorkerIndex};

/// Bits of a [`Rank`] for each of the two loads: room for 280 times the weight of the most streams
/// that a coordinator may have, at the largest weight.
const LOAD_BITS: u32 = 48;

/// A worker's load in this set, then in the earlier sets, then its index: among workers with
/// equal loads the one that is less loaded otherwise comes first. In one number, because heaps
/// compare numbers without a branch, which takes a quarter off the time of a large plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u128);

impl Rank {
    fn new(load: u64, total: u64, worker: WorkerIndex) -> Self {
        assert!(load.max(total) >> LOAD_BITS == 0, "weights are within their limits");
        let high = u128::from(load) << LOAD_BITS | u128::from(total);
        Self(high << WorkerIndex::BITS | u128::from(worker))
    }

    fn of(room: &Room, worker: WorkerIndex) -> Self {
        Self::new(room.load(worker), room.total(worker), worker)
    }

    fn load(self) -> u64 {
        (self.0 >> (LOAD_BITS + WorkerIndex::BITS)) as u64
    }

    fn worker(self) -> WorkerIndex {
        self.0 as WorkerIndex
    }
}

/// Places the set's streams that are not dedicated; `moved` of the dedicated ones move already.
pub(super) fn place(
    set: &SetInput<'_>,
    moved: usize,
    room: &mut Room,
    placements: &mut [Placement],
) {
    let mut plan =
        Plan { streams: set.streams, room, placements, piles: None, receivers: BinaryHeap::new() };
    let homeless = plan.keep();
    let forced = plan.fill(homeless);
    plan.level(set.moves_max.saturating_sub(moved).saturating_sub(forced));
}

/// The streams that are to be placed.
struct Homeless {
    /// Those that have a living worker, which may not keep them.
    evicted: Vec<u32>,
    fresh: Vec<u32>,
}

struct Plan<'a> {
    streams: &'a [StreamSpec],
    room: &'a mut Room,
    placements: &'a mut [Placement],
    /// What the workers had before; made when the first stream is to leave its worker.
    piles: Option<Piles>,
    /// The workers of the set that have room, the least loaded one on top.
    receivers: BinaryHeap<Reverse<Rank>>,
}

impl Plan<'_> {
    /// Leaves every stream where it is if its worker may own it and so many.
    fn keep(&mut self) -> Homeless {
        let mut homeless = Homeless { evicted: Vec::new(), fresh: Vec::new() };
        for (at, stream) in (0..).zip(self.streams).filter(|(_, stream)| !stream.dedicated) {
            match self.room.stand(stream) {
                Stand::Kept(worker) => {
                    self.room.add(worker, stream.weight);
                    self.placements[at as usize] = Placement::On(worker);
                }
                Stand::Evicted => homeless.evicted.push(at),
                Stand::Fresh => homeless.fresh.push(at),
            }
        }
        let overfull = |worker: &WorkerIndex| self.room.owned(*worker) > self.room.cap(*worker);
        let overfull: Vec<_> = self.room.touched().iter().copied().filter(overfull).collect();
        if !overfull.is_empty() {
            self.shed(&overfull, &mut homeless);
        }
        homeless
    }

    /// Takes from workers what is above the most that they may own, frozen streams last.
    fn shed(&mut self, overfull: &[WorkerIndex], homeless: &mut Homeless) {
        let mut piles = Piles::new(self.streams, self.placements, self.room);
        for &worker in overfull {
            while self.room.owned(worker) > self.room.cap(worker) {
                let slot = self.room.slot(worker);
                let at = piles.pop(slot, self.streams, true).expect("an owned stream is piled");
                self.room.take(worker, self.streams[at as usize].weight);
                self.placements[at as usize] = Placement::Unplaced(super::Unplaced::WorkersFull);
                homeless.evicted.push(at);
            }
        }
        homeless.evicted.sort_unstable();
        self.piles = Some(piles);
    }

    /// Places the homeless streams, as many as there is room for: those that have run before
    /// those that have not. Returns how many moved from a living worker.
    fn fill(&mut self, homeless: Homeless) -> usize {
        let owned = self.room.touched().iter().map(|worker| self.room.owned(*worker) as usize);
        let free = self.room.free().saturating_sub(owned.sum());
        let forced = homeless.evicted.len().min(free);
        let mut queue = homeless.evicted;
        queue.extend(homeless.fresh);
        queue.truncate(free);
        self.heaviest_first(&mut queue);

        let ranks = self.room.touched().iter().filter(|worker| self.room.has_room(**worker));
        let rank = |worker: &WorkerIndex| Reverse(Rank::of(self.room, *worker));
        self.receivers = ranks.map(rank).collect::<Vec<_>>().into();
        for at in queue {
            self.least().expect("the queue is no longer than there is room");
            self.give_least(at);
        }
        forced
    }

    fn heaviest_first(&self, queue: &mut [u32]) {
        let weight = |at: u32| self.streams[at as usize].weight;
        if queue.windows(2).all(|pair| weight(pair[0]) >= weight(pair[1])) {
            return;
        }
        // One number for both, for the reason that a rank is one.
        let key = |at: &u32| u64::from(u32::MAX - weight(*at)) << u32::BITS | u64::from(*at);
        let mut keys: Vec<_> = queue.iter().map(key).collect();
        keys.sort_unstable();
        for (place, key) in queue.iter_mut().zip(keys) {
            *place = key as u32;
        }
    }

    /// Brings the least loaded worker that has room to the top of the receivers.
    fn least(&mut self) -> Option<Rank> {
        if let Some((total, worker)) = self.room.least_untouched() {
            let rank = Rank::new(0, total, worker);
            if self.receivers.peek().is_none_or(|Reverse(top)| rank < *top) {
                self.room.touch(worker);
                self.receivers.push(Reverse(rank));
            }
        }
        self.receivers.peek().map(|Reverse(rank)| *rank)
    }

    /// Gives a stream to the receiver on top.
    fn give_least(&mut self, at: u32) {
        let weight = self.streams[at as usize].weight;
        let mut top = self.receivers.peek_mut().expect("a receiver is on top");
        let worker = top.0.worker();
        self.room.add(worker, weight);
        top.0 = Rank::of(self.room, worker);
        self.placements[at as usize] = Placement::On(worker);
        if !self.room.has_room(worker) {
            PeekMut::pop(top);
        }
    }

    /// Moves streams, `moves` at most, from the most to the least loaded worker until they are
    /// near enough.
    fn level(&mut self, mut moves: usize) {
        let shared = self.streams.iter().filter(|stream| !stream.dedicated);
        let heaviest = shared.map(|stream| u64::from(stream.weight)).max().unwrap_or(0);
        let most = self.room.touched().iter().map(|worker| self.room.load(*worker)).max();
        let is_level = |most: u64, least: Rank| most <= least.load() + heaviest;
        let ends = most.zip(self.least());
        if moves == 0 || ends.is_none_or(|(most, least)| is_level(most, least)) {
            return;
        }
        let rank = |worker: &WorkerIndex| Rank::of(self.room, *worker);
        let mut givers: BinaryHeap<Rank> = self.room.touched().iter().map(rank).collect();
        let mut piles = match self.piles.take() {
            Some(piles) => piles,
            None => Piles::new(self.streams, self.placements, self.room),
        };
        while moves > 0 {
            let Some(least) = self.least() else { break };
            let Some(mut giver) = givers.peek_mut() else { break };
            if is_level(giver.load(), least) {
                break;
            }
            let worker = giver.worker();
            let Some(at) = piles.pop(self.room.slot(worker), self.streams, false) else {
                PeekMut::pop(giver);
                continue;
            };
            self.room.take(worker, self.streams[at as usize].weight);
            *giver = Rank::of(self.room, worker);
            self.give_least(at);
            moves -= 1;
        }
    }
}

/// The end of a list of streams.
const END: u32 = u32::MAX;

/// The streams that stand on each touched worker, to be taken heaviest first.
struct Piles {
    /// Per touched worker the last of its streams, and per stream the one before it.
    last: Vec<u32>,
    before: Vec<u32>,
    /// The piles that have been asked for, one behind the other.
    streams: Vec<u32>,
    piles: Vec<Option<Pile>>,
}

/// A pile: its frozen streams are `bottom..movable`, the others `movable..top`.
#[derive(Clone, Copy)]
struct Pile {
    bottom: usize,
    movable: usize,
    top: usize,
}

impl Piles {
    /// The streams that stay where they stand.
    fn new(streams: &[StreamSpec], placements: &[Placement], room: &Room) -> Self {
        let mut last = vec![END; room.touched().len()];
        let mut before = vec![END; streams.len()];
        for (at, stream) in (0..).zip(streams).filter(|(_, stream)| !stream.dedicated) {
            let kept = stream.present.filter(|on| placements[at as usize] == Placement::On(*on));
            if let Some(worker) = kept {
                let last = &mut last[room.slot(worker)];
                before[at as usize] = std::mem::replace(last, at);
            }
        }
        let piles = vec![None; last.len()];
        Self { last, before, streams: Vec::new(), piles }
    }

    /// Takes the heaviest stream of a worker, the later in the list among equals. With `any`,
    /// takes frozen ones when nothing else is left.
    fn pop(&mut self, slot: usize, streams: &[StreamSpec], any: bool) -> Option<u32> {
        if slot >= self.last.len() {
            return None;
        }
        let mut pile = self.piles[slot].unwrap_or_else(|| self.stack(slot, streams));
        let end = if any { pile.bottom } else { pile.movable };
        let taken = (pile.top > end).then(|| {
            pile.top -= 1;
            self.streams[pile.top]
        });
        self.piles[slot] = Some(pile);
        taken
    }

    fn stack(&mut self, slot: usize, streams: &[StreamSpec]) -> Pile {
        let bottom = self.streams.len();
        let mut at = self.last[slot];
        while at != END {
            self.streams.push(at);
            at = self.before[at as usize];
        }
        let pile = &mut self.streams[bottom..];
        pile.sort_unstable_by_key(|&at| {
            let stream = &streams[at as usize];
            (!stream.frozen, stream.weight, at)
        });
        let frozen = pile.iter().take_while(|at| streams[**at as usize].frozen).count();
        Pile { bottom, movable: bottom + frozen, top: self.streams.len() }
    }
}
