//! Makes room for a load that fits nowhere by moving shares of one worker to others.
//!
//! Invariant: each share fits on the worker that it moves to, and no fewer moves of one worker's
//! shares are enough, as far as the search went (`STEPS_MAX`). One move is found directly. For
//! more, each worker's shares are searched, the larger first and shares of equal load as one: for
//! the fewest that leave enough room and find room elsewhere, then for the least load.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leasehold_types::Load;

use super::FreeCapacity;

/// The most steps of the search over one worker's shares for one number of moves: some
/// milliseconds.
const STEPS_MAX: u32 = 10_000;
/// The most steps over all workers and numbers of moves.
const STEPS_ALL_MAX: u32 = 200_000;

/// A share of a worker, which may be movable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovableShare {
    /// The worker that has it; its load counts as used.
    pub worker: u32,
    /// Its load.
    pub load: Load,
    /// Whether it may move.
    pub movable: bool,
}

/// The moves (a share, by index, and the worker that it goes to) that leave room for the load on
/// one worker: the fewest, of these the least load, of these those of the first worker. An empty
/// list if there is room already; none if no such moves were found, and for a load above the
/// capacity, which can be cut to use any room.
#[must_use]
pub fn make_room(
    free: &FreeCapacity,
    shares: &[MovableShare],
    load: Load,
) -> Option<Vec<(usize, u32)>> {
    if load > free.capacity() {
        return None;
    }
    if free.best_fit(load).is_some() {
        return Some(Vec::new());
    }
    let sources = sources(free, shares, load);
    let most = sources.iter().map(|source| source.shares.len()).max().unwrap_or(0);
    let mut steps = STEPS_ALL_MAX;
    for moves in 1..=most {
        let mut best: Option<FoundMoves> = None;
        for source in sources.iter().filter(|source| source.may_suffice(moves)) {
            let mut search =
                MoveSearch::new(free, source, moves, best.as_ref().map(|found| found.load));
            search.steps = steps.min(STEPS_MAX);
            steps -= search.steps;
            search.run();
            steps += search.steps;
            best = search.found.or(best);
        }
        if let Some(found) = best {
            return Some(found.moves);
        }
    }
    None
}

/// A worker that may receive the load, once some of its shares have moved.
struct Source {
    worker: u32,
    /// The load that has to go.
    lack: Load,
    /// Its shares that may move, as index and load, the largest first.
    shares: Vec<(usize, Load)>,
}

impl Source {
    /// Whether this many shares could be enough.
    fn may_suffice(&self, moves: usize) -> bool {
        let largest = self.shares.iter().take(moves).map(|(_, load)| *load);
        self.shares.len() >= moves && largest.sum::<Load>() >= self.lack
    }
}

fn sources(free: &FreeCapacity, shares: &[MovableShare], load: Load) -> Vec<Source> {
    let all: Load = free.largest().map(|(room, _)| room).sum();
    let mut sources: Vec<Source> = (0..free.len())
        .map(|worker| u32::try_from(worker).expect("workers are counted in u32"))
        .map(|worker| {
            let lack = (free.used(worker) + load).saturating_sub(free.capacity());
            Source { worker, lack, shares: Vec::new() }
        })
        .collect();
    for (at, share) in shares.iter().enumerate() {
        if share.movable && share.load > Load::ZERO {
            sources[share.worker as usize].shares.push((at, share.load));
        }
    }
    // The shares that move need as much room elsewhere as they leave here.
    sources.retain(|source| source.lack + free.room(source.worker) <= all);
    sources.iter_mut().for_each(|source| source.shares.sort_by_key(|(_, load)| Reverse(*load)));
    sources
}

/// Moves that leave enough room.
struct FoundMoves {
    load: Load,
    moves: Vec<(usize, u32)>,
}

/// The search among one worker's shares.
struct MoveSearch<'a> {
    free: &'a FreeCapacity,
    source: &'a Source,
    moves: usize,
    /// Only moves of less load than this are an improvement.
    below: Option<Load>,
    /// The room of the largest other workers, as many as there are moves: shares that fit on any
    /// other workers fit on these.
    others: Vec<(Load, u32)>,
    /// The moves chosen so far: positions in the source's list and in `others`.
    chosen: Vec<(usize, usize)>,
    chosen_load: Load,
    steps: u32,
    found: Option<FoundMoves>,
}

impl<'a> MoveSearch<'a> {
    fn new(free: &'a FreeCapacity, source: &'a Source, moves: usize, below: Option<Load>) -> Self {
        let others = free.largest().filter(|(_, worker)| *worker != source.worker);
        let others = others.take(moves).collect();
        let (chosen, chosen_load) = (Vec::with_capacity(moves), Load::ZERO);
        Self { free, source, moves, below, others, chosen, chosen_load, steps: 0, found: None }
    }

    fn run(&mut self) {
        if self.moves == 1 { self.find_one() } else { self.choose(0) }
    }

    /// Finds one move: of the smallest share that is enough.
    fn find_one(&mut self) {
        let enough = |(_, load): &&(usize, Load)| *load >= self.source.lack;
        let shares = self.source.shares.iter().take_while(enough);
        let Some(load) = shares.map(|(_, load)| *load).last() else { return };
        let room = self.others.first().map_or(Load::ZERO, |(room, _)| *room);
        if load <= room && self.below.is_none_or(|below| load < below) {
            let place = self.source.shares.iter().position(|(_, other)| *other == load);
            self.chosen.push((place.expect("the load is a share's"), 0));
            self.chosen_load = load;
            self.keep();
        }
    }

