//! Leasehold's custom resources: their types, statuses and definitions, and the name of every
//! label, annotation and object. Nothing here calls an API server.

pub mod crd;
pub mod names;
pub mod resources;
pub mod status;
