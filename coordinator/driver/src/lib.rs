//! The task that owns a core, and the ports between it and everything else: a platform, sessions,
//! people.

pub mod access;
pub mod cell;
pub mod clock;
pub mod demand;
pub mod driver;
pub mod freshness;
pub mod health;
pub mod history;
pub mod keyed_limit;
pub mod log_limit;
pub mod metrics;
pub mod order;
pub mod platform;
pub mod port;
pub mod replicas;
pub mod sent_queue;
pub mod term_guard;
pub mod trust;
pub mod view;
