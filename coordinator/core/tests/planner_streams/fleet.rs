//! Fleets for the planner's tests: owned inputs, and the effect of plans on them.

use leasehold_coordinator_core::desired::Policy;
use leasehold_coordinator_core::planner::streams::{
    Placement, Planning, SetInput, StreamInput, StreamSpec, WorkerIndex, plan,
};
use proptest::prelude::*;

/// The placements of all sets.
pub(crate) type Plan = Vec<Vec<Placement>>;

/// A planner's input.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) workers: usize,
    /// Those that get nothing new while others have room, ascending.
    pub(crate) avoided: Vec<WorkerIndex>,
    pub(crate) sets: Vec<Set>,
    pub(crate) per_worker_max: usize,
}

/// One set of it.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) policy: Policy,
    pub(crate) streams: Vec<StreamSpec>,
    pub(crate) moves_max: usize,
}

impl Fleet {
    pub(crate) fn plan(&self) -> Plan {
        self.plan_with(plan)
    }

    /// The plan, made in steps of this many streams each.
    pub(crate) fn plan_in_steps(&self, most: usize) -> Plan {
        self.plan_with(|input| {
            let mut planning = Planning::new(input);
            while !planning.is_done() {
                planning.step(input, most);
            }
            planning.take_placements()
        })
    }

    fn plan_with(&self, plan: impl Fn(&StreamInput<'_>) -> Plan) -> Plan {
        let names: Vec<String> = (0..self.workers).map(|at| format!("w{at:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let sets: Vec<_> = self.sets.iter().map(Set::input).collect();
        let (avoided, per_worker_max) = (&*self.avoided, self.per_worker_max);
        plan(&StreamInput { workers: &names, avoided, sets: &sets, per_worker_max })
    }

    /// The fleet after the plan was carried out.
    pub(crate) fn after(&self, plan: &Plan) -> Self {
        let mut after = self.clone();
        for (set, placements) in after.sets.iter_mut().zip(plan) {
            for (stream, placement) in set.streams.iter_mut().zip(placements) {
                stream.present = on(*placement);
            }
        }
        after
    }

    /// The fleet without a limit on moves.
    pub(crate) fn unlimited(&self) -> Self {
        let mut fleet = self.clone();
        fleet.sets.iter_mut().for_each(|set| set.moves_max = usize::MAX);
        fleet
    }

    /// Per worker, whether a dedicated stream has it.
    pub(crate) fn reserved(&self, plan: &Plan) -> Vec<bool> {
        let mut reserved = vec![false; self.workers];
        for (stream, placement) in self.placed(plan) {
            if let (true, Some(worker)) = (stream.dedicated, on(placement)) {
                reserved[worker as usize] = true;
            }
        }
        reserved
    }

    /// All streams with their placements.
    pub(crate) fn placed(&self, plan: &Plan) -> Vec<(StreamSpec, Placement)> {
        let sets = self.sets.iter().zip(plan);
        sets.flat_map(|(set, placements)| set.placed(placements)).collect()
    }
}

impl Set {
    fn input(&self) -> SetInput<'_> {
        let Self { policy, streams, moves_max } = self;
        SetInput { policy: *policy, streams, moves_max: *moves_max }
    }

    /// The streams with their placements.
    pub(crate) fn placed(&self, placements: &[Placement]) -> Vec<(StreamSpec, Placement)> {
        assert_eq!(self.streams.len(), placements.len(), "one placement for each stream");
        self.streams.iter().copied().zip(placements.iter().copied()).collect()
    }

    /// How many streams go from one living worker to another.
    pub(crate) fn moves(&self, placements: &[Placement]) -> usize {
        let moves = |(stream, placement): &(StreamSpec, Placement)| {
            stream.present.is_some() && on(*placement).is_some_and(|w| Some(w) != stream.present)
        };
        self.placed(placements).iter().filter(|pair| moves(pair)).count()
    }

    /// Load per worker of the streams that are not dedicated.
    pub(crate) fn loads(&self, workers: usize, placements: &[Placement]) -> Vec<u64> {
        let mut loads = vec![0; workers];
        for (stream, placement) in self.placed(placements) {
            if let (false, Some(worker)) = (stream.dedicated, on(placement)) {
                loads[worker as usize] += u64::from(stream.weight);
            }
        }
        loads
    }

    /// The heaviest and the lightest weight of the streams that are not dedicated.
    pub(crate) fn weights(&self) -> Option<(u64, u64)> {
        let shared = self.streams.iter().filter(|stream| !stream.dedicated);
        let weights = shared.map(|stream| u64::from(stream.weight));
        weights.clone().max().zip(weights.min())
    }
}

/// The worker, if there is one.
pub(crate) fn on(placement: Placement) -> Option<WorkerIndex> {
    match placement {
        Placement::On(worker) => Some(worker),
        Placement::Unplaced(_) => None,
    }
}

/// The bounds of generated fleets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) workers: usize,
    pub(crate) sets: usize,
    pub(crate) streams: usize,
    pub(crate) weight: u32,
    pub(crate) dedicated: bool,
    pub(crate) frozen: bool,
    pub(crate) full: bool,
    pub(crate) contiguous: bool,
    pub(crate) avoided: bool,
}

impl Bounds {
    /// One sticky set of streams of one weight, without limits.
    pub(crate) const PLAIN: Self = Self {
        workers: 8,
        sets: 1,
        streams: 40,
        weight: 1,
        dedicated: false,
        frozen: false,
        full: false,
        contiguous: false,
        avoided: false,
    };

