//! Logs the core's notices. Changes of state are logged at INFO. So are changes of leases, up to a
//! limit per second; the rest is summed up in one line at INFO, and logged one by one at DEBUG.

use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_types::{Moment, SetName, StreamKey, StreamName};
use tracing::field::{DisplayValue, display};

/// The most lines about single leases within [`WINDOW`].
const LEASE_LINES_MAX: u32 = 100;
/// See [`LEASE_LINES_MAX`].
const WINDOW: Duration = Duration::from_secs(1);

/// The target of every line about leases.
const LEASE: &str = "leasehold::lease";
/// The target of every line about workers and leadership.
const TARGET: &str = "leasehold::coordinator";
/// The target of every line about pipelines.
const PIPELINE: &str = "leasehold::pipeline";

/// The name of a phase; `None` if the object does not exist.
fn state(phase: Option<impl ToString>) -> Option<String> {
    phase.map(|phase| phase.to_string())
}

/// The number of changes that got no line of their own at INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnloggedChanges {
    pools: u64,
    granted: u64,
    freed: u64,
}

/// Limits the log lines about leases.
#[derive(Debug, Default)]
pub(super) struct LeaseLog {
    since: Moment,
    lines: u32,
    unlogged: UnloggedChanges,
}

impl LeaseLog {
    /// Logs a notice.
    pub(super) fn write(&mut self, notice: &Notice, now: Moment) {
        self.flush_summary(now);
        write(notice, self.admits(notice));
    }

    /// Logs the sum of the changes without a line of their own, once per [`WINDOW`].
    pub(super) fn flush_summary(&mut self, now: Moment) {
        if let Some(UnloggedChanges { pools, granted, freed }) = self.take_unlogged(now) {
            tracing::info!(target: LEASE, pools, granted, freed,
                "further lease changes: pools and streams granted, streams freed");
        }
    }

    fn take_unlogged(&mut self, now: Moment) -> Option<UnloggedChanges> {
        if now.since(self.since) < WINDOW {
            return None;
        }
        (self.since, self.lines) = (now, 0);
        let unlogged = std::mem::take(&mut self.unlogged);
        (unlogged != UnloggedChanges::default()).then_some(unlogged)
    }

    /// Whether a notice gets a line of its own at INFO; if not, it is counted for the summary.
    fn admits(&mut self, notice: &Notice) -> bool {
        let unlogged = match notice {
            Notice::PoolGranted { .. } => &mut self.unlogged.pools,
            Notice::StreamGranted { .. } => &mut self.unlogged.granted,
            Notice::StreamFreed { .. } => &mut self.unlogged.freed,
            _ => return true,
        };
        let admits = self.lines < LEASE_LINES_MAX;
        if admits {
            self.lines += 1;
        } else {
            *unlogged += 1;
        }
        admits
    }
}

/// Logs a line about a lease: at INFO if it is admitted, else at DEBUG.
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

/// What a stream lease is of, as a line of the log names it.
struct Leased<'a> {
    set: Option<DisplayValue<&'a SetName>>,
    stream: Option<DisplayValue<&'a StreamName>>,
    /// The share of a pipeline, in place of the set of all shares.
    share: Option<DisplayValue<&'a StreamName>>,
}

impl<'a> Leased<'a> {
    fn of(key: &'a StreamKey) -> Self {
        if key.set.is_shares() {
            Self { set: None, stream: None, share: Some(display(&key.stream)) }
        } else {
            Self { set: Some(display(&key.set)), stream: Some(display(&key.stream)), share: None }
        }
    }
}

