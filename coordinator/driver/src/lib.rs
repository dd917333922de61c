//! The task that owns a core, and the ports between it and everything else: a platform, sessions,
//! people.

pub mod clock;
pub mod demand;
pub mod driver;
pub mod freshness;
pub mod gate;
pub mod health;
pub mod herald;
pub mod leading;
pub mod metrics;
pub mod platform;
pub mod trust;
pub mod view;
pub mod watcher;
pub mod written;
