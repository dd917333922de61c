//! The limits of a turn, and of what a leader lets wait.

use leasehold_types::TimeBounds;
use leasehold_types::limits::WORKERS_MAX;

use super::turn_budget::SLICE;

/// Reports of any size that a leader lets wait at once; the largest have 20,000 streams each, and
/// 4 MB.
const REPORTS_MAX: usize = 128;
/// Small reports that a leader lets wait at once: a fleet of 20,000 agents with few streams each
/// can be through after some five round trips.
const SMALL_REPORTS_MAX: usize = 4_096;

/// The settings of a core, fixed before its first event.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How far clocks may be apart; larger bounds make leases end later on the coordinator's side.
    pub bounds: TimeBounds,
    /// Reports of any size that may wait at once: so many agents are welcomed before they have
    /// reported. More of them need more memory, and fewer make a failover slower.
    pub reports_max: usize,
    /// Reports that may wait at once if the reports so far were small.
    pub small_reports_max: usize,
    /// How many workers the clusters of one namespace may have together, so that one namespace
    /// leaves places for the others. Clusters without a namespace have no limit but that of all.
    pub workers_per_namespace_max: usize,
    /// The units of work that one turn may take, at least 1. Handling one stream, claim or account
    /// is one unit. The next turn continues with the rest. Longer turns delay what arrives
    /// meanwhile.
    pub slice: u32,
    /// Whether a worker's name stays with the agent that has it while that agent is alive. False if
    /// the platform decides which agent may act for a name.
    pub keeps_names: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bounds: TimeBounds::default(),
            reports_max: REPORTS_MAX,
            small_reports_max: SMALL_REPORTS_MAX,
            workers_per_namespace_max: WORKERS_MAX,
            slice: SLICE,
            keeps_names: true,
        }
    }
}
