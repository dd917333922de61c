//! Leasehold's custom resources: their types, statuses and definitions, and the name of every
//! label, annotation and object, with the taints of others that it reads. Nothing here calls an API
//! server.

pub mod crd;
pub mod names;
pub mod node_taints;
pub mod resources;
pub mod status;
