//! Measures from the leader's notices how long handovers, drains and failovers take.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::event::Event;
use leasehold_types::{ClusterName, Moment, StreamKey, WorkerKey};

/// The handovers, and the drains, that are measured at once; more are not.
const MEASURED_MAX: usize = 10_000;

/// What has taken a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measured {
    /// A stream has gone to its next owner.
    Handover(Duration),
    /// A worker has gone after its drain.
    Drain(Duration),
    /// A new leader plans a cluster.
    Failover(Duration),
}

/// What goes on in this replica's term.
#[derive(Debug, Default)]
pub(super) struct Durations {
    desired: Option<Arc<Desired>>,
    elected: Option<Moment>,
    /// The clusters that were there at the election, and are not planned yet. None until the first
    /// desired state is known.
    held: Option<BTreeSet<ClusterName>>,
    handovers: Begun<StreamKey>,
    drains: Begun<WorkerKey>,
}

impl Durations {
    /// Takes a notice; returns what it ends.
    pub(super) fn update(&mut self, notice: &Notice, now: Moment) -> Option<Measured> {
        match notice {
            Notice::Elected(_) => {
                let desired = self.desired.take();
                let held = desired.as_deref().map(names);
                *self = Self { desired, elected: Some(now), held, ..Self::default() };
                None
            }
            Notice::Deposed(_) => {
                *self = Self { desired: self.desired.take(), ..Self::default() };
                None
            }
            // Of a cluster that was made in the term, too, which no failover has delayed.
            Notice::HoldEnded(cluster) => {
                let was_held = self.held.as_mut().is_some_and(|held| held.remove(cluster));
                let elected = self.elected.filter(|_| was_held)?;
                Some(Measured::Failover(now.since(elected)))
            }
            Notice::StreamRevoked { stream, .. } => {
                self.handovers.begin(stream, now);
                None
            }
            Notice::StreamGranted { stream, .. } => {
                self.handovers.end(stream, now).map(Measured::Handover)
            }
            Notice::DrainStarted(worker) => {
                self.drains.begin(worker, now);
                None
            }
            // The agent may have restarted, and with it the drain.
            Notice::Joined(worker) => {
                self.drains.end(worker, now);
                None
            }
            Notice::Gone(worker) => self.drains.end(worker, now).map(Measured::Drain),
            _ => None,
        }
    }

    /// Takes an event for the core.
    pub(super) fn record_event(&mut self, event: &Event, now: Moment) {
        match event {
            Event::Undrain(worker) => {
                self.drains.end(worker, now);
            }
            Event::Desired(desired) => {
                // Nothing grants a stream of a set that is gone.
                self.handovers.0.retain(|stream, _| desired.sets.contains_key(&stream.set));
                self.held.get_or_insert_with(|| names(desired));
                self.desired = Some(Arc::clone(desired));
            }
            _ => {}
        }
    }
}

fn names(desired: &Desired) -> BTreeSet<ClusterName> {
    desired.clusters.keys().cloned().collect()
}

/// When some things began.
#[derive(Debug)]
struct Begun<K>(HashMap<K, Moment>);

impl<K> Default for Begun<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> Begun<K> {
    fn begin(&mut self, key: &K, now: Moment) {
        if self.0.len() < MEASURED_MAX {
            self.0.entry(key.clone()).or_insert(now);
        }
    }

