//! The rules that every plan obeys, whatever the fleet.

use leasehold_coordinator_core::desired::Policy;
use leasehold_coordinator_core::planner::streams::{Placement, Unplaced};
use proptest::prelude::*;

use crate::fleet::{Bounds, Fleet, Plan, on};

/// Streams per worker over the first `sets` sets.
fn counts(fleet: &Fleet, plan: &Plan, sets: usize) -> Vec<usize> {
    let mut counts = vec![0; fleet.workers];
    for worker in plan[..sets].iter().flatten().filter_map(|placement| on(*placement)) {
        counts[worker as usize] += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_worker_owns_no_more_than_the_most(fleet in Bounds::ALL.fleets()) {
        let plan = fleet.plan();
        let counts = counts(&fleet, &plan, fleet.sets.len());
        prop_assert!(counts.iter().all(|count| *count <= fleet.per_worker_max), "{counts:?}");
    }

    #[test]
    fn a_dedicated_stream_is_alone(fleet in Bounds::ALL.fleets()) {
        let plan = fleet.plan();
        let counts = counts(&fleet, &plan, fleet.sets.len());
        for (worker, reserved) in fleet.reserved(&plan).into_iter().enumerate() {
            prop_assert!(!reserved || counts[worker] == 1, "{worker} owns {}", counts[worker]);
        }
    }

    #[test]
    fn a_stream_is_unplaced_only_for_its_reason(fleet in Bounds::ALL.fleets()) {
        let plan = fleet.plan();
        let counts = counts(&fleet, &plan, fleet.sets.len());
        let reserved = fleet.reserved(&plan);
        let any_shared = fleet.sets.iter().flat_map(|set| &set.streams).any(|s| !s.dedicated);
        for (stream, placement) in fleet.placed(&plan) {
            match placement {
                Placement::On(worker) => prop_assert!((worker as usize) < fleet.workers),
                Placement::Unplaced(Unplaced::NoWorker) => prop_assert!(fleet.workers == 0),
                Placement::Unplaced(Unplaced::WorkersFull) => {
                    let mut open = counts.iter().zip(&reserved).filter(|(_, taken)| !**taken);
                    prop_assert!(open.all(|(count, _)| *count == fleet.per_worker_max));
                    prop_assert!(!stream.dedicated || fleet.per_worker_max == 0);
                }
                Placement::Unplaced(Unplaced::NoWorkerOfItsOwn) => {
                    let taken = reserved.iter().filter(|taken| **taken).count();
                    prop_assert!(stream.dedicated);
                    prop_assert_eq!(taken, fleet.workers - usize::from(any_shared));
                }
            }
        }
    }

    #[test]
    fn planning_again_changes_nothing(fleet in Bounds::ALL.fleets()) {
        let plan = fleet.plan();
        prop_assert_eq!(&fleet.plan(), &plan);
        prop_assert_eq!(fleet.after(&plan).plan(), plan);
    }

    #[test]
    fn sticky_loads_lie_within_the_heaviest(
        fleet in (Bounds { full: false, frozen: false, avoided: false, ..Bounds::ALL }).fleets()
    ) {
        let plan = fleet.plan();
        let reserved = fleet.reserved(&plan);
        for (set, placements) in fleet.sets.iter().zip(&plan) {
            let loads = set.loads(fleet.workers, placements);
            let open = || loads.iter().zip(&reserved).filter(|(_, taken)| !**taken);
            let ends = open().map(|(load, _)| *load).max().zip(open().map(|(load, _)| *load).min());
            let (Some((most, least)), Some((heaviest, _))) = (ends, set.weights()) else {
                continue;
            };
            if set.policy == Policy::Sticky {
                prop_assert!(most - least <= heaviest, "{loads:?}");
            }
        }
    }

    /// No worker with a stream to give is too far above one with room.
    #[test]
    fn sticky_loads_are_as_near_as_room_and_frozen_streams_allow(fleet in Bounds::ALL.fleets()) {
        let plan = fleet.plan();
        let reserved = fleet.reserved(&plan);
        for (at, set) in fleet.sets.iter().enumerate() {
            let Some((heaviest, _)) = set.weights().filter(|_| set.policy == Policy::Sticky) else {
                continue;
            };
            let loads = set.loads(fleet.workers, &plan[at]);
            let counts = counts(&fleet, &plan, at + 1);
            let has_room = |w: &usize| !reserved[*w] && counts[*w] < fleet.per_worker_max;
            // Nothing moves to a worker to avoid.
            let gets = |w: &usize| has_room(w) && !fleet.avoided.contains(&(*w as u32));
            let least = (0..fleet.workers).filter(gets).map(|w| loads[w]).min();
            for (stream, placement) in set.placed(&plan[at]) {
                let (Some(worker), Some(least)) = (on(placement), least) else { continue };
                if !stream.dedicated && !stream.frozen {
                    prop_assert!(loads[worker as usize] <= least + heaviest, "{loads:?}");
                }
            }
        }
    }

    #[test]
    fn a_worker_to_avoid_gets_nothing_new_while_others_have_room(fleet in Bounds::ALL.fleets()) {
        let plan = fleet.plan();
        let reserved = fleet.reserved(&plan);
        let is_avoided = |worker: usize| fleet.avoided.contains(&(worker as u32));
        for (at, set) in fleet.sets.iter().enumerate() {
            let counts = counts(&fleet, &plan, at + 1);
            let has_room = |w: usize| !reserved[w] && counts[w] < fleet.per_worker_max;
            let others_have_room = (0..fleet.workers).any(|w| !is_avoided(w) && has_room(w));
            if set.policy == Policy::Contiguous || !others_have_room {
                continue;
            }
            for (stream, placement) in set.placed(&plan[at]) {
                let new = on(placement).filter(|on| Some(*on) != stream.present);
                let new = new.filter(|_| !stream.dedicated);
                prop_assert!(new.is_none_or(|on| !is_avoided(on as usize)), "{stream:?}");
            }
        }
        // A dedicated stream takes a worker to avoid only where no other is left to take.
        let any_shared = fleet.sets.iter().flat_map(|set| &set.streams).any(|s| !s.dedicated);
        for (stream, placement) in fleet.placed(&plan).into_iter().filter(|(s, _)| s.dedicated) {
            let new = on(placement).filter(|on| Some(*on) != stream.present);
            if new.is_some_and(|on| is_avoided(on as usize)) {
                let left = (0..fleet.workers).filter(|w| !is_avoided(*w) && !reserved[*w]).count();
                prop_assert!(left <= usize::from(any_shared), "{stream:?}");
            }
        }
    }

    #[test]
    fn contiguous_slices_follow_the_list(
        fleet in (Bounds { full: false, frozen: false, ..Bounds::ALL }).fleets()
    ) {
        let plan = fleet.plan();
        let open = fleet.reserved(&plan).iter().filter(|taken| !**taken).count();
        for (set, placements) in fleet.sets.iter().zip(&plan) {
            if set.policy == Policy::Sticky {
                continue;
            }
            let shared = set.placed(placements).into_iter().filter(|(stream, _)| !stream.dedicated);
            let workers: Vec<_> = shared.filter_map(|(_, placement)| on(placement)).collect();
            prop_assert!(workers.is_sorted());
            let sizes: Vec<_> = workers.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
            let wanted = (0..open).map(|place| {
                workers.len() / open + usize::from(place < workers.len() % open)
            });
            prop_assert_eq!(sizes, wanted.filter(|size| *size > 0).collect::<Vec<_>>());
        }
    }

    /// After a failover that took longer than leases last, some streams no longer have an owner:
    /// they are placed again, and the slices of all others stay where they are.
    #[test]
    fn slices_stay_where_streams_have_lost_their_workers(
        fleet in (Bounds {
            full: false, frozen: false, avoided: false, workers: 20, ..Bounds::ALL
        }).fleets(),
        lost in prop::collection::vec(any::<bool>(), 20),
    ) {
        let mut fleet = fleet.after(&fleet.plan());
        let streams = fleet.sets.iter_mut().flat_map(|set| &mut set.streams);
        for stream in streams {
            stream.present = stream.present.filter(|worker| !lost[*worker as usize]);
        }
        let plan = fleet.plan();
        for (set, placements) in fleet.sets.iter().zip(&plan) {
            prop_assert!(set.policy == Policy::Sticky || set.moves(placements) == 0);
        }
    }

    #[test]
    fn a_frozen_stream_stays(fleet in (Bounds { full: false, ..Bounds::ALL }).fleets()) {
        let plan = fleet.plan();
        let reserved = fleet.reserved(&plan);
        for (stream, placement) in fleet.placed(&plan) {
            if let Some(worker) = stream.present.filter(|_| stream.frozen && !stream.dedicated) {
                prop_assert!(reserved[worker as usize] || placement == Placement::On(worker));
            }
        }
    }

    #[test]
    fn a_dedicated_stream_that_is_alone_stays(
        fleet in (Bounds { full: false, streams: 4, ..Bounds::ALL }).fleets()
    ) {
        let plan = fleet.plan();
        let all = fleet.placed(&plan);
        let any_shared = all.iter().any(|(stream, _)| !stream.dedicated);
        let alone = all.iter().filter(|(stream, _)| {
            let there = all.iter().filter(|(other, _)| other.present == stream.present);
            stream.dedicated && stream.present.is_some() && there.count() == 1
        });
        // There may be one stream more than workers for them; then the last stream gets none.
        for (stream, placement) in alone.take(fleet.workers - usize::from(any_shared)) {
            let goes = Placement::Unplaced(Unplaced::NoWorkerOfItsOwn);
            let crowded = fleet.reserved(&plan).iter().filter(|taken| **taken).count();
            let crowded = crowded == fleet.workers - usize::from(any_shared);
            prop_assert!(on(*placement) == stream.present || (crowded && *placement == goes));
        }
    }
}

#[test]
fn nothing_can_be_planned_without_workers() {
    let mut fleet = Fleet { workers: 0, avoided: Vec::new(), sets: Vec::new(), per_worker_max: 9 };
    assert_eq!(fleet.plan(), Plan::new());
    let stream = |dedicated| crate::stream(1, dedicated, None);
    fleet.sets.push(crate::set(vec![stream(false), stream(true)]));
    assert_eq!(fleet.plan(), [[Placement::Unplaced(Unplaced::NoWorker); 2]]);
}
