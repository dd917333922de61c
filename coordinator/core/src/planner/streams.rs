//! Which worker owns which stream, over all the sets of one cluster.
//!
//! Invariant: every stream is placed, or is reported with the rule that forbids it; a worker
//! with a dedicated stream has no other.
//!
//! Dedicated streams are given their workers first (`dedicated`). The sets then follow in order,
//! each over the workers that are left and with the room that the earlier ones left (`sticky`,
//! `contiguous`). A set's plan depends on the sets before it and on no later one, which makes the
//! whole a fixed point as soon as each set is one.
//!
//! Two rules are harder than a set's `moves_max`: that a dedicated stream is alone, and the most
//! streams per worker. What they drive from its worker moves whatever the limit, and uses it up
//! first; only what is left of it is spent on balance or order.

mod contiguous;
mod dedicated;
mod order;
mod room;
mod sticky;

use self::contiguous::Slices;
use self::room::Room;
use crate::desired::Policy;

/// Index of a worker in [`StreamInput::workers`].
pub type WorkerIndex = u32;

/// What the planner knows of a cluster's streams.
#[derive(Clone, Debug)]
pub struct StreamInput<'a> {
    /// The names of the workers that can own streams, sorted, each once.
    pub workers: &'a [&'a str],
    /// The sets, sorted by name.
    pub sets: &'a [SetInput<'a>],
    /// The most streams that one worker may own, over all sets.
    pub per_worker_max: usize,
}

/// One set's streams.
#[derive(Clone, Debug)]
pub struct SetInput<'a> {
    /// How its streams are laid over the workers.
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
    /// The worker that has it now; none where that is not among the input's workers.
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
    /// There is no worker that could own a stream.
    NoWorker,
    /// The stream wants a worker of its own, and none is left.
    NoWorkerOfItsOwn,
    /// Every worker that takes streams owns as many as one may.
    WorkersFull,
}

/// The placements of each set's streams, in the order of the input.
#[must_use]
pub fn plan(input: &StreamInput<'_>) -> Vec<Vec<Placement>> {
    if input.workers.is_empty() {
        return nowhere(input, Unplaced::NoWorker);
    }
    let mut placements = nowhere(input, Unplaced::WorkersFull);
    if input.per_worker_max == 0 {
        return placements;
    }
    let reservation = dedicated::reserve(input, &mut placements);
    let mut room = Room::new(input.per_worker_max, reservation.reserved);
    let mut slices = Slices::new(input, &room);
    for (at, set) in input.sets.iter().enumerate() {
        let placements = &mut placements[at];
        let moved = reservation.moved[at];
        match set.policy {
            Policy::Sticky => sticky::place(set, moved, &mut room, placements),
            Policy::Contiguous => slices.place(set, moved, &mut room, placements),
        }
        room.settle();
    }
    placements
}

fn nowhere(input: &StreamInput<'_>, why: Unplaced) -> Vec<Vec<Placement>> {
    let all = |set: &SetInput<'_>| vec![Placement::Unplaced(why); set.streams.len()];
    input.sets.iter().map(all).collect()
}
