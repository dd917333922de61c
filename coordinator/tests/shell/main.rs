//! The coordinator's shell over real sockets on loopback, with a platform that the test controls.

mod access;
mod admin;
mod agent;
mod bad_peers;
mod command;
mod followers;
mod forward;
mod http;
mod leader;
mod leases;
mod replica;
mod scaler;
mod services;
mod tls;
mod users;
