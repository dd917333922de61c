//! `leasehold check` on a real control plane: an installation that is well is found well, and each
//! planted fault is found, named, and gone after what the program says has been done.

#[path = "check/before.rs"]
mod before;
#[path = "check/installation.rs"]
mod installation;
#[path = "check/scene.rs"]
mod scene;
#[path = "check/workers.rs"]
mod workers;
