//! Leasehold's domain types: names, epochs, tokens, time, limits and the messages of the lease
//! protocol, each valid by construction. No IO, no clock, no randomness.

pub mod limits;
pub mod message;
pub mod mutation;
pub mod name;
pub mod order;
pub mod span;
pub mod time;

pub use name::{
    ClusterName, InvalidName, JobId, SetName, StartId, StreamKey, StreamName, WorkerKey, WorkerName,
};
pub use order::{Epoch, GrantNumber, Incarnation, LinkNumber, Nonce, Token};
pub use time::{Moment, TimeBounds};
