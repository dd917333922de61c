//! Leasehold's coordinator: it puts the parts together, a platform, the driver and the ports.

pub mod config;
mod export;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod run;
mod sockets;
pub mod telemetry;
