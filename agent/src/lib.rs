//! Leasehold's agent: a thin shell round the holder of one worker's leases.
//!
//! One driver task owns the holder and reads the clock; the link to the coordinator, the worker's
//! API, the adapters and the child only pass messages to it and from it.

pub mod config;
pub mod drain;
pub mod run;

mod api;
mod backoff;
mod child;
mod clock;
mod driver;
mod gate;
mod group;
mod guard;
mod http_client;
mod identity;
mod init;
mod journal;
mod link;
mod metrics;
mod share;
mod signals;
mod state_dir;
mod warden;
mod worker;
