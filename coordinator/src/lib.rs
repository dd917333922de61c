//! Leasehold's coordinator: assembles a platform, the driver and the ports.

pub mod config;
mod export;
mod file_limit;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod run;
mod sockets;
pub mod telemetry;