    fn end(&mut self, key: &K, now: Moment) -> Option<Duration> {
        self.0.remove(key).map(|begun| now.since(begun))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_coordinator_core::desired::Cluster;
    use leasehold_types::{Epoch, SetName, StreamName, Token, WorkerName};

    use super::*;

    fn seconds(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(seconds)
    }

    fn worker(name: &str) -> WorkerKey {
        let cluster = ClusterName::new("builds").expect("a name");
        WorkerKey { cluster, worker: WorkerName::new(name).expect("a name") }
    }

    fn stream() -> StreamKey {
        StreamKey { set: SetName::new("feeds").expect("a name"), stream: StreamName::first() }
    }

    fn token(seq: u64) -> Token {
        Token { epoch: Epoch(1), seq }
    }

    #[test]
    fn a_handover_lasts_from_the_revoke_until_the_next_grant() {
        let mut durations = Durations::default();
        let granted = |seq| Notice::StreamGranted {
            worker: worker("a"),
            stream: stream(),
            token: token(seq),
        };
        let revoked =
            Notice::StreamRevoked { worker: worker("a"), stream: stream(), token: token(1) };
        assert_eq!(durations.update(&granted(1), seconds(1)), None, "it had no owner before");
        assert_eq!(durations.update(&revoked, seconds(2)), None);
        assert_eq!(durations.update(&revoked, seconds(3)), None, "asked again");
        let took = Measured::Handover(Duration::from_secs(4));
        assert_eq!(durations.update(&granted(2), seconds(6)), Some(took));
        assert_eq!(durations.update(&granted(3), seconds(7)), None);
    }

    /// One cluster and no set.
    fn desired() -> Event {
        let clusters = [(worker("a").cluster, Arc::new(Cluster::example()))].into();
        Event::Desired(Arc::new(Desired { clusters, ..Desired::default() }))
    }

    #[test]
    fn a_stream_whose_set_is_removed_is_not_handed_over() {
        let mut durations = Durations::default();
        let (stream, worker) = (stream(), worker("a"));
        let [first, second] = [1, 2].map(token);
        let revoked =
            Notice::StreamRevoked { worker: worker.clone(), stream: stream.clone(), token: first };
        durations.update(&revoked, seconds(1));
        durations.record_event(&desired(), seconds(2));
        let granted = Notice::StreamGranted { worker, stream, token: second };
        assert_eq!(durations.update(&granted, seconds(9)), None, "the set is there again");
    }

    #[test]
    fn a_drain_that_is_taken_back_or_begins_anew_is_not_measured() {
        let mut durations = Durations::default();
        let [started, gone, joined] =
            [Notice::DrainStarted, Notice::Gone, Notice::Joined].map(|of| of(worker("a")));
        durations.update(&started, seconds(1));
        let took = Measured::Drain(Duration::from_secs(2));
        assert_eq!(durations.update(&gone, seconds(3)), Some(took));
        assert_eq!(durations.update(&gone, seconds(4)), None);
        durations.update(&started, seconds(5));
        durations.record_event(&Event::Undrain(worker("a")), seconds(6));
        assert_eq!(durations.update(&gone, seconds(7)), None);
        durations.update(&started, seconds(8));
        durations.update(&joined, seconds(9));
        assert_eq!(durations.update(&gone, seconds(10)), None);
    }

    #[test]
    fn a_failover_lasts_until_a_cluster_is_planned_and_forgets_the_term_before() {
        let mut durations = Durations::default();
        let planned = Notice::HoldEnded(worker("a").cluster);
        assert_eq!(durations.update(&planned, seconds(1)), None);
        durations.record_event(&desired(), seconds(1));
        durations.update(&Notice::DrainStarted(worker("a")), seconds(1));
        durations.update(&Notice::Elected(Epoch(2)), seconds(2));
        let took = Measured::Failover(Duration::from_secs(3));
        assert_eq!(durations.update(&planned, seconds(5)), Some(took));
        assert_eq!(durations.update(&planned, seconds(6)), None, "made again in the term");
        assert_eq!(durations.update(&Notice::Gone(worker("a")), seconds(6)), None);
        durations.update(&Notice::Deposed(Epoch(2)), seconds(7));
        assert_eq!(durations.update(&planned, seconds(8)), None);
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let mut begun = Begun::default();
        for key in 0..=MEASURED_MAX {
            begun.begin(&key, seconds(1));
        }
        assert_eq!(begun.end(&MEASURED_MAX, seconds(2)), None, "one too many");
        assert_eq!(begun.end(&0, seconds(2)), Some(Duration::from_secs(1)));
    }
}
