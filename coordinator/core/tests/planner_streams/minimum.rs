//! How many streams move, compared with the fewest that any balanced plan moves.
//!
//! An exhaustive search, independent of the planner's algorithm, finds the fewest; for large fleets
//! they are bounded from below.

use leasehold_coordinator_core::planner::streams::StreamSpec;
use proptest::prelude::*;

use crate::fleet::{Bounds, Fleet};

/// Calls `visit` with every way to split `left` over the places that are not yet in `quotas`.
fn splits(places: usize, left: usize, quotas: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
    if places == 1 {
        quotas.push(left);
        visit(quotas);
        quotas.pop();
        return;
    }
    for quota in 0..=left {
        quotas.push(quota);
        splits(places - 1, left - quota, quotas, visit);
        quotas.pop();
    }
}

/// The fewest moves to the most even numbers of streams that the frozen ones allow, by trying all
/// numbers.
fn moves_min_equal(fleet: &Fleet) -> usize {
    let streams = &fleet.sets[0].streams;
    let count = |counted: fn(&StreamSpec) -> bool| {
        let mut counts = vec![0; fleet.workers];
        for stream in streams.iter().filter(|stream| counted(stream)) {
            stream.present.into_iter().for_each(|worker| counts[worker as usize] += 1);
        }
        counts
    };
    let (present, frozen) = (count(|_| true), count(|stream| stream.frozen));
    let mut best = (usize::MAX, usize::MAX);
    splits(fleet.workers, streams.len(), &mut Vec::new(), &mut |quotas| {
        if quotas.iter().zip(&frozen).any(|(quota, frozen)| quota < frozen) {
            return;
        }
        let uneven = quotas.iter().map(|quota| quota * quota).sum();
        let pairs = present.iter().zip(quotas);
        best = best.min((uneven, pairs.map(|(has, quota)| has.saturating_sub(*quota)).sum()));
    });
    best.1
}

/// The fewest moves to loads within the heaviest weight of each other, by trying all placements.
fn moves_min_weighted(fleet: &Fleet) -> usize {
    let streams = &fleet.sets[0].streams;
    let heaviest = streams.iter().map(|stream| stream.weight).max().unwrap_or(0);
    let mut best = usize::MAX;
    for mut code in 0..fleet.workers.pow(streams.len() as u32) {
        let mut loads = vec![0; fleet.workers];
        let mut moves = 0;
        for stream in streams {
            let worker = code % fleet.workers;
            code /= fleet.workers;
            loads[worker] += stream.weight;
            moves += usize::from(stream.present.is_some_and(|has| has as usize != worker));
        }
        let level =
            loads.iter().max().zip(loads.iter().min()).is_none_or(|(a, b)| a - b <= heaviest);
        if level {
            best = best.min(moves);
        }
    }
    best
}

/// A lower bound of the moves of any plan that ends within the heaviest weight: for each range that
/// the loads could end in, the streams that must leave workers above it and reach workers below it.
fn moves_bound(fleet: &Fleet) -> usize {
    let set = &fleet.sets[0];
    let Some((heaviest, _)) = set.weights() else { return 0 };
    let mut owned = vec![Vec::new(); fleet.workers];
    let mut fresh = 0;
    for stream in &set.streams {
        match stream.present {
            Some(worker) => owned[worker as usize].push(u64::from(stream.weight)),
            None => fresh += 1,
        }
    }
    owned.iter_mut().for_each(|weights| weights.sort_unstable_by(|a, b| b.cmp(a)));
    let all: u64 = set.streams.iter().map(|stream| u64::from(stream.weight)).sum();
    let at = |low: u64| {
        let (mut out, mut into) = (0, 0);
        for weights in &owned {
            let mut load: u64 = weights.iter().sum();
            into += low.saturating_sub(load).div_ceil(heaviest) as usize;
            for weight in weights {
                if load > low + heaviest {
                    load -= weight;
                    out += 1;
                }
            }
        }
        out.max(into.saturating_sub(fresh))
    };
    (0..=all / fleet.workers as u64).map(at).min().unwrap_or(0)
}

/// The bound that the module states.
fn stated_bound(fleet: &Fleet, minimum: usize) -> usize {
    let set = &fleet.sets[0];
    let fresh = set.streams.iter().filter(|stream| stream.present.is_none()).count();
    let ratio = set.weights().map_or(1, |(heaviest, lightest)| heaviest.div_ceil(lightest));
    let ratio = ratio as usize;
    ratio * minimum + (ratio - 1) * fresh
}

fn moves(fleet: &Fleet) -> usize {
    fleet.sets[0].moves(&fleet.plan()[0])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn equal_weights_move_exactly_the_minimum(
        fleet in (Bounds { workers: 5, streams: 11, frozen: true, ..Bounds::PLAIN }).fleets(),
        weight in 1..4_u32,
    ) {
        let mut fleet = fleet;
        fleet.sets[0].streams.iter_mut().for_each(|stream| stream.weight = weight);
        prop_assert_eq!(moves(&fleet), moves_min_equal(&fleet));
    }

    #[test]
    fn equal_weights_move_exactly_the_minimum_in_large_fleets(
        fleet in (Bounds { workers: 40, streams: 300, ..Bounds::PLAIN }).fleets()
    ) {
        prop_assert_eq!(moves(&fleet), moves_bound(&fleet));
    }

    #[test]
    fn weights_move_within_the_stated_bound(
        fleet in (Bounds { workers: 3, streams: 7, weight: 7, ..Bounds::PLAIN }).fleets()
    ) {
        let minimum = moves_min_weighted(&fleet);
        prop_assert!(moves_bound(&fleet) <= minimum);
        let moves = moves(&fleet);
        prop_assert!(moves >= minimum, "{moves} < {minimum}: the loads are not level");
        prop_assert!(moves <= stated_bound(&fleet, minimum), "{moves}, minimum {minimum}");
    }

    #[test]
    fn weights_move_within_the_stated_bound_in_large_fleets(
        fleet in (Bounds { workers: 30, streams: 300, weight: 20, ..Bounds::PLAIN }).fleets()
    ) {
        let (moves, bound) = (moves(&fleet), moves_bound(&fleet));
        prop_assert!(moves <= stated_bound(&fleet, bound), "{moves}, at least {bound}");
    }
}
