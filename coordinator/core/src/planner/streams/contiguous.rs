//! The policy `Contiguous`: slices of the list, in the order of the workers' names.
//!
//! Invariant: of N streams over W workers the first N mod W own one more than the others.
//!
//! Workers that the most per worker holds below their slice leave the rest to the others. Frozen
//! streams stay, and count in their worker's slice; the list without them is cut. Where the limit
//! on moves allows only some of the moves, they are made in the order of the list, and a stream
//! goes to its own slice at once or not at all: none moves twice. Two workers that are both full
//! and would have to swap wait until the limit allows all moves at once.

use std::collections::BTreeMap;

use super::room::{Room, Stand};
use super::{Placement, SetInput, StreamInput, StreamSpec, WorkerIndex, order};
use crate::desired::Policy;

/// The workers in the order in which slices go over them.
pub(super) struct Slices {
    /// Open workers with room.
    order: Vec<WorkerIndex>,
    /// How many workers were full when `order` was last cleared of them.
    full: usize,
}

/// A stream that is not dedicated, and where the plan without a limit on moves wants it.
struct Aim {
    at: u32,
    target: WorkerIndex,
}

impl Slices {
    /// The order of all open workers.
    pub(super) fn new(input: &StreamInput<'_>, room: &Room) -> Self {
        let mut order = Vec::new();
        if input.sets.iter().any(|set| set.policy == Policy::Contiguous) {
            order = order::natural(input.workers);
            order.retain(|worker| room.is_open(*worker));
        }
        Self { order, full: 0 }
    }

    /// Places the set's streams that are not dedicated; `moved` of the dedicated ones move
    /// already.
    pub(super) fn place(
        &mut self,
        set: &SetInput<'_>,
        moved: usize,
        room: &mut Room,
        placements: &mut [Placement],
    ) {
        if room.full() != self.full {
            self.order.retain(|worker| room.has_room(*worker));
            self.full = room.full();
        }
        let aims = self.aims(set.streams, room, placements);
        let moves = |aim: &&Aim| match room.stand(&set.streams[aim.at as usize]) {
            Stand::Kept(worker) => worker != aim.target,
            Stand::Evicted => true,
            Stand::Fresh => false,
        };
        let moves_max = set.moves_max.saturating_sub(moved);
        if aims.iter().filter(moves).count() <= moves_max {
            for aim in aims {
                room.add(aim.target, set.streams[aim.at as usize].weight);
                placements[aim.at as usize] = Placement::On(aim.target);
            }
            return;
        }
        let mut round = Round { streams: set.streams, room, placements, moves: moves_max };
        round.place(&aims, &self.order);
    }

    /// Cuts the list. Places frozen streams; returns the others, less those that find no room.
    fn aims(
        &self,
        streams: &[StreamSpec],
        room: &mut Room,
        placements: &mut [Placement],
    ) -> Vec<Aim> {
        let mut loose = Vec::with_capacity(streams.len());
        for (at, stream) in (0..).zip(streams).filter(|(_, stream)| !stream.dedicated) {
            match room.stand(stream) {
                Stand::Kept(worker) if stream.frozen && room.has_room(worker) => {
                    room.add(worker, stream.weight);
                    placements[at as usize] = Placement::On(worker);
                }
                _ => loose.push(at),
            }
        }
        let slices = self.slices(loose.len(), room).into_iter();
        let targets =
            slices.flat_map(|(worker, count)| std::iter::repeat_n(worker, count as usize));
        loose.into_iter().zip(targets).map(|(at, target)| Aim { at, target }).collect()
    }

    /// How many of `loose` streams each worker gets beside its frozen ones, in order.
    fn slices(&self, loose: usize, room: &Room) -> Vec<(WorkerIndex, u32)> {
        let frozen: usize = room.touched().iter().map(|worker| room.owned(*worker) as usize).sum();
        let all = (loose + frozen).min(room.free());
        if all <= self.order.len() {
            let idle = self.order.iter().filter(|worker| room.owned(**worker) == 0);
            return idle.map(|worker| (*worker, 1)).take(all - frozen).collect();
        }
        let all = u32::try_from(all).expect("streams are counted in u32");
        let level_at =
            |worker: WorkerIndex, level: u32| level.clamp(room.owned(worker), room.cap(worker));
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
            (*worker, count - room.owned(*worker))
        };
        self.order.iter().map(slice).collect()
    }
}

/// A plan that makes only some of the moves.
struct Round<'a> {
    streams: &'a [StreamSpec],
    room: &'a mut Room,
    placements: &'a mut [Placement],
    /// How many more streams may move.
    moves: usize,
}

impl Round<'_> {
    fn place(&mut self, aims: &[Aim], order: &[WorkerIndex]) {
        let (mut movers, mut arrivals) = (Vec::new(), Vec::new());
        for stays in [true, false] {
            for aim in aims {
                match self.room.stand(&self.streams[aim.at as usize]) {
                    Stand::Kept(worker) if (worker == aim.target) != stays => {}
                    Stand::Kept(worker) if stays || self.room.has_room(worker) => {
                        self.put(aim.at, worker);
                        movers.extend((!stays).then_some((aim, worker)));
                    }
                    Stand::Kept(_) | Stand::Evicted if !stays => {
                        self.moves = self.moves.saturating_sub(1);
                        arrivals.push(aim);
                    }
                    Stand::Fresh if !stays => arrivals.push(aim),
                    _ => {}
                }
            }
        }
        arrivals.retain(|aim| !self.put_if_room(aim));
        self.make_moves(movers);
        arrivals.retain(|aim| !self.put_if_room(aim));
        let mut places = order.iter().copied().peekable();
        for aim in arrivals {
            while places.next_if(|worker| !self.room.has_room(*worker)).is_some() {}
            let place = places.peek().expect("no more streams have an aim than there is room for");
            self.put(aim.at, *place);
        }
    }

    /// Moves streams to where there is room, and then those that have waited for the room that
    /// they leave.
    fn make_moves(&mut self, movers: Vec<(&Aim, WorkerIndex)>) {
        let mut waiting: BTreeMap<WorkerIndex, Vec<(&Aim, WorkerIndex)>> = BTreeMap::new();
        for mover in movers {
            let mut next = Some(mover);
            while let Some((aim, from)) = next {
                if self.moves == 0 {
                    return;
                }
                if !self.room.has_room(aim.target) {
                    waiting.entry(aim.target).or_default().push((aim, from));
                    break;
                }
                self.moves -= 1;
                self.room.take(from, self.streams[aim.at as usize].weight);
                self.put(aim.at, aim.target);
                next = waiting.get_mut(&from).and_then(Vec::pop);
            }
        }
    }

    fn put_if_room(&mut self, aim: &Aim) -> bool {
        let has_room = self.room.has_room(aim.target);
        if has_room {
            self.put(aim.at, aim.target);
        }
        has_room
    }

    fn put(&mut self, at: u32, worker: WorkerIndex) {
        self.room.add(worker, self.streams[at as usize].weight);
        self.placements[at as usize] = Placement::On(worker);
    }
}
