//! The injection of Leasehold's sidecar: a pure function from a pod and settings to edits, for the
//! admission webhook and the command line.
//!
//! Invariants: injecting an injected pod with the same settings gives no edits, and removing the
//! injection restores the pod exactly.

mod annotations;
mod container;
mod digest;
mod draft;
pub mod edit;
pub mod flags;
mod injection;
mod mesh;
pub mod names;
mod probes;
mod qos;
mod refusal;
mod removal;
pub mod sidecar;
mod status;
mod travis;
mod volumes;
mod warnings;
mod worker;

pub use edit::{Edit, EditOperation, Step, apply};
pub use flags::{FLAGS, Flag, check_flag};
pub use injection::{Injection, inject};
pub use mesh::Mesh;
pub use refusal::Refusal;
pub use removal::{Injected, injected, uninject, warnings};
pub use sidecar::{AgentUser, Resources, Sidecar};
pub use volumes::TOKEN_SECONDS;
