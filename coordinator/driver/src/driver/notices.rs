//! Logs the core's notices. Changes of state are logged at INFO. So are changes of stream leases,
//! up to a limit per second; the rest is summed up in one line at INFO, and logged one by one at
//! DEBUG. Changes of pools are always summed up: one line at INFO for each cluster and change, at
//! most one a second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_types::{ClusterName, Moment, SetName, StreamKey, StreamName, WorkerKey};
use tracing::field::{DisplayValue, display};

/// The most lines about streams within [`WINDOW`].
const LEASE_LINES_MAX: u32 = 100;
/// The most lines about pools within [`WINDOW`].
const POOL_LINES_MAX: usize = 100;
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

/// The number of changes of streams that got no line of their own at INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnloggedChanges {
    granted: u64,
    freed: u64,
}

/// The pools of one cluster that were granted since its last line. A worker that was granted two
/// pools since then counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PoolGrants {
    workers: u64,
    /// The slots that these workers had before.
    slots_before: u64,
    /// The slots that they have now.
    slots: u64,
}

/// Limits the log lines about leases.
#[derive(Debug, Default)]
pub(super) struct LeaseLog {
    /// When the window began.
    since: Moment,
    /// The lines of the window.
    lines: u32,
    unlogged: UnloggedChanges,
    pools: BTreeMap<ClusterName, PoolGrants>,
    /// When the first of `pools` was granted.
    pools_since: Moment,
    /// The clusters with a line about pools in the window.
    logged: BTreeSet<ClusterName>,
}

impl LeaseLog {
    /// Logs a notice.
    pub(super) fn write(&mut self, notice: &Notice, now: Moment) {
        self.flush_summary(now);
        if let Notice::PoolGranted { worker, before, size, .. } = notice {
            self.add_pool(worker, *before, *size, now);
        }
        write(notice, self.admits(notice));
    }

    /// Logs the sum of the changes without a line of their own, once per [`WINDOW`].
    pub(super) fn flush_summary(&mut self, now: Moment) {
        if let Some(UnloggedChanges { granted, freed }) = self.take_unlogged(now) {
            tracing::info!(target: LEASE, granted, freed,
                "further lease changes: streams granted, streams freed");
        }
    }

    /// Logs which pools were granted. If more are about to be granted in the next turn
    /// (`is_settled` is false), these wait for them, at most one [`WINDOW`].
    pub(super) fn flush_pools(&mut self, now: Moment, is_settled: bool) {
        for (cluster, pools) in self.take_pools(now, is_settled) {
            let PoolGrants { workers, slots_before, slots } = pools;
            tracing::info!(target: LEASE, %cluster, workers, slots_before, slots, "pools granted");
        }
    }

    fn add_pool(&mut self, worker: &WorkerKey, before: u32, size: u32, now: Moment) {
        if self.pools.is_empty() {
            self.pools_since = now;
        }
        if !self.pools.contains_key(&worker.cluster) {
            self.pools.insert(worker.cluster.clone(), PoolGrants::default());
        }
        let Some(pools) = self.pools.get_mut(&worker.cluster) else { return };
        pools.workers += 1;
        pools.slots_before += u64::from(before);
        pools.slots += u64::from(size);
    }

    /// The pools that get a line now: those of the clusters that have none in this window.
    fn take_pools(&mut self, now: Moment, is_settled: bool) -> Vec<(ClusterName, PoolGrants)> {
        if self.pools.is_empty() || !(is_settled || now.since(self.pools_since) >= WINDOW) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        self.pools.retain(|cluster, pools| {
            let waits = self.logged.len() >= POOL_LINES_MAX || self.logged.contains(cluster);
            if !waits {
                self.logged.insert(cluster.clone());
                taken.push((cluster.clone(), *pools));
            }
            waits
        });
        taken
    }

    fn take_unlogged(&mut self, now: Moment) -> Option<UnloggedChanges> {
        if now.since(self.since) < WINDOW {
            return None;
        }
        (self.since, self.lines) = (now, 0);
        self.logged.clear();
        let unlogged = std::mem::take(&mut self.unlogged);
        (unlogged != UnloggedChanges::default()).then_some(unlogged)
    }

    /// Whether a notice gets a line of its own at INFO; if not, it is counted for a summary.
    fn admits(&mut self, notice: &Notice) -> bool {
        let unlogged = match notice {
            Notice::PoolGranted { .. } => return false,
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
        Notice::PoolGranted { worker: key, before, size, token } => {
            debug!(target: LEASE, cluster = %key.cluster, worker = %key.worker,
                before, size, %token, "pool granted");
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
    fn the_pools_of_a_change_get_one_line_for_each_cluster() {
        let worker = |cluster: &str, number: u32| WorkerKey {
            cluster: ClusterName::new(cluster).unwrap(),
            worker: WorkerName::new(&format!("w{number}")).unwrap(),
        };
        let at = |ms: u64| Moment(60_000_000_000 + ms * 1_000_000);
        let mut log = LeaseLog::default();
        let grant = |log: &mut LeaseLog, worker, before, size, now| {
            let token = Token { epoch: Epoch(1), seq: 1 };
            log.write(&Notice::PoolGranted { worker, before, size, token }, now);
        };
        let taken = |log: &mut LeaseLog, now, is_settled| {
            let taken = log.take_pools(now, is_settled).into_iter();
            let line = |(cluster, pools): (ClusterName, PoolGrants)| {
                let PoolGrants { workers, slots_before, slots } = pools;
                format!("{cluster}: {workers} workers, {slots_before} to {slots}")
            };
            taken.map(line).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        for number in 0..2_000 {
            grant(&mut log, worker("a", number), 3, 2, at(0));
        }
        assert_eq!(taken(&mut log, at(0), false), none, "the change takes more turns");
        for number in 2_000..3_000 {
            grant(&mut log, worker("a", number), 3, 2, at(10));
        }
        grant(&mut log, worker("b", 0), 0, 4, at(10));
        let lines = ["a: 3000 workers, 9000 to 6000", "b: 1 workers, 0 to 4"];
        assert_eq!(taken(&mut log, at(10), true), lines);
        // Slots become free one after the other.
        for turn in 0..50 {
            grant(&mut log, worker("a", turn), 2, 3, at(20 + u64::from(turn)));
            assert_eq!(taken(&mut log, at(20 + u64::from(turn)), true), none);
        }
        log.flush_summary(at(1_000));
        assert_eq!(taken(&mut log, at(1_000), true), ["a: 50 workers, 100 to 150"]);
        // A core that always has more to do.
        grant(&mut log, worker("b", 0), 4, 5, at(1_100));
        assert_eq!(taken(&mut log, at(1_200), false), none);
        log.flush_summary(at(2_100));
        assert_eq!(taken(&mut log, at(2_100), false), ["b: 1 workers, 4 to 5"]);
    }

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
