//! Leasehold's tests that need more than one crate, and its demo.

pub mod demo;
