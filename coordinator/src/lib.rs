//! Leasehold's coordinator around its pure core: manifests, platforms, clock.

pub mod clock;
pub mod platform;
pub mod spec;
