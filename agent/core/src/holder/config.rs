//! The configuration of a holder.

use std::time::Duration;

use leasehold_types::share::WorkerAddress;
use leasehold_types::{AgentId, ClusterName, Incarnation, WorkerKey, WorkerName};

/// What a holder is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster that its worker belongs to.
    pub cluster: ClusterName,
    /// Its worker.
    pub worker: WorkerName,
    /// Its incarnation: above every earlier one that is known here.
    pub incarnation: Incarnation,
    /// The identity of this installation of the agent.
    pub identity: Option<AgentId>,
    /// Whether it takes its name from another agent, running or not.
    pub take_over: bool,
    /// Its worker's rollout generation.
    pub generation: u64,
    /// Whether it can stop its worker when a lease ends.
    pub stops_worker: bool,
    /// The address at which workers of the previous nodes of a pipeline reach its worker.
    pub address: Option<WorkerAddress>,
    /// Whether its worker sees and releases its bindings. If not, a revoked one is released at
    /// once.
    pub exposes_bindings: bool,
    /// How long a drain may take; none if the coordinator decides.
    pub drain_deadline: Option<Duration>,
    /// How long an agent that has drained tries to record it, and to report it to a coordinator
    /// that answers. One that stays tries on after that, and its drain has ended meanwhile.
    pub goodbye_max: Duration,
    /// Whether it tries that although no coordinator can hold anything of it: `leave` is run for
    /// this report.
    pub insists_on_report: bool,
    /// Whether it continues after a drain's deadline until its worker holds nothing, as a sidecar
    /// does.
    pub stays_after_drain: bool,
    /// Whether it ends its worker at a drain's deadline: then it leaves once that has ended, not at
    /// the deadline.
    pub ends_worker: bool,
    /// Random offset from 1 to [`INCARNATION_OFFSET_MAX`], in milliseconds, added when another
    /// agent already uses this agent's incarnation, so that two agents never have the same one.
    pub incarnation_offset: u64,
}

impl Config {
    /// The first agent of a worker, for tests and examples: it stops its worker, and uses nothing
    /// that is optional.
    #[must_use]
    pub fn example(worker: WorkerKey) -> Self {
        let WorkerKey { cluster, worker } = worker;
        Self {
            cluster,
            worker,
            incarnation: Incarnation(1),
            identity: None,
            take_over: false,
            generation: 0,
            stops_worker: true,
            address: None,
            exposes_bindings: false,
            drain_deadline: None,
            goodbye_max: Duration::from_secs(5),
            insists_on_report: false,
            stays_after_drain: false,
            ends_worker: false,
            incarnation_offset: 1,
        }
    }
}

/// The largest such offset, in milliseconds. A later agent's incarnation is its clock: it is lower
/// for at most this time, and is then raised as well.
pub const INCARNATION_OFFSET_MAX: u64 = 1 << 20;
