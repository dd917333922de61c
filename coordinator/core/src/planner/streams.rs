//! Which worker owns which stream, over all the sets of one cluster.
//!
//! Invariant: every stream is placed, or is reported with the rule that forbids it; a worker
//! with a dedicated stream has no other.
//!
//! Dedicated streams are given their workers first (`dedicated`). The sets then follow in order,
//! each over the workers that are left and with the room that the earlier ones left (`sticky`,
//! `contiguous`). A set's plan depends on the sets before it and on no later one. So the whole plan
//! is a fixed point if the plan of each set is one.
//!
//! Two rules override a set's `moves_max`: that a dedicated stream is alone, and the most streams
//! per worker. Streams that must leave their worker for these rules move beyond the limit if need
//! be, and use the limit up first; only the rest of it is spent on balance or order.

mod contiguous;
mod dedicated;
mod order;
mod slice_gaps;
mod step_budget;
mod sticky;
mod worker_loads;
mod worker_streams;

use self::contiguous::Slices;
use self::dedicated::DedicatedPlacement;
use self::step_budget::{SetContext, StepBudget};
use self::worker_loads::WorkerLoads;
use crate::desired::Policy;

/// Index of a worker in [`StreamInput::workers`].
pub type WorkerIndex = u32;

/// What the planner knows of a cluster's streams.
#[derive(Clone, Debug)]
pub struct StreamInput<'a> {
    /// The names of the workers that can own streams, sorted, each once.
    pub workers: &'a [&'a str],
    /// Those that get nothing new while others have room, ascending. Slices are cut without regard
    /// to them.
    pub avoided: &'a [WorkerIndex],
    /// The sets, sorted by name.
    pub sets: &'a [SetInput<'a>],
    /// The most streams that one worker may own, over all sets.
    pub per_worker_max: usize,
}

impl StreamInput<'_> {
    /// Whether a worker gets only what no other has room for.
    fn is_avoided(&self, worker: WorkerIndex) -> bool {
        self.avoided.binary_search(&worker).is_ok()
    }
}

/// One set's streams.
#[derive(Clone, Debug)]
pub struct SetInput<'a> {
    /// How its streams are distributed over the workers.
    pub policy: Policy,
    /// Its streams, in the order of the manifest.
    pub streams: &'a [StreamSpec],
    /// The most streams that may move between living workers in this plan.
    pub moves_max: usize,
}

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// Its share of a worker's load, at least 1 and at most `limits::WEIGHT_MAX`.
    pub weight: u32,
    /// It gets a worker of its own.
    pub dedicated: bool,
    /// The worker that has it now; none if that worker is not in the input.
    pub present: Option<WorkerIndex>,
    /// It stays where it is (it moved a short while ago) as long as its worker can own it.
    pub frozen: bool,
}

/// Where a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To this worker.
    On(WorkerIndex),
    /// Nowhere, and why.
    Unplaced(Unplaced),
}

/// The rule that keeps a stream from every worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unplaced {
    /// No worker can own streams.
    NoWorker,
    /// The stream wants a worker of its own, and none is left.
    NoWorkerOfItsOwn,
    /// Every worker that takes streams owns as many as one may.
    WorkersFull,
}

/// The placements of each set's streams, in the order of the input.
#[must_use]
pub fn plan(input: &StreamInput<'_>) -> Vec<Vec<Placement>> {
    let mut planning = Planning::new(input);
    while !planning.is_done() {
        planning.step(input, usize::MAX);
    }
    planning.take_placements()
}

/// A plan that is made step by step, each time from the same input. The length of the steps does
/// not change the plan.
#[derive(Clone, Debug)]
pub struct Planning {
    placements: Vec<Vec<Placement>>,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Dedicated streams are given their workers.
    Dedicated(Box<DedicatedPlacement>),
    /// The sets follow.
    Sets(Box<SetsStage>),
    Done,
}

/// The sets in order, as far as they are placed.
#[derive(Clone, Debug)]
struct SetsStage {
    /// Per set, how many of its dedicated streams move.
    moved: Vec<usize>,
    loads: WorkerLoads,
    slices: Slices,
    /// The present set.
    at: usize,
    placing: Option<Placing>,
}

#[derive(Clone, Debug)]
enum Placing {
    Sticky(Box<sticky::Placing>),
    Contiguous(Box<contiguous::Placing>),
}

impl Planning {
    /// A plan that has not been started.
    #[must_use]
    pub fn new(input: &StreamInput<'_>) -> Self {
        let (why, stage) = match input.workers.is_empty() {
            true => (Unplaced::NoWorker, Stage::Done),
            false if input.per_worker_max == 0 => (Unplaced::WorkersFull, Stage::Done),
            false => {
                (Unplaced::WorkersFull, Stage::Dedicated(Box::new(DedicatedPlacement::new(input))))
            }
        };
        let nowhere = |set: &SetInput<'_>| vec![Placement::Unplaced(why); set.streams.len()];
        Self { placements: input.sets.iter().map(nowhere).collect(), stage }
    }

    /// Makes a further step; returns how many streams and workers it read. That may exceed `most`
    /// by the number of workers, or of the streams of one worker.
    pub fn step(&mut self, input: &StreamInput<'_>, most: usize) -> usize {
        let mut budget = StepBudget::new(most);
        while budget.is_left() && !self.is_done() {
            self.go_on(input, &mut budget);
        }
        budget.spent()
    }

    /// Whether every stream is placed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// The placements of each set's streams, in the order of the input, once they are placed.
    #[must_use]
    pub fn take_placements(&mut self) -> Vec<Vec<Placement>> {
        std::mem::take(&mut self.placements)
    }

    fn go_on(&mut self, input: &StreamInput<'_>, budget: &mut StepBudget) {
        match &mut self.stage {
            Stage::Dedicated(dedicated) => {
                let Some(reservation) = dedicated.step(input, &mut self.placements, budget) else {
                    return;
                };
                let loads = WorkerLoads::new(input, reservation.reserved);
                let slices = Slices::new(input, &loads);
                budget.spend(input.workers.len());
                let moved = reservation.moved;
                let sets = SetsStage { moved, loads, slices, at: 0, placing: None };
                self.stage = Stage::Sets(Box::new(sets));
            }
            Stage::Sets(sets) => {
                let Some(set) = input.sets.get(sets.at) else {
                    self.stage = Stage::Done;
                    return;
                };
                sets.place(set, &mut self.placements[sets.at], budget);
            }
            Stage::Done => {}
        }
    }
}

impl SetsStage {
    /// Goes on with the present set.
    fn place(&mut self, set: &SetInput<'_>, placements: &mut [Placement], budget: &mut StepBudget) {
        let moved = self.moved[self.at];
        let placing = self.placing.get_or_insert_with(|| match set.policy {
            Policy::Sticky => Placing::Sticky(Box::new(sticky::Placing::new(moved))),
            Policy::Contiguous => {
                self.slices.pass_full(&self.loads);
                Placing::Contiguous(Box::new(contiguous::Placing::new(moved)))
            }
        });
        let mut context = SetContext { set, loads: &mut self.loads, placements, budget };
        let done = match placing {
            Placing::Sticky(placing) => placing.step(&mut context),
            Placing::Contiguous(placing) => placing.step(&self.slices, &mut context),
        };
        if done {
            budget.spend(1 + self.loads.touched().len());
            self.loads.settle();
            self.placing = None;
            self.at += 1;
        }
    }
}
