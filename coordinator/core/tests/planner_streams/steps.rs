//! Plans that are made in steps.

use leasehold_coordinator_core::desired::Policy;
use proptest::prelude::*;

use crate::fleet::{Bounds, Fleet};
use crate::{set, stream};

/// A large fleet with work for every phase: streams of many weights, some of them bunched, some
/// without a worker, and more than the workers may own.
fn large(policy: Policy) -> Fleet {
    let mut rng = fastrand::Rng::with_seed(7);
    let streams = (0..20_000).map(|_| {
        let present = rng.bool().then(|| rng.u32(0..6));
        stream(rng.u32(1..1_000), rng.u32(0..10_000) == 0, present)
    });
    let mut set = set(streams.collect());
    set.policy = policy;
    set.moves_max = 3_000;
    Fleet { workers: 24, avoided: Vec::new(), sets: vec![set], per_worker_max: 1_000 }
}

#[test]
fn a_large_plan_is_the_same_in_steps() {
    for policy in [Policy::Sticky, Policy::Contiguous] {
        let fleet = large(policy);
        let plan = fleet.plan();
        for most in [100, 1_000, 7_777] {
            assert!(fleet.plan_in_steps(most) == plan, "{policy:?} in steps of {most}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn a_plan_is_the_same_in_steps(
        fleet in Bounds::ALL.fleets(),
        moves_max in prop::option::of(0..8_usize),
        most in 1..40_usize,
    ) {
        let mut fleet = fleet;
        for set in &mut fleet.sets {
            set.moves_max = moves_max.unwrap_or(usize::MAX);
        }
        prop_assert_eq!(fleet.plan_in_steps(most), fleet.plan());
    }
}
