//! What Leasehold's sidecar adds to a pod: a pure function from a pod and settings to edits, for
//! the admission webhook and the command line alike.
//!
//! Invariants: injecting what is injected with the same settings gives no edits, and taking the
//! injection out again gives the pod that there was, to the last key.

mod annotations;
mod container;
mod digest;
mod draft;
pub mod edit;
pub mod flags;
mod injection;
pub mod names;
mod refusal;
mod removal;
pub mod sidecar;
mod status;
mod travis;
mod volumes;
mod warnings;
mod worker;

pub use edit::{Change, Edit, Step, apply};
pub use flags::{FLAGS, Flag, check_flag};
pub use injection::{Injection, inject};
pub use refusal::Refusal;
pub use removal::{Injected, injected, uninject};
pub use sidecar::{Resources, Sidecar};