    /// Chooses the shares from this position of the list on.
    fn choose(&mut self, from: usize) {
        let left = self.moves - self.chosen.len();
        if left == 0 {
            let is_less = self.below.is_none_or(|below| self.chosen_load < below);
            if is_less && self.chosen_load >= self.source.lack {
                self.keep();
            }
            return;
        }
        let shares = &self.source.shares;
        let least = shares.iter().rev().take(left).map(|(_, load)| *load).sum::<Load>();
        let mut before = None;
        for place in from..=shares.len().saturating_sub(left) {
            let load = shares[place].1;
            let most = shares[place..].iter().take(left).map(|(_, load)| *load).sum::<Load>();
            let is_less = self.below.is_none_or(|below| self.chosen_load + least < below);
            if self.steps == 0 || self.chosen_load + most < self.source.lack || !is_less {
                return;
            }
            // A share of equal load was tried here already.
            if before.replace(load) != Some(load) {
                self.try_workers(place, load);
            }
        }
    }

    /// Tries the share on each of the other workers; of workers with equal room on one.
    fn try_workers(&mut self, place: usize, load: Load) {
        for at in (0..self.others.len()).rev() {
            let room = self.others[at].0;
            let is_first = self.others[..at].iter().all(|(other, _)| *other != room);
            if self.steps == 0 || room < load || !is_first {
                continue;
            }
            self.steps -= 1;
            self.others[at].0 -= load;
            self.chosen.push((place, at));
            self.chosen_load += load;
            self.choose(place + 1);
            self.chosen_load -= load;
            self.chosen.pop();
            self.others[at].0 += load;
        }
    }

    /// Keeps the chosen moves: each to the least room that is enough, if all fit so, and otherwise
    /// as they were found.
    fn keep(&mut self) {
        let chosen = self.chosen.iter();
        let found = chosen.map(|(place, at)| {
            let (share, load) = self.source.shares[*place];
            (share, load, self.others[*at].1)
        });
        let found: Vec<_> = found.collect();
        let moves = self
            .best_fit(&found)
            .unwrap_or_else(|| found.iter().map(|(share, _, worker)| (*share, *worker)).collect());
        self.below = Some(self.chosen_load);
        self.found = Some(FoundMoves { load: self.chosen_load, moves });
    }

    /// Each share goes to the least room that is enough.
    fn best_fit(&self, chosen: &[(usize, Load, u32)]) -> Option<Vec<(usize, u32)>> {
        let mut moves: Vec<(usize, u32)> = Vec::with_capacity(chosen.len());
        let mut left: BTreeMap<u32, Load> = BTreeMap::new();
        for (share, load, _) in chosen {
            let is_new = |to: &u32| *to != self.source.worker && !left.contains_key(to);
            let fresh = self.free.with_room_for(*load).find(is_new);
            let fresh = fresh.map(|worker| (self.free.room(worker), worker));
            let used = left.iter().map(|(worker, room)| (*room, *worker));
            let (room, worker) = used.filter(|(room, _)| room >= load).chain(fresh).min()?;
            left.insert(worker, room - *load);
            moves.push((*share, worker));
        }
        Some(moves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Spread;

    fn load(documents: u64) -> Load {
        Load::per_second(documents).expect("a load")
    }

    /// Workers of capacity 10 with these shares.
    fn moves(workers: &[&[u64]], documents: u64) -> Option<Vec<(usize, u32)>> {
        let used = workers.iter().map(|shares| load(shares.iter().sum())).collect();
        let shares = (0..).zip(workers).flat_map(|(worker, shares)| {
            let share = move |documents: &u64| MovableShare {
                worker,
                load: load(*documents),
                movable: true,
            };
            shares.iter().map(share)
        });
        let shares: Vec<MovableShare> = shares.collect();
        make_room(&FreeCapacity::new(load(10), Spread::Fewest, used), &shares, load(documents))
    }

    #[test]
    fn one_move_of_the_least_load_makes_room() {
        assert_eq!(moves(&[&[6], &[3, 4], &[8]], 5), Some(vec![(1, 0)]));
        assert_eq!(moves(&[&[6], &[4]], 5), Some(Vec::new()));
        assert_eq!(moves(&[&[6], &[6]], 5), None);
        assert_eq!(moves(&[&[6], &[6]], 11), None);
    }

    #[test]
    fn several_moves_go_to_different_workers() {
        assert_eq!(moves(&[&[8], &[2, 2, 2], &[8]], 8), Some(vec![(1, 0), (2, 2)]));
        assert_eq!(moves(&[&[3, 3], &[7], &[7]], 10), Some(vec![(0, 1), (1, 2)]));
    }

    #[test]
    fn a_share_that_may_not_move_stays() {
        let free = FreeCapacity::new(load(10), Spread::Fewest, vec![load(6), load(6)]);
        let share =
            |worker, documents, movable| MovableShare { worker, load: load(documents), movable };
        let shares = |movable| [share(0, 4, movable), share(0, 2, true), share(1, 6, false)];
        assert_eq!(make_room(&free, &shares(false), load(6)), Some(vec![(1, 1)]));
        assert_eq!(make_room(&free, &shares(false), load(7)), None);
        assert_eq!(make_room(&free, &shares(true), load(7)), Some(vec![(0, 1)]));
    }
}