fn write(notice: &Notice, admitted: bool) {
    use tracing::{debug, info, warn};
    match notice {
        Notice::Elected(epoch) => info!(target: TARGET, %epoch, "this replica leads"),
        Notice::Deposed(epoch) => info!(target: TARGET, %epoch, "this replica no longer leads"),
        Notice::HoldEnded(cluster) => {
            info!(target: TARGET, %cluster, "hold ended: the cluster is planned from now on");
        }
        Notice::Joined(key) => {
            info!(target: TARGET, cluster = %key.cluster, worker = %key.worker, "worker joined");
        }
        Notice::Disconnected(key) => {
            info!(target: TARGET, cluster = %key.cluster, worker = %key.worker,
                "worker disconnected");
        }
        Notice::Lost(key) => {
            warn!(target: TARGET, cluster = %key.cluster, worker = %key.worker,
                "worker lost: no message for longer than its leases last. What it may still use \
                 counts until it reports, or until `leasehold gone` declares that it has ended. \
                 See on its host whether its agent runs and what it logs, and start it again with \
                 the same --state-dir");
        }
        Notice::GivenUp { worker: key, after } => {
            warn!(target: TARGET, cluster = %key.cluster, worker = %key.worker, ?after,
                "worker lost for longer than spec.lost.after: it counts as gone, and other \
                 workers get its slots and streams although its jobs may still run");
        }
        Notice::DrainStarted(key) => {
            info!(target: TARGET, cluster = %key.cluster, worker = %key.worker,
                "worker is draining");
        }
        Notice::Failing { worker: key, failure } => {
            warn!(target: TARGET, cluster = %key.cluster, worker = %key.worker, why = %failure,
                "worker fails: it gets no job, and its streams go to other workers");
        }
        Notice::Recovered(key) => {
            info!(target: TARGET, cluster = %key.cluster, worker = %key.worker,
                "worker works again");
        }
        Notice::NameRefused { worker: key, peer } => {
            let at = peer.as_deref().unwrap_or("unknown");
            warn!(target: TARGET, cluster = %key.cluster, worker = %key.worker, at,
                "another agent wants the worker's name: it is refused for as long as the worker's \
                 agent has the name");
        }
        Notice::Gone(key) => {
            info!(target: TARGET, cluster = %key.cluster, worker = %key.worker, "worker gone");
        }
        Notice::PoolGranted { worker: key, size, token } => {
            lease!(admitted, key, size, %token, "pool granted");
        }
        Notice::StreamGranted { worker: key, stream, token } => {
            let Leased { set, stream, share } = Leased::of(stream);
            lease!(admitted, key, set, stream, share, %token, "stream granted");
        }
        Notice::StreamRevoked { worker: key, stream, token } => {
            let Leased { set, stream, share } = Leased::of(stream);
            debug!(target: LEASE, cluster = %key.cluster, worker = %key.worker,
                set, stream, share, %token, "stream revoked");
        }
        Notice::StreamFreed { worker: key, stream, token, how } => {
            let how = how.label();
            let Leased { set, stream, share } = Leased::of(stream);
            lease!(admitted, key, set, stream, share, %token, how, "stream freed");
        }
        Notice::Pipeline { pipeline, from, to, why } => {
            if from == to {
                let state = state(*to);
                info!(target: PIPELINE, %pipeline, state, why, "pipeline: why it is in its state");
            } else {
                let (from, to) = (state(*from), state(*to));
                info!(target: PIPELINE, %pipeline, from, to, why, "pipeline changed");
            }
        }
        Notice::Binding { pipeline, node, from, to } => {
            let (from, to) = (state(*from), state(*to));
            debug!(target: PIPELINE, %pipeline, %node, from, to, "binding changed");
        }
        Notice::Endpoints { pipeline, node } => {
            debug!(target: PIPELINE, %pipeline, %node, "endpoints changed");
        }
        Notice::EpochAhead { worker: key, seen } => {
            warn!(target: TARGET, cluster = %key.cluster, worker = %key.worker, %seen,
                "an agent reports a later epoch than this leader's, but the term store still has \
                 this leader's: the store has lost its history, or the agent's journal is wrong");
        }
        Notice::EpochRepeated { worker: key, epoch } => {
            warn!(target: TARGET, cluster = %key.cluster, worker = %key.worker, %epoch,
                "an agent has obeyed another leader of this epoch: the term store was put back \
                 from a copy; this leader gives its term up for a later one");
        }
        Notice::ProtocolViolation { worker: key, rule } => {
            warn!(target: TARGET, cluster = %key.cluster, worker = %key.worker, rule,
                "agent broke a rule of the protocol");
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
    fn lease_changes_beyond_the_limit_per_second_are_summed_up() {
        let cluster = ClusterName::new("c").unwrap();
        let worker = WorkerKey { cluster, worker: WorkerName::new("w").unwrap() };
        let (set, stream) = (SetName::new("s").unwrap(), StreamName::new("x").unwrap());
        let stream = StreamKey { set, stream };
        let token = Token { epoch: Epoch(1), seq: 1 };
        let granted = Notice::StreamGranted { worker: worker.clone(), stream, token };
        let mut log = LeaseLog::default();
        let second = |second: u64| Moment(second * 1_000_000_000);
        assert_eq!(log.take_unlogged(second(5)), None);
        let all = LEASE_LINES_MAX + 7;
        let admitted = (0..all).filter(|_| log.admits(&granted)).count();
        assert_eq!(admitted, LEASE_LINES_MAX as usize);
        assert!(log.admits(&Notice::Joined(worker)), "only lease changes are limited");
        assert_eq!(log.take_unlogged(second(5)), None, "the second has not passed");
        assert_eq!(
            log.take_unlogged(second(6)),
            Some(UnloggedChanges { granted: 7, ..UnloggedChanges::default() })
        );
        assert!(log.admits(&granted));
        assert_eq!(log.take_unlogged(second(7)), None);
    }
}
