//! Leasehold's agent: a thin shell around the holder of one worker's leases.
//!
//! One driver task owns the holder and reads the clock; the link to the coordinator, the worker's
//! API, the adapters and the child only exchange messages with it.

pub mod config;
pub mod drain;
pub mod inputs;
pub mod leader_watch;
pub mod metrics;
pub mod pre_stop;
pub mod probe;
pub mod run;
pub mod silence;

mod api;
mod backoff;
mod cells;
mod cgroup;
mod child;
mod clock;
mod driver;
mod file_limit;
mod http_client;
mod identity;
mod journal;
mod launcher;
mod link;
mod log_limiter;
mod process_group;
mod reaper;
mod refusal;
mod runtime;
mod share_dir;
mod signals;
mod state_dir;
mod watchdog;
mod worker;
