//! Leasehold's domain types: names, epochs, tokens, time, limits and the messages of the lease
//! protocol, each valid by construction. No IO, no clock, no randomness.

pub mod address;
pub mod agent_id;
pub mod cell_id;
pub mod counted;
pub mod duration;
pub mod file_system;
pub mod flag;
mod hex;
pub mod limits;
pub mod load;
pub mod message;
pub mod mutation;
pub mod name;
pub mod order;
pub mod pem;
pub mod quantity;
pub mod share;
pub mod similar;
pub mod state_dir;
pub mod time;
pub mod version;

pub use address::{LISTEN_EXPECTED, is_host_and_port, parse_listen, port_in_use, why_undialable};
pub use agent_id::AgentId;
pub use cell_id::CellId;
pub use counted::counted;
pub use load::Load;
pub use name::{
    ClusterName, InvalidName, JobId, NodeName, PipelineName, SetName, StartId, StreamKey,
    StreamName, WorkerKey, WorkerName,
};
pub use order::{Epoch, GrantNumber, Incarnation, LinkNumber, Nonce, TermId, Token};
pub use quantity::Quantity;
pub use share::{Share, ShareKey};
pub use similar::nearest;
pub use time::{Moment, TimeBounds, is_timestamp};
pub use version::Version;
