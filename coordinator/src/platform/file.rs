//! The standalone platform: manifests in a folder that it watches, and a state folder on a local
//! file system where replicas elect a leader and write down who may hold leases.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_types::TimeBounds;

/// How a replica runs on files.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The manifests' folder.
    pub manifests: PathBuf,
    /// The folder that the replicas share; made where it is missing.
    pub state_dir: PathBuf,
    /// This replica's name.
    pub identity: String,
    /// Where agents and people reach this replica: HOST:PORT.
    pub address: String,
    /// How long a leader's heartbeat may stand still before a standby takes over.
    pub takeover_after: Duration,
    /// How long leadership lasts after a renewal was sent.
    pub leadership: Duration,
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
}
