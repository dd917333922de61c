//! What is injected into pods.

mod again;
mod meshes;
mod places;
mod qos;
mod refusals;
mod round_trip;
mod shapes;
mod shared;
mod traps;
