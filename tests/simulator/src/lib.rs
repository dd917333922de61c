//! The simulator: the real cores and real messages in a simulated world, where one seed decides
//! everything, and an observer checks the protocol's properties after every step.

mod chaos;
mod checks;
mod clock;
mod coverage;
mod credits;
mod driver;
mod election;
mod entries;
mod excuses;
mod faults;
mod hindrance;
mod hunt;
mod journal;
mod liveness;
mod mutant;
mod names;
mod network;
mod observer;
mod outstanding;
mod pipelines;
mod platform;
mod pod;
mod queue;
mod replica;
mod runner;
mod said;
mod sequences;
mod serving;
mod shares;
mod states;
mod store;
mod terms;
mod trace;
mod tracked;
mod twins;
mod wire;
mod worker;
mod world;

pub use coverage::{Coverage, STANDARD_SEEDS};
pub use hunt::{Hunt, catch_all};
pub use mutant::Mutant;
pub use observer::Failure;
pub use runner::{Outcome, Summary, run_seed, run_seeds};
