//! What the tests of whole processes and the demo are built from.

pub mod process;
pub mod toolbox;
