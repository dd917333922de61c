//! The files by which a program recognizes the state folder of the other one, which it must not
//! write in.

/// Every state folder of an agent has this file, and no other folder.
pub const AGENT_FILE: &str = "journal.jsonl";

/// Every state folder of the coordinators has this file, and no other folder.
pub const COORDINATOR_FILE: &str = "folder.id";
