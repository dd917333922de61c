//! The core's notices in the log. INFO says that state changed, and who has which lease: so many a
//! second each in a line of its own, all others in sum. DEBUG has each.

use std::time::Duration;

use leasehold_coordinator_core::effect::{Freed, Notice};
use leasehold_types::Moment;

/// Lines about single leases within [`SPAN`]; changes beyond that are summed up in one line.
const LEASE_LINES_MAX: u32 = 100;
/// See [`LEASE_LINES_MAX`].
const SPAN: Duration = Duration::from_secs(1);

/// The target of every line about leases.
const LEASE: &str = "leasehold::lease";
/// The target of every line about workers and leadership.
const CELL: &str = "leasehold::cell";

/// The target of every line about pipelines.
const PIPELINE: &str = "leasehold::pipeline";

/// A state in a word; none if the object does not exist.
fn state(phase: Option<impl ToString>) -> Option<String> {
    phase.map(|phase| phase.to_string())
}

/// How it is known that a lease has ended, in a word.
pub fn freed(how: Freed) -> &'static str {
    match how {
        Freed::Released => "released",
        Freed::Expired => "expired",
        Freed::Gone => "gone",
    }
}

/// Leases that changed without a line of their own at INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnloggedChanges {
    pools: u64,
    granted: u64,
    freed: u64,
}

/// What was written of leases lately.
#[derive(Debug, Default)]
pub(super) struct LeaseLog {
    since: Moment,
    lines: u32,
    unsaid: UnloggedChanges,
}

impl LeaseLog {
    /// Writes a notice to the log.
    pub(super) fn write(&mut self, notice: &Notice, now: Moment) {
        self.sum_up(now);
        write(notice, self.admits(notice));
    }

    /// Tells in sum what had no line of its own, once its time is over.
    pub(super) fn sum_up(&mut self, now: Moment) {
        if let Some(UnloggedChanges { pools, granted, freed }) = self.take_unsaid(now) {
            tracing::info!(target: LEASE, pools, granted, freed,
                "more leases have changed: pools and streams granted, streams freed");
        }
    }

    fn take_unsaid(&mut self, now: Moment) -> Option<UnloggedChanges> {
        if now.since(self.since) < SPAN {
            return None;
        }
        (self.since, self.lines) = (now, 0);
        let unsaid = std::mem::take(&mut self.unsaid);
        (unsaid != UnloggedChanges::default()).then_some(unsaid)
    }

    /// Whether a notice of a lease has a line of its own; it is counted where it has none.
    fn admits(&mut self, notice: &Notice) -> bool {
        let unsaid = match notice {
            Notice::PoolGranted { .. } => &mut self.unsaid.pools,
            Notice::StreamGranted { .. } => &mut self.unsaid.granted,
            Notice::StreamFreed { .. } => &mut self.unsaid.freed,
            _ => return true,
        };
        let admits = self.lines < LEASE_LINES_MAX;
        match admits {
            true => self.lines += 1,
            false => *unsaid += 1,
        }
        admits
    }
}

/// A line about a lease: at INFO where it is admitted, else at DEBUG.
macro_rules! lease {
    ($admitted:expr, $key:expr, $($rest:tt)*) => {
        match $admitted {
            true => tracing::info!(target: LEASE, cluster = %$key.cluster, worker = %$key.worker,
                $($rest)*),
            false => tracing::debug!(target: LEASE, cluster = %$key.cluster, worker = %$key.worker,
                $($rest)*),
        }
    };
}

fn write(notice: &Notice, admitted: bool) {
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
        Notice::GivenUp { worker: key, after } => {
            warn!(target: CELL, cluster = %key.cluster, worker = %key.worker, ?after,
                "worker lost for as long as spec.lost.after allows: it counts as gone, and \
                 others get its slots and streams though its jobs may still run");
        }
        Notice::DrainStarted(key) => {
            info!(target: CELL, cluster = %key.cluster, worker = %key.worker, "worker drains");
        }
        Notice::Gone(key) => {
            info!(target: CELL, cluster = %key.cluster, worker = %key.worker, "worker gone");
        }
        Notice::PoolGranted { worker: key, size, token } => {
            lease!(admitted, key, size, %token, "pool granted");
        }
        Notice::StreamGranted { worker: key, stream, token } => {
            lease!(admitted, key, set = %stream.set, stream = %stream.stream, %token,
                "stream granted");
        }
        Notice::StreamRevoked { worker: key, stream, token } => {
            debug!(target: LEASE, cluster = %key.cluster, worker = %key.worker,
                set = %stream.set, stream = %stream.stream, %token, "stream revoked");
        }
        Notice::StreamFreed { worker: key, stream, token, how } => {
            let how = freed(*how);
            lease!(admitted, key, set = %stream.set, stream = %stream.stream, %token, how,
                "stream freed");
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

#[cfg(test)]
mod tests {
    use leasehold_types::{
        ClusterName, Epoch, SetName, StreamKey, StreamName, Token, WorkerKey, WorkerName,
    };

    use super::*;

    #[test]
    fn beyond_so_many_lines_a_second_leases_are_told_in_sum() {
        let cluster = ClusterName::new("c").unwrap();
        let worker = WorkerKey { cluster, worker: WorkerName::new("w").unwrap() };
        let (set, stream) = (SetName::new("s").unwrap(), StreamName::new("x").unwrap());
        let stream = StreamKey { set, stream };
        let token = Token { epoch: Epoch(1), seq: 1 };
        let granted = Notice::StreamGranted { worker: worker.clone(), stream, token };
        let mut log = LeaseLog::default();
        let second = |second: u64| Moment(second * 1_000_000_000);
        assert_eq!(log.take_unsaid(second(5)), None);
        let all = LEASE_LINES_MAX + 7;
        let said = (0..all).filter(|_| log.admits(&granted)).count();
        assert_eq!(said, LEASE_LINES_MAX as usize);
        assert!(log.admits(&Notice::Joined(worker)), "this is no lease");
        assert_eq!(log.take_unsaid(second(5)), None, "its time is not over");
        assert_eq!(
            log.take_unsaid(second(6)),
            Some(UnloggedChanges { granted: 7, ..UnloggedChanges::default() })
        );
        assert!(log.admits(&granted));
        assert_eq!(log.take_unsaid(second(7)), None);
    }
}
