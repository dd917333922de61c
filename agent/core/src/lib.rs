//! The agent's pure core: the holder of one worker's leases. It takes events and `now`, and returns
//! effects and the next wake-up with its reason. No tokio, tonic, prost, clock or randomness.

pub mod effect;
pub mod holder;
pub mod journal;
pub mod lease;

pub use effect::{DrainCancelled, Effect, Notice, SNAPSHOT_NOT_ABOVE, Target, WakeReason, Wakeup};
pub use holder::{Config, Holder, RAISE_MAX};
pub use journal::{Journal, JournalError, Memory, Record};
pub use lease::{BindingLease, Kinds, Lease, Outstanding, PoolView, Refused, StreamLease};
