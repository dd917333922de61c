//! Tests of the whole: the simulator, and what needs real processes.

pub mod sim;
