//! Leasehold's coordinator: a thin shell of sockets, files and telemetry round its pure core.

pub mod admin;
pub mod clock;
pub mod config;
pub mod driver;
pub mod gate;
pub mod health;
pub mod http;
pub mod metrics;
pub mod platform;
pub mod run;
pub(crate) mod scaler;
pub mod server;
pub mod spec;
pub mod telemetry;
pub mod tls;
pub mod webhook;
