//! Plans under a limit on moves, carried out round after round.

use leasehold_coordinator_core::planner::streams::{Placement, Unplaced};
use proptest::prelude::*;

use crate::fleet::{Bounds, Fleet, Plan, on};

/// Plans and carries out until nothing changes; returns the plans. Streams that have just moved
/// are frozen in the next round if `cooldown`.
fn rounds(fleet: &Fleet, cooldown: bool) -> Vec<Plan> {
    let mut fleet = fleet.clone();
    let mut plans = Vec::new();
    loop {
        let plan = fleet.plan();
        let mut after = fleet.after(&plan);
        for (set, before) in after.sets.iter_mut().zip(&fleet.sets) {
            for (stream, before) in set.streams.iter_mut().zip(&before.streams) {
                stream.frozen = cooldown && stream.present != before.present;
            }
        }
        let done = plans.last() == Some(&plan);
        plans.push(plan);
        if done {
            return plans;
        }
        assert!(plans.len() < 200, "the rounds do not end");
        fleet = after;
    }
}

/// How often each stream of a set moves from one living worker to another.
fn moves_each(fleet: &Fleet, plans: &[Plan], set: usize) -> Vec<usize> {
    let mut now: Vec<_> = fleet.sets[set].streams.iter().map(|stream| stream.present).collect();
    let mut moves = vec![0; now.len()];
    for plan in plans {
        for (at, placement) in plan[set].iter().enumerate() {
            let next = on(*placement);
            moves[at] += usize::from(now[at].is_some() && next.is_some() && now[at] != next);
            now[at] = next;
        }
    }
    moves
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn no_more_streams_move_than_may(
        fleet in (Bounds { dedicated: false, full: false, ..Bounds::ALL }).fleets(),
        moves_max in 0..6_usize,
    ) {
        let mut fleet = fleet;
        fleet.sets.iter_mut().for_each(|set| set.moves_max = moves_max);
        let plan = fleet.plan();
        for (set, placements) in fleet.sets.iter().zip(&plan) {
            prop_assert!(set.moves(placements) <= moves_max);
            prop_assert!(placements.iter().all(|placement| on(*placement).is_some()));
        }
    }

    #[test]
    fn rounds_lead_to_the_unlimited_plan_and_no_stream_moves_twice(
        fleet in (Bounds {
            dedicated: false, frozen: false, full: false, ..Bounds::ALL
        }).fleets(),
        moves_max in 1..6_usize,
        cooldown: bool,
    ) {
        let mut fleet = fleet;
        fleet.sets.iter_mut().for_each(|set| set.moves_max = moves_max);
        let plans = rounds(&fleet, cooldown);
        let last = plans.last().expect("there is a round");
        prop_assert_eq!(&fleet.after(last).unlimited().plan(), last, "it is a fixed point");
        let unlimited = fleet.unlimited().plan();
        for (at, set) in fleet.sets.iter().enumerate() {
            let moves = moves_each(&fleet, &plans, at);
            prop_assert!(moves.iter().all(|moves| *moves <= 1), "{moves:?}");
            if fleet.sets.len() == 1 {
                prop_assert_eq!(moves.iter().sum::<usize>(), set.moves(&unlimited[at]));
                prop_assert_eq!(last, &unlimited);
            }
        }
    }

    /// The limit does not keep streams that must leave their worker, and then nothing else moves.
    #[test]
    fn hard_rules_come_before_the_limit(fleet in Bounds::ALL.fleets(), moves_max in 0..6_usize) {
        let mut fleet = fleet;
        fleet.sets.iter_mut().for_each(|set| set.moves_max = moves_max);
        let plan = fleet.plan();
        let reserved = fleet.reserved(&plan);
        let mut counts = vec![0; fleet.workers];
        for worker in plan.iter().flatten().filter_map(|placement| on(*placement)) {
            counts[worker as usize] += 1;
        }
        for (worker, count) in counts.iter().enumerate() {
            prop_assert!(*count <= fleet.per_worker_max);
            prop_assert!(!reserved[worker] || *count == 1);
        }
        let full = |(count, taken): (&usize, &bool)| *taken || *count == fleet.per_worker_max;
        let all_full = counts.iter().zip(&reserved).all(full);
        let no_room = Placement::Unplaced(Unplaced::WorkersFull);
        prop_assert!(all_full || !plan.iter().flatten().any(|placement| *placement == no_room));
        for (set, placements) in fleet.sets.iter().zip(&plan) {
            let evicted = set.placed(placements).iter().filter(|(stream, _)| {
                stream.dedicated || stream.present.is_some_and(|worker| reserved[worker as usize])
            }).count();
            let limit = moves_max.max(evicted);
            let free = fleet.per_worker_max == usize::MAX;
            prop_assert!(!free || set.moves(placements) <= limit);
        }
    }
}
