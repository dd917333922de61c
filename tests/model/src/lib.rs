//! An exhaustive model: the two real cores in worlds so small that every state of them is
//! explored. Two replicas of the coordinator, two agents with a journal and a worker each, a term
//! store and a register, links that lose, double and reorder, processes that stop and die, and
//! clocks at the bounds of their drift.
//!
//! `docs/MODEL.md` says what is explored, how far, and what is not.

mod action;
mod cases;
mod choices;
mod clock;
mod description;
mod explore;
mod fault;
mod intern;
mod journal;
mod pod;
mod properties;
mod replica;
mod requests;
mod scope;
mod state;
mod step;
mod violation;
mod world;

pub use cases::{CASES, Case};
pub use explore::{Found, Limits, Outcome, Progress, explore, find_violation};
pub use fault::Fault;
pub use scope::Scope;
pub use violation::Violation;
