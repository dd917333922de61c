//! `leasehold check` on a real control plane: an installation that is well is found well, and each
//! planted fault is found, named, and gone after what the program says has been done.

#[path = "check/before.rs"]
mod before;
#[path = "check/fixture.rs"]
mod fixture;
#[path = "check/installation.rs"]
mod installation;
#[path = "check/monitoring.rs"]
mod monitoring;
#[path = "check/workers.rs"]
mod workers;

pub(crate) use fixture::until_all_is_well;
