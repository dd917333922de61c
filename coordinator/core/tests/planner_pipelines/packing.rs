//! How well a fresh batch is packed, compared with the optimum and the proven bounds.
//!
//! First fit decreasing uses at most 11/9 OPT + 6/9 bins (G. Dósa, R. Li, X. Han, Zs. Tuza, "Tight
//! absolute bound for First Fit Decreasing bin-packing", Theoretical Computer Science 510, 2013).
//! For best fit decreasing 11/9 OPT + 4 is proven (D. S. Johnson and others, "Worst-case
//! performance bounds for simple one-dimensional packing algorithms", SIAM J. Computing 3, 1974),
//! and 3/2 OPT (D. Simchi-Levi, "New worst-case results for the bin-packing problem", Naval
//! Research Logistics 41, 1994). The test holds best fit decreasing to the tighter of all, on cases
//! small enough to know OPT. A large case is held to the bound by its sum: of two workers in use,
//! one is more than half full, or the later one's load would have gone to the earlier.

use leasehold_coordinator_core::desired::Spread;
use leasehold_coordinator_core::planner::pipelines::{FreeCapacity, NodeRequest, needed, place};

use crate::milli;

/// Places the loads by descending size, as in a batch, on this many empty workers; returns the
/// workers in use, or none if a load finds no room.
fn used(capacity: u64, loads: &[u64], workers: usize) -> Option<usize> {
    let empty = vec![milli(0); workers];
    let mut free = [FreeCapacity::new(milli(capacity), Spread::Fewest, empty)];
    let mut loads = loads.to_vec();
    loads.sort_unstable_by(|a, b| b.cmp(a));
    let mut in_use = std::collections::BTreeSet::new();
    for load in loads {
        let placed = place(&mut free, &[NodeRequest { class: 0, load: milli(load), prefers: &[] }]);
        in_use.extend(placed.ok()?[0].iter().map(|part| part.worker));
    }
    Some(in_use.len())
}

/// The fewest workers by trying all sets: the fewest full ones, then the least in the last.
fn optimum(capacity: u64, loads: &[u64]) -> usize {
    let mut best = vec![(usize::MAX, 0); 1 << loads.len()];
    best[0] = (1, 0);
    for set in 1..best.len() {
        for (at, load) in loads.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1) {
            let (workers, last) = best[set ^ (1 << at)];
            let with =
                if last + load <= capacity { (workers, last + load) } else { (workers + 1, *load) };
            best[set] = best[set].min(with);
        }
    }
    best[best.len() - 1].0
}

/// A random batch: equal loads, loads around the fractions that are hard to pack, or any loads.
fn batch(random: &mut fastrand::Rng, capacity: u64, count: usize) -> Vec<u64> {
    let least = if random.bool() { 1 } else { capacity / 8 + 1 };
    let most = random.u64(least..=capacity);
    let load = |random: &mut fastrand::Rng| match random.u8(0..3) {
        0 => (capacity / random.u64(2..=5) + random.u64(0..3)).clamp(1, capacity),
        _ => random.u64(least..=most),
    };
    (0..count).map(|_| load(random)).collect()
}

#[test]
fn small_batches_are_packed_within_the_bound_of_the_optimum() {
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let capacity = random.u64(8..=120);
        let count = random.usize(1..=10);
        let loads = batch(&mut random, capacity, count);
        let used = used(capacity, &loads, count).expect("a worker each is enough");
        let optimum = optimum(capacity, &loads);
        assert!(used >= optimum, "seed {seed}: the optimum is one");
        assert!(used <= (11 * optimum + 6) / 9, "seed {seed}: {used} for {optimum}, {loads:?}");
        let needed = needed(milli(capacity), loads.iter().map(|load| milli(*load)));
        assert_eq!(needed as usize, used, "seed {seed}");
    }
}

#[test]
fn large_batches_are_packed_within_the_bound_of_their_sum() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let capacity = random.u64(8..=100_000);
        let count = random.usize(100..=1_000);
        let loads = batch(&mut random, capacity, count);
        let used = used(capacity, &loads, count).expect("a worker each is enough");
        let sum: u64 = loads.iter().sum();
        assert!(used as u64 <= 2 * sum.div_ceil(capacity), "seed {seed}: {used}");
        let needed = needed(milli(capacity), loads.iter().map(|load| milli(*load)));
        assert_eq!(needed as usize, used, "seed {seed}");
    }
}

/// Also if loads are cut: in a class that is scaled to the needed workers nothing waits.
#[test]
fn what_is_needed_is_enough_for_a_batch_and_one_less_is_not_where_none_is_cut() {
    for seed in 0..3_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let capacity = random.u64(3..=40);
        let count = random.usize(1..=40);
        let is_cut = random.bool();
        let most = if is_cut { 4 * capacity } else { capacity };
        let loads: Vec<u64> = (0..count).map(|_| random.u64(0..=most)).collect();
        let needed = needed(milli(capacity), loads.iter().map(|load| milli(*load))) as usize;
        assert!(used(capacity, &loads, needed).is_some(), "seed {seed}: {loads:?} on {needed}");
        assert!(is_cut || used(capacity, &loads, needed - 1).is_none(), "seed {seed}");
    }
}
