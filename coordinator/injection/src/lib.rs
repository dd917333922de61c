//! What Leasehold's sidecar adds to a pod: a pure function from a pod and settings to edits, for
//! the admission webhook and the command line alike.
//!
//! Invariants: injecting what is injected with the same settings gives no edits, and taking the
//! injection out again gives the pod that there was, to the last key.

pub mod edit;
pub mod names;
pub mod sidecar;

pub use edit::{Change, Edit, Step};
pub use sidecar::{Resources, Sidecar};
