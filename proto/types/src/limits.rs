//! Every bound that more than one crate must agree on. Reaching one is a clear error, never a
//! silent cut.

use std::time::Duration;

/// The newest version of the session protocol that this build speaks.
pub const PROTOCOL_VERSION: u32 = 2;
/// The oldest version of the session protocol that this build still speaks.
pub const PROTOCOL_VERSION_MIN: u32 = 1;
/// The first version in which the endpoints of nodes are told as tables, not with each share.
pub const PROTOCOL_OF_NODE_TABLES: u32 = 2;

/// How often a coordinator sends an agent that it cannot serve yet that it must wait.
pub const WAITING_INTERVAL: Duration = Duration::from_secs(1);
/// How long an agent that is not served yet receives nothing before it dials another coordinator.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The time after a drain's deadline in which the agent disconnects and the worker ends: the grace
/// period of the operator's pods is longer than a drain by this.
pub const GRACE_BEYOND_DRAIN: Duration = Duration::from_secs(30);

/// Bytes of a cluster's, set's or worker's name (a DNS subdomain, RFC 1123).
pub const NAME_BYTES_MAX: usize = 253;
/// Bytes of a namespace (a DNS label, RFC 1123).
pub const NAMESPACE_BYTES_MAX: usize = 63;
/// Bytes of a pipeline's or a node's name (a DNS label, RFC 1123).
pub const LABEL_BYTES_MAX: usize = 63;
/// Bytes of a stream's name.
pub const STREAM_NAME_BYTES_MAX: usize = 253;
/// Bytes of a job id or of a worker's start id.
pub const JOB_ID_BYTES_MAX: usize = 256;

/// Streams and shares of pipelines that one worker may own; keeps a snapshot within
/// [`MESSAGE_BYTES_MAX`].
pub const STREAMS_PER_WORKER_MAX: usize = 20_000;
/// Streams that an agent gives back in one beat, but for its last: a coordinator takes a beat in
/// one piece.
pub const RELEASED_MAX: usize = 1_024;
/// Streams in all the sets of one coordinator.
pub const STREAMS_MAX: usize = 1_000_000;
/// Clusters of one coordinator.
pub const CLUSTERS_MAX: usize = 1_000;
/// Stream sets of one coordinator.
pub const SETS_MAX: usize = 10_000;
/// Workers of one coordinator, connected or remembered.
pub const WORKERS_MAX: usize = 20_000;
/// Agents that may be connected to one coordinator unless its flags say otherwise. `make bench`
/// connects as many.
pub const SESSIONS_MAX_DEFAULT: u32 = 10_000;
/// Jobs that one worker may run at once, and the largest pool.
pub const JOBS_PER_WORKER_MAX: u32 = 10_000;
/// Ended jobs whose run times one message has.
pub const ENDED_JOB_TIMES_MAX: usize = 32;
/// Running jobs whose ages one message has.
pub const RUNNING_JOB_TIMES_MAX: usize = 64;
/// The largest budget of a cluster (`maxJobs`).
pub const JOBS_MAX: u32 = 10_000_000;
/// The largest weight of a stream.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// Pipelines of one coordinator.
pub const PIPELINES_MAX: usize = 100_000;
/// Nodes of one pipeline.
pub const NODES_MAX: usize = 100;
/// Workers that one node of a pipeline may span.
pub const SHARES_PER_NODE_MAX: usize = 1_000;
/// Workers that a class may be scaled to.
pub const REPLICAS_MAX: u32 = 10_000;
/// Bytes of the address that a worker is reached at.
pub const ADDRESS_BYTES_MAX: usize = 261;

/// The part of the limits of one coordinator that one namespace may use, in percent, where several
/// are served and no flag says otherwise.
const NAMESPACE_PERCENT: u32 = 25;

/// The part of each limit of a coordinator that one namespace may use, so that the objects of one
/// namespace do not keep out those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceShare {
    percent: u32,
}

impl NamespaceShare {
    /// All of it, for a coordinator that serves one namespace.
    pub const WHOLE: Self = Self { percent: 100 };

    /// A share in percent; `None` if that is not from 1 to 100.
    #[must_use]
    pub fn of_percent(percent: u32) -> Option<Self> {
        (1..=100).contains(&percent).then_some(Self { percent })
    }

    /// The share of `max`, at least 1.
    #[must_use]
    pub fn of(self, max: usize) -> usize {
        (max * self.percent as usize / 100).max(1)
    }
}

impl Default for NamespaceShare {
    fn default() -> Self {
        Self { percent: NAMESPACE_PERCENT }
    }
}

/// Bytes of one gRPC message, either way.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of the request of a call to a coordinator, but for a session's messages and manifests.
pub const CALL_BYTES_MAX: usize = 64 * 1024;

/// How long a coordinator keeps a change of the fleet.
pub const HISTORY_RETENTION: Duration = Duration::from_secs(3_600);

/// The shortest and the longest time that a lease may last.
pub const TTL_MIN: Duration = Duration::from_millis(200);
/// See [`TTL_MIN`].
pub const TTL_MAX: Duration = Duration::from_secs(600);
