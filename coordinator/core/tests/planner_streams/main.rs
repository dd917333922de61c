//! Properties of the plan for streams.

mod fleet;
mod minimum;
mod rounds;
mod rules;
mod steps;

use leasehold_coordinator_core::desired::Policy;
use leasehold_coordinator_core::planner::streams::{StreamSpec, WorkerIndex};

/// A stream that is not frozen.
fn stream(weight: u32, dedicated: bool, present: Option<WorkerIndex>) -> StreamSpec {
    StreamSpec { weight, dedicated, present, frozen: false }
}

/// A sticky set without a limit on moves.
fn set(streams: Vec<StreamSpec>) -> fleet::Set {
    fleet::Set { policy: Policy::Sticky, streams, moves_max: usize::MAX }
}
