//! What tests of the whole are built from: the simulator, real processes, and the tools that the
//! project installs for them.

pub mod process;
pub mod sim;
pub mod toolbox;
