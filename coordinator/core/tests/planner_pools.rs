//! Properties of the pool sizes, and the figures of the former operator.

use leasehold_coordinator_core::planner::pools::{
    KeptShares, PoolFacts, PoolInput, PoolWorker, plan,
};
use leasehold_types::WorkerName;
use proptest::prelude::*;

/// A worker that is to have what it has.
fn worker(name: &str, generation: u64, present: u32) -> PoolWorker {
    let name = WorkerName::new(name).expect("a valid name");
    PoolWorker { name, facts: PoolFacts { avoided: false, generation, present, wanted: present } }
}

/// Shares of `budget` over workers `a`, `b`, ... with these generations and sizes.
#[track_caller]
fn check(budget: u32, per_worker_max: u32, workers: &[(u64, u32)], expected: &[u32]) {
    let workers: Vec<_> = ('a'..='z')
        .zip(workers)
        .map(|(name, &(generation, present))| worker(&name.to_string(), generation, present))
        .collect();
    let input = PoolInput { budget, unreported: 0, per_worker_max, workers: &workers };
    assert_eq!(plan(&input), expected);
}

#[test]
fn budget_is_shared_equally_within_one() {
    let three = [(0, 0); 3];
    check(8, 3, &three, &[3, 3, 2]);
    check(5, 3, &three, &[2, 2, 1]);
    check(0, 3, &three, &[0, 0, 0]);
    check(1620, 50, &[(0, 0); 33][..24], &[50; 24]);
    check(700, 50, &[(0, 0); 14], &[50; 14]);
}

#[test]
fn a_share_never_exceeds_the_most_per_worker() {
    check(100, 3, &[(0, 0); 3], &[3, 3, 3]);
    check(u32::MAX, u32::MAX, &[(0, 0); 2], &[u32::MAX / 2 + 1, u32::MAX / 2]);
    check(7, 0, &[(0, 0); 2], &[0, 0]);
    check(7, 3, &[], &[]);
}

#[test]
fn a_worker_beyond_the_replica_count_gets_its_share() {
    check(8, 3, &[(0, 0); 4], &[2, 2, 2, 2]);
}

#[test]
fn the_newest_generation_is_served_first() {
    check(8, 3, &[(1, 3), (1, 3), (2, 0), (1, 2)], &[2, 2, 3, 1]);
    check(8, 3, &[(1, 0), (2, 0), (2, 0), (2, 0)], &[0, 3, 3, 2]);
    check(4, 3, &[(1, 3), (3, 0), (2, 0)], &[0, 3, 1]);
}

#[test]
fn who_has_more_keeps_the_odd_slot() {
    check(8, 3, &[(0, 2), (0, 3), (0, 3)], &[2, 3, 3]);
    check(4, 3, &[(0, 0), (0, 0), (0, 1)], &[1, 1, 2]);
}

#[test]
fn unreported_slots_are_taken_from_growth_only() {
    let check = |unreported, per_worker_max, budget, expected: &[u32]| {
        let workers = [worker("a", 0, 5), worker("b", 0, 2)];
        let input = PoolInput { budget, unreported, per_worker_max, workers: &workers };
        assert_eq!(plan(&input), expected, "{input:?}");
    };
    // They have seven slots. What is left is shared out as long as it is enough for these.
    check(0, 9, 12, &[6, 6]);
    check(4, 9, 12, &[4, 4]);
    check(5, 9, 12, &[4, 3]);
    check(6, 9, 12, &[5, 2]);
    check(12, 9, 12, &[5, 2]);
    // The limits of the manifest hold nevertheless.
    check(12, 3, 12, &[3, 2]);
    check(12, 9, 6, &[3, 3]);
}

/// A budget, slots that are not reported, the most per worker, and workers.
fn pools() -> impl Strategy<Value = (u32, u32, u32, Vec<PoolWorker>)> {
    let wanted = prop::option::weighted(0.3, 0..8_u32);
    let workers = prop::collection::btree_map("[a-z]{1,3}", (0..4_u64, 0..8_u32, wanted), 0..12);
    let unreported = prop_oneof![Just(0), 0..30_u32];
    (0..60_u32, unreported, 1..8_u32, workers).prop_map(|(budget, unreported, most, workers)| {
        let one = |(name, (generation, present, wanted)): (String, (_, _, Option<u32>))| {
            let mut worker = worker(&name, generation, present);
            worker.facts.wanted = wanted.unwrap_or(present);
            worker
        };
        (budget, unreported, most, workers.into_iter().map(one).collect())
    })
}

