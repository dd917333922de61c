//! The coordinator's pure core: it takes events and `now`, and gives effects and the next wake-up
//! with its reason. No tokio, tonic, prost, kube, clock, randomness or environment.

pub mod campaign;
pub mod core;
pub mod desired;
pub mod effect;
pub mod event;
pub mod exposure;
mod ledger;
mod merge;
mod observed;
pub mod planner;
pub mod turn;
pub mod view;

pub use crate::core::{Config, Core};
