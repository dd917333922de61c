//! What is injected into pods.

mod again;
mod refusals;
mod round_trip;
mod shapes;
mod shared;
mod traps;
