//! The core's notices in the log. INFO says that state changed; what changes by the thousand is
//! DEBUG.

use leasehold_coordinator_core::effect::{Freed, Notice};

/// The target of every line about leases.
const LEASE: &str = "leasehold::lease";
/// The target of every line about workers and leadership.
const CELL: &str = "leasehold::cell";

/// The target of every line about pipelines.
const PIPELINE: &str = "leasehold::pipeline";

/// A state in a word; none where there is no such thing yet, or any more.
fn state(phase: Option<impl ToString>) -> Option<String> {
    phase.map(|phase| phase.to_string())
}

/// How it is known that a lease has ended, in a word.
pub(crate) fn freed(how: Freed) -> &'static str {
    match how {
        Freed::Released => "released",
        Freed::Expired => "expired",
        Freed::Gone => "gone",
    }
}

/// Writes a notice to the log.
pub(super) fn log(notice: &Notice) {
    use tracing::{debug, info, warn};
    match notice {
        Notice::Elected(epoch) => info!(target: CELL, %epoch, "this replica leads"),
        Notice::Deposed(epoch) => info!(target: CELL, %epoch, "this replica no longer leads"),
        Notice::HoldEnded(cluster) => info!(target: CELL, %cluster, "cluster plans from now on"),
        Notice::Joined(key) => {
            info!(target: CELL, cluster = %key.cluster, worker = %key.worker, "worker joined");
        }
        Notice::Disconnected(key) => {
            info!(target: CELL, cluster = %key.cluster, worker = %key.worker,
                "worker disconnected");
        }
        Notice::Lost(key) => {
            warn!(target: CELL, cluster = %key.cluster, worker = %key.worker,
                "worker silent for longer than its leases");
        }
        Notice::DrainStarted(key) => {
            info!(target: CELL, cluster = %key.cluster, worker = %key.worker, "worker drains");
        }
        Notice::Gone(key) => {
            info!(target: CELL, cluster = %key.cluster, worker = %key.worker, "worker gone");
        }
        Notice::PoolGranted { worker: key, size, token } => {
            info!(target: LEASE, cluster = %key.cluster, worker = %key.worker, size, %token,
                "pool granted");
        }
        Notice::StreamGranted { worker: key, stream, token } => {
            debug!(target: LEASE, cluster = %key.cluster, worker = %key.worker,
                set = %stream.set, stream = %stream.stream, %token, "stream granted");
        }
        Notice::StreamRevoked { worker: key, stream, token } => {
            debug!(target: LEASE, cluster = %key.cluster, worker = %key.worker,
                set = %stream.set, stream = %stream.stream, %token, "stream revoked");
        }
        Notice::StreamFreed { worker: key, stream, token, how } => {
            let how = freed(*how);
            debug!(target: LEASE, cluster = %key.cluster, worker = %key.worker,
                set = %stream.set, stream = %stream.stream, %token, how, "stream freed");
        }
        Notice::Pipeline { pipeline, from, to, why } => {
            let (from, to) = (state(*from), state(*to));
            info!(target: PIPELINE, %pipeline, from, to, why, "pipeline");
        }
        Notice::Binding { pipeline, node, from, to } => {
            let (from, to) = (state(*from), state(*to));
            debug!(target: PIPELINE, %pipeline, %node, from, to, "binding");
        }
        Notice::Endpoints { pipeline, node } => {
            debug!(target: PIPELINE, %pipeline, %node, "endpoints changed");
        }
        Notice::EpochAhead { worker: key, seen } => {
            warn!(target: CELL, cluster = %key.cluster, worker = %key.worker, %seen,
                "an agent remembers a later epoch than this leader's, which stands in its store: \
                 either the store has lost its history, or the agent says what is not so");
        }
        Notice::Offence { worker: key, rule } => {
            warn!(target: CELL, cluster = %key.cluster, worker = %key.worker, rule,
                "agent broke the protocol's rules");
        }
    }
}
