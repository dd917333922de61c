//! The simulator: the real cores and real messages in a simulated world, where one seed decides
//! everything, and an observer checks the protocol's properties after every step.
//!
//! From top to bottom: `runner` runs seeds, `world` makes things happen, `observer` checks what
//! happened, and `system` holds the state that both work on. Nothing names what is above it.

mod coverage;
mod detection;
mod mutant;
mod observer;
mod runner;
mod shard;
mod system;
mod trace;
mod world;

pub use coverage::{Coverage, STANDARD_SEEDS};
pub use detection::{Detection, Search, detect_all};
pub use mutant::Mutant;
pub use observer::Failure;
pub use runner::{Outcome, Summary, run_seed, run_seeds};
pub use shard::is_in_shard;
