//! Compares the moves that make room for a load with an exhaustive search.

use std::collections::BTreeSet;

use leasehold_coordinator_core::desired::Spread;
use leasehold_coordinator_core::planner::pipelines::{FreeCapacity, MovableShare, make_room};
use leasehold_types::Load;

use crate::milli;

struct Class {
    free: FreeCapacity,
    tenants: Vec<MovableShare>,
    load: Load,
}

impl Class {
    fn random(random: &mut fastrand::Rng, workers: u32, tenants_max: usize) -> Self {
        let capacity = random.u64(4..=20);
        let most = random.u64(1..=capacity).min(random.u64(1..=capacity));
        let mut tenants = Vec::new();
        let mut used = Vec::new();
        for worker in 0..workers {
            let mut sum = 0;
            let mut left = random.usize(0..=tenants_max);
            for _ in 0..3 * tenants_max {
                let load = random.u64(0..=most);
                if left > 0 && sum + load <= capacity {
                    left -= 1;
                    sum += load;
                    let movable = random.u8(0..5) > 0;
                    tenants.push(MovableShare { worker, load: milli(load), movable });
                }
            }
            used.push(milli(sum));
        }
        // A lowered capacity leaves workers above it.
        let capacity = capacity - u64::from(random.u8(0..8) == 0);
        let load = milli(random.u64(capacity.div_ceil(2)..=capacity));
        Self { free: FreeCapacity::new(milli(capacity), Spread::Fewest, used), tenants, load }
    }

    /// Checks found moves: they come from one worker, each to another that has room.
    fn check(&self, moves: &[(usize, u32)]) -> (usize, Load) {
        let mut free = self.free.clone();
        let from: BTreeSet<u32> = moves.iter().map(|(at, _)| self.tenants[*at].worker).collect();
        assert!(from.len() <= 1, "{moves:?}: of one worker");
        let at: BTreeSet<usize> = moves.iter().map(|(at, _)| *at).collect();
        assert_eq!(at.len(), moves.len(), "{moves:?}: each once");
        for (at, to) in moves {
            let tenant = self.tenants[*at];
            assert!(tenant.movable && *to != tenant.worker, "{moves:?}");
            assert!(free.room(*to) >= tenant.load, "{moves:?}: only to where there is room");
            free.give(tenant.worker, tenant.load);
            free.take(*to, tenant.load);
        }
        let workers = 0..free.len() as u32;
        let mut fits = workers.filter(|worker| free.used(*worker) + self.load <= self.capacity());
        match from.first() {
            Some(from) => assert!(fits.any(|worker| worker == *from), "{moves:?}: there is room"),
            None => assert!(fits.next().is_some(), "there is room"),
        }
        (moves.len(), moves.iter().map(|(at, _)| self.tenants[*at].load).sum())
    }

    fn capacity(&self) -> Load {
        self.free.capacity()
    }

    /// The fewest moves and of these the least load, by trying every share of every worker on every
    /// other.
    fn tried(&self) -> Option<(usize, Load)> {
        let workers = 0..self.free.len() as u32;
        workers.filter_map(|worker| self.tried_on(worker, 0, &self.free.clone())).min()
    }

    fn tried_on(&self, worker: u32, from: usize, free: &FreeCapacity) -> Option<(usize, Load)> {
        if free.used(worker) + self.load <= self.capacity() {
            return Some((0, Load::ZERO));
        }
        let mut best: Option<(usize, Load)> = None;
        for at in from..self.tenants.len() {
            let tenant = self.tenants[at];
            if tenant.worker != worker || !tenant.movable {
                continue;
            }
            let others = (0..free.len() as u32).filter(|to| *to != worker);
            for to in others.filter(|to| free.used(*to) + tenant.load <= self.capacity()) {
                let mut free = free.clone();
                free.give(worker, tenant.load);
                free.take(to, tenant.load);
                let rest = self.tried_on(worker, at + 1, &free);
                let all = rest.map(|(moves, load)| (moves + 1, load + tenant.load));
                best = [best, all].into_iter().flatten().min();
            }
        }
        best
    }
}

#[test]
fn room_is_made_wherever_there_is_a_way_and_with_the_fewest_moves() {
    let mut made = [0; 4];
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let workers = random.u32(0..=5);
        let class = Class::random(&mut random, workers, 5);
        let found = make_room(&class.free, &class.tenants, class.load);
        let found = found.map(|moves| class.check(&moves));
        assert_eq!(found, class.tried(), "seed {seed}");
        made[found.map_or(3, |(moves, _)| moves.min(2))] += 1;
    }
    assert!(made.iter().all(|cases| *cases > 100), "all kinds of cases came up: {made:?}");
}

#[test]
fn moves_in_large_classes_leave_no_worker_above_capacity() {
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let class = Class::random(&mut random, 200, 30);
        if let Some(moves) = make_room(&class.free, &class.tenants, class.load) {
            class.check(&moves);
        }
    }
}
