//! What stands between the holder and its worker: one adapter a way in which workers learn of
//! their leases.

pub(crate) mod adapter;
pub(crate) mod api;
pub(crate) mod command;
pub(crate) mod file;
pub(crate) mod http;
pub(crate) mod polled;
pub(crate) mod process;
pub(crate) mod shell_command;
mod sizing;
pub(crate) mod travis;
mod view;

pub(crate) use view::LeaseView;
