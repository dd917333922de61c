//! The adapters: each connects the holder to one kind of worker.

pub(crate) mod adapter;
pub(crate) mod api;
pub(crate) mod check;
pub(crate) mod command;
pub(crate) mod file;
pub(crate) mod http;
pub(crate) mod polled;
pub(crate) mod process;
pub(crate) mod shell_command;
mod sizing;
pub(crate) mod travis;
mod user_command;
mod view;

pub(crate) use view::{JobsView, LeaseView};