    /// Everything.
    pub(crate) const ALL: Self = Self {
        workers: 8,
        sets: 4,
        streams: 24,
        weight: 9,
        dedicated: true,
        frozen: true,
        full: true,
        contiguous: true,
        avoided: true,
    };

    /// Fleets within these bounds. Some have streams bunched on a few workers.
    pub(crate) fn fleets(self) -> impl Strategy<Value = Fleet> {
        let sizes = (1..=self.workers, 1..=self.sets, 1..=self.weight, 0..12_usize);
        sizes.prop_flat_map(move |(workers, sets, weight, room)| {
            let set = self.set(workers, weight);
            let per_worker_max = if self.full && room < 8 { room } else { usize::MAX };
            let sets = prop::collection::vec(set, sets);
            let avoided = prop::bool::weighted(if self.avoided { 0.2 } else { 0.0 });
            let avoided = prop::collection::vec(avoided, workers);
            (sets, avoided).prop_map(move |(sets, avoided)| {
                let avoided = (0..).zip(avoided).filter(|(_, is_avoided)| *is_avoided);
                let avoided = avoided.map(|(worker, _)| worker).collect();
                Fleet { workers, avoided, sets, per_worker_max }
            })
        })
    }

    fn set(self, workers: usize, weight: u32) -> impl Strategy<Value = Set> {
        let workers = workers as WorkerIndex;
        (1..=workers, any::<bool>()).prop_flat_map(move |(bunch, contiguous)| {
            let present = prop::option::weighted(0.8, 0..bunch);
            let rare = |can: bool| prop::bool::weighted(if can { 0.1 } else { 0.0 });
            let stream = (1..=weight, rare(self.dedicated), present, rare(self.frozen));
            let streams = prop::collection::vec(stream, 0..=self.streams);
            let policy =
                if self.contiguous && contiguous { Policy::Contiguous } else { Policy::Sticky };
            streams.prop_map(move |streams| Set {
                policy,
                moves_max: usize::MAX,
                streams: streams
                    .into_iter()
                    .map(|(weight, dedicated, present, frozen)| StreamSpec {
                        weight,
                        dedicated,
                        present,
                        frozen,
                    })
                    .collect(),
            })
        })
    }
}
