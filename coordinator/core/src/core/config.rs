//! What a core must know before its first event.

use leasehold_types::TimeBounds;

use super::turn_budget::SLICE;

/// Reports of any size that a leader lets wait at once; the largest have 20,000 streams each, and
/// 4 MB.
const REPORTS_MAX: usize = 128;
/// Small reports that a leader lets wait at once: a fleet of 20,000 agents with few streams each
/// can be through after some five round trips.
const SMALL_REPORTS_MAX: usize = 4_096;

/// What a core must know before its first event.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
    /// Reports of any size that may wait at once: this many agents are welcomed ahead of their
    /// reports.
    pub reports_max: usize,
    /// Reports that may wait at once where those that came were small.
    pub small_reports_max: usize,
    /// The units of work that one turn may take, at least 1: one is a stream, claim or account
    /// that is looked at. What is left goes on in the next turn.
    pub slice: u32,
    /// Whether a worker's name stays with the agent that has it, as long as that is alive. Not
    /// where the platform says which agent may speak for a name.
    pub keeps_names: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bounds: TimeBounds::default(),
            reports_max: REPORTS_MAX,
            small_reports_max: SMALL_REPORTS_MAX,
            slice: SLICE,
            keeps_names: true,
        }
    }
}