proptest! {
    #[test]
    fn shares_obey_the_rules((budget, _, per_worker_max, workers) in pools()) {
        let unreported = 0;
        let shares = plan(&PoolInput { budget, unreported, per_worker_max, workers: &workers });
        let all = per_worker_max * workers.len() as u32;
        prop_assert_eq!(shares.iter().sum::<u32>(), budget.min(all));
        prop_assert!(shares.iter().all(|share| *share <= per_worker_max));
        for (a, share_a) in workers.iter().zip(&shares) {
            for (b, share_b) in workers.iter().zip(&shares) {
                if a.facts.generation == b.facts.generation {
                    prop_assert!(share_a.abs_diff(*share_b) <= 1);
                    prop_assert!(a.facts.wanted <= b.facts.wanted || share_a >= share_b);
                }
                if a.facts.generation > b.facts.generation && *share_b > 0 {
                    prop_assert_eq!(*share_a, per_worker_max);
                }
            }
        }
    }

    #[test]
    fn shares_do_not_depend_on_the_order(
        ((budget, unreported, per_worker_max, workers), shuffled) in pools()
            .prop_flat_map(|pools| (Just(pools.clone()), Just(pools.3).prop_shuffle()))
    ) {
        let by_name = |workers: &[PoolWorker]| {
            let shares = plan(&PoolInput { budget, unreported, per_worker_max, workers });
            let names = workers.iter().map(|worker| worker.name.clone());
            names.zip(shares).collect::<std::collections::BTreeMap<_, _>>()
        };
        prop_assert_eq!(by_name(&workers), by_name(&shuffled));
    }

    #[test]
    fn shares_are_a_fixed_point(
        (budget, unreported, per_worker_max, mut workers) in pools()
    ) {
        let shares = plan(&PoolInput { budget, unreported, per_worker_max, workers: &workers });
        for (worker, share) in workers.iter_mut().zip(&shares) {
            (worker.facts.present, worker.facts.wanted) = (*share, *share);
        }
        let input = PoolInput { budget, unreported, per_worker_max, workers: &workers };
        prop_assert_eq!(plan(&input), shares);
    }

    #[test]
    fn shares_of_which_some_are_not_granted_yet_are_a_fixed_point(
        (budget, _, per_worker_max, mut workers) in pools(),
        granted in prop::collection::vec(any::<bool>(), 12)
    ) {
        let unreported = 0;
        let shares = plan(&PoolInput { budget, unreported, per_worker_max, workers: &workers });
        for ((worker, share), granted) in workers.iter_mut().zip(&shares).zip(granted) {
            worker.facts.wanted = *share;
            if granted {
                worker.facts.present = *share;
            }
        }
        let input = PoolInput { budget, unreported, per_worker_max, workers: &workers };
        prop_assert_eq!(plan(&input), shares);
    }
}

/// A worker's name, its generation and sizes where it can take jobs, and the budget, the slots that
/// are not reported and the most per worker where they are planned then.
type Step = (String, Option<(bool, u64, u32, u32)>, Option<(u32, u32, u32)>);

/// Steps in the life of a cluster: workers that come, change and go, and budgets that are planned.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let facts = prop::option::weighted(0.8, (any::<bool>(), 0..3_u64, 0..6_u32, 0..6_u32));
    let unreported = prop_oneof![Just(0), 0..30_u32];
    let budget = prop::option::weighted(0.5, (0..60_u32, unreported, 1..8_u32));
    prop::collection::vec(("[a-h]", facts, budget), 0..60)
}

proptest! {
    #[test]
    fn kept_shares_are_those_that_a_plan_gives(steps in steps()) {
        let mut kept = KeptShares::default();
        let mut facts_of = std::collections::BTreeMap::new();
        let mut shares = std::collections::BTreeMap::new();
        let mut set = std::collections::BTreeSet::new();
        for (name, facts, budget) in steps {
            let name = WorkerName::new(&name).expect("a valid name");
            let facts = facts.map(|(avoided, generation, present, wanted)| PoolFacts {
                avoided,
                generation,
                present,
                wanted,
            });
            kept.set(&name, facts);
            match facts {
                Some(facts) => {
                    set.insert(name.clone());
                    facts_of.insert(name, facts);
                }
                None => {
                    set.remove(&name);
                    facts_of.remove(&name);
                    shares.remove(&name);
                }
            }
            let Some((budget, unreported, per_worker_max)) = budget else { continue };
            let planned = kept.plan(budget, unreported, per_worker_max);
            for changed in planned.into_iter().chain(std::mem::take(&mut set)) {
                shares.insert(changed.clone(), kept.share(&changed).expect("a worker"));
            }
            let workers: Vec<_> = facts_of
                .iter()
                .map(|(name, facts)| PoolWorker { name: name.clone(), facts: *facts })
                .collect();
            let input = PoolInput { budget, unreported, per_worker_max, workers: &workers };
            let planned = plan(&input);
            for (worker, share) in workers.iter().zip(planned) {
                prop_assert_eq!(kept.share(&worker.name), Some(share));
                prop_assert_eq!(shares.get(&worker.name).copied().unwrap_or(0), share);
            }
            if budget % 2 == 0 {
                for (name, facts) in &mut facts_of {
                    kept.adopt(name);
                    facts.wanted = kept.share(name).expect("a worker");
                }
                prop_assert_eq!(kept.plan(budget, unreported, per_worker_max), vec![]);
            }
        }
    }
}
