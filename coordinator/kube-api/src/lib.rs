//! Leasehold's kinds as the API server has them: their resources, statuses and definitions, and
//! every label, annotation and object name. Nothing here calls an API server.

pub mod crd;
pub mod names;
pub mod resources;
pub mod status;
