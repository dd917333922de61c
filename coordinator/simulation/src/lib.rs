//! Cells in simulated time: the real cores of a coordinator and its agents, joined by messages and
//! a store that take a fixed time. Row 12 of `make bench` has its rollout from here.
//!
//! **Invariant**: what happens follows from the seed: no clock, no IO, no order of a hash map.

mod cell;
mod schedule;

pub use self::cell::{Cell, Happening, IdleTime, WorkerNumber};
pub use self::schedule::{Place, Schedule};
