//! Leasehold's domain types: names, epochs, tokens, time, limits and the messages of the lease
//! protocol, each valid by construction. No IO, no clock, no randomness.
//!
//! A value is checked once, where it is made from outside input, so a function that takes one of
//! these types does not check it again. Numbers that only have an order are types of their own:
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold_types::{ClusterName, Epoch, Moment, TimeBounds, Token};
//!
//! // Names are valid by construction, and a refusal says what is wrong.
//! assert!(ClusterName::new("builds").is_ok());
//! let refused = ClusterName::new("Builds!").expect_err("an invalid name");
//! assert!(refused.to_string().contains("Builds!"));
//!
//! // A fencing token of a later term is higher, whatever its position within the term.
//! let earlier = Token { epoch: Epoch(7), seq: 900 };
//! let later: Token = "8.1".parse().expect("EPOCH.SEQ");
//! assert!(earlier < later);
//!
//! // Another process's lease counts as ended after its ttl, the clocks' drift and a margin.
//! let wait = TimeBounds::default().outlast(Duration::from_secs(10));
//! assert_eq!(wait, Duration::from_millis(10_600));
//! assert_eq!(Moment(0) + wait, Moment(10_600_000_000));
//! ```

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
pub mod metric;
pub mod mutation;
pub mod name;
pub mod order;
pub mod pem;
pub mod protocol;
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
pub use similar::{did_you_mean, nearest};
pub use time::{Moment, TimeBounds, is_timestamp};
pub use version::Version;
