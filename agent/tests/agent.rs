//! The agent as a process, with real sockets, files, signals and children. A fake coordinator in
//! the test process grants what the test sets.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[path = "agent/adopted_child.rs"]
mod adopted_child;
#[path = "agent/bindings.rs"]
mod bindings;
#[path = "agent/check.rs"]
mod check;
#[path = "agent/child.rs"]
mod child;
#[path = "agent/command.rs"]
mod command;
#[path = "agent/connections.rs"]
mod connections;
#[path = "agent/coordinator.rs"]
mod coordinator;
#[path = "agent/drain.rs"]
mod drain;
#[path = "agent/drain_command.rs"]
mod drain_command;
#[path = "agent/file.rs"]
mod file;
#[path = "agent/file_pool.rs"]
mod file_pool;
#[path = "agent/files.rs"]
mod files;
#[path = "agent/http.rs"]
mod http;
#[path = "agent/input.rs"]
mod input;
#[path = "agent/journal.rs"]
mod journal;
#[path = "agent/link.rs"]
mod link;
#[path = "agent/probe.rs"]
mod probe;
#[path = "agent/process.rs"]
mod process;
#[path = "agent/process_group.rs"]
mod process_group;
#[path = "agent/programs.rs"]
mod programs;
#[path = "agent/restart.rs"]
mod restart;
#[path = "agent/sidecar.rs"]
mod sidecar;
#[path = "agent/travis.rs"]
mod travis;
#[path = "agent/watchdog.rs"]
mod watchdog;
#[path = "agent/worker_api.rs"]
mod worker_api;
#[path = "agent/worker_folder.rs"]
mod worker_folder;
