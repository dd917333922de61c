//! Which clusters have changed in facts that reconcilers act on, so that nobody has to compare all
//! workers again and again.
//!
//! Each turn touches the workers whose messages it takes and of which its notices tell. At its end
//! these are compared with what they were when they were last touched. A beat that reports the same
//! as the one before is no change. So the cost grows with the messages, and not with the fleet.
//!
//! **Invariant**: every change of [`WorkerFacts`] is in a turn that touches the worker, but for
//! unreported leases that end by time: who depends on these asks the core until when they may last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_types::{ClusterName, Load, Moment, WorkerKey};
use tokio::sync::broadcast;

use crate::port::ChangedClusters;

/// The turns by which a watcher may lag behind.
const TURNS_MAX: usize = 1_024;

/// Finds and sends the clusters that change.
pub(super) struct ClusterChanges {
    sender: broadcast::Sender<ChangedClusters>,
    workers_by_conn: HashMap<ConnId, WorkerKey>,
    /// The workers when they were last touched.
    known: BTreeMap<WorkerKey, WorkerFacts>,
    /// The workers of this turn.
    touched: BTreeSet<WorkerKey>,
    /// The clusters that have changed in this turn by themselves.
    changed: BTreeSet<ClusterName>,
    /// The desired state in force after the last turn.
    desired: Arc<Desired>,
}

/// The facts of a worker that reconcilers act on: whether it runs jobs, and not how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkerFacts {
    presence: Presence,
    drains: bool,
    drain_ordered: bool,
    /// Whether jobs run, as reported; `None` if unknown.
    runs_jobs: Option<bool>,
    may_run_jobs: bool,
    holds_streams: bool,
    has_load: bool,
}

impl ClusterChanges {
    pub(super) fn new() -> Self {
        Self {
            sender: broadcast::channel(TURNS_MAX).0,
            workers_by_conn: HashMap::new(),
            known: BTreeMap::new(),
            touched: BTreeSet::new(),
            changed: BTreeSet::new(),
            desired: Arc::default(),
        }
    }

    /// What watchers subscribe to.
    pub(super) fn sender(&self) -> broadcast::WeakSender<ChangedClusters> {
        self.sender.downgrade()
    }

    /// Whether somebody watches. A later watcher begins with a read of everything.
    fn is_watched(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    /// Touches the workers of an event that the core is about to take.
    pub(super) fn record_event(&mut self, event: &Event) {
        let is_watched = self.is_watched();
        if !is_watched {
            self.known.clear();
        }
        match event {
            Event::Hello(conn, hello, _) => {
                let (cluster, worker) = (hello.cluster.clone(), hello.worker.clone());
                let key = WorkerKey { cluster, worker };
                self.touched.extend(is_watched.then(|| key.clone()));
                self.workers_by_conn.insert(*conn, key);
            }
            Event::Closed(conn) => {
                let closed = self.workers_by_conn.remove(conn);
                self.touched.extend(closed.filter(|_| is_watched));
            }
            // Watchers of a new term read everything.
            Event::Elected(_) | Event::Deposed { .. } => self.known.clear(),
            _ if !is_watched => {}
            Event::Report(conn, _) | Event::Beat(conn, _) => {
                self.touched.extend(self.workers_by_conn.get(conn).cloned());
            }
            Event::Drain(key) | Event::Undrain(key) => _ = self.touched.insert(key.clone()),
            Event::Gone(keys) | Event::Removed(keys) => self.touched.extend(keys.iter().cloned()),
            Event::Sent(_)
            | Event::Desired(_)
            | Event::NamespacesRead(_)
            | Event::Renewed(_)
            | Event::TermStands { .. }
            | Event::Registered(_)
            | Event::Unregistered(_)
            | Event::Avoid(_)
            | Event::Wake => {}
        }
    }

    /// Touches the worker or the cluster of a notice.
    pub(super) fn record_notice(&mut self, notice: &Notice) {
        if !self.is_watched() {
            return;
        }
        match notice {
            Notice::HoldEnded(cluster) => _ = self.changed.insert(cluster.clone()),
            Notice::Joined(worker)
            | Notice::Disconnected(worker)
            | Notice::Lost(worker)
            | Notice::GivenUp { worker, .. }
            | Notice::DrainStarted(worker)
            | Notice::Failing { worker, .. }
            | Notice::Recovered(worker)
            | Notice::Gone(worker)
            | Notice::PoolGranted { worker, .. }
            | Notice::StreamGranted { worker, .. }
            | Notice::StreamRevoked { worker, .. }
            | Notice::StreamFreed { worker, .. } => _ = self.touched.insert(worker.clone()),
            Notice::Elected(_)
            | Notice::Deposed(_)
            | Notice::NameRefused { .. }
            | Notice::Pipeline { .. }
            | Notice::Binding { .. }
            | Notice::Endpoints { .. }
            | Notice::EpochAhead { .. }
            | Notice::EpochRepeated { .. }
            | Notice::ProtocolViolation { .. } => {}
        }
    }

    /// Ends a turn: sends the clusters that have changed in it.
    pub(super) fn publish(&mut self, core: &Core, now: Moment) {
        let touched = std::mem::take(&mut self.touched);
        let mut changed = std::mem::take(&mut self.changed);
        if !self.is_watched() {
            self.known.clear();
            return;
        }
        for key in touched {
            let before = self.known.get(&key).copied();
            let facts = core.worker(&key, now).as_ref().map(WorkerFacts::of);
            if facts == before {
                continue;
            }
            changed.insert(key.cluster.clone());
            match facts {
                Some(facts) => _ = self.known.insert(key, facts),
                None => _ = self.known.remove(&key),
            }
        }
        let before = std::mem::replace(&mut self.desired, Arc::clone(core.desired()));
        if !Arc::ptr_eq(&before, &self.desired) {
            changed.extend(differing_clusters(&before, &self.desired));
        }
        if !changed.is_empty() {
            // The last watcher may have ended meanwhile.
            let _ = self.sender.send(Arc::new(changed));
        }
    }
}

impl WorkerFacts {
    fn of(view: &WorkerView) -> Self {
        Self {
            presence: view.presence,
            drains: view.drains(),
            drain_ordered: view.drain_ordered,
            runs_jobs: view.running.map(|running| running > 0),
            may_run_jobs: view.committed > 0,
            holds_streams: view.streams > 0,
            has_load: view.load > Load::ZERO,
        }
    }
}

/// The clusters that one of two desired states has and the other has not, or not with this
/// definition, these sets or these pipelines.
fn differing_clusters(before: &Desired, after: &Desired) -> BTreeSet<ClusterName> {
    let names = before.clusters.keys().chain(after.clusters.keys());
    let differs = |name: &&ClusterName| before.clusters.get(*name) != after.clusters.get(*name);
    let mut clusters: BTreeSet<_> = names.filter(differs).cloned().collect();
    let sets = differing(&before.sets, &after.sets);
    clusters.extend(sets.map(|set| set.cluster.clone()));
    let pipelines = differing(&before.pipelines, &after.pipelines);
    let nodes = pipelines.flat_map(|pipeline| pipeline.nodes.values());
    clusters.extend(nodes.map(|node| node.class.clone()));
    clusters
}

/// The values of both maps that are not the same under one name. They may be large: another copy
/// counts as another value.
fn differing<'a, K: Ord, T>(
    before: &'a BTreeMap<K, Arc<T>>,
    after: &'a BTreeMap<K, Arc<T>>,
) -> impl Iterator<Item = &'a Arc<T>> {
    let differs_in = |other: &'a BTreeMap<K, Arc<T>>| {
        move |(name, value): &(&'a K, &'a Arc<T>)| {
            other.get(*name).is_none_or(|other| !Arc::ptr_eq(other, value))
        }
    };
    let gone = before.iter().filter(differs_in(after));
    let new = after.iter().filter(differs_in(before));
    gone.chain(new).map(|(_, value)| value)
}

impl fmt::Debug for ClusterChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterChanges").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_coordinator_core::Config;
    use leasehold_coordinator_core::desired::Cluster;
    use leasehold_coordinator_core::effect::Effect;
    use leasehold_coordinator_core::event::Elected;
    use leasehold_types::message::{Beat, DrainPhase, Hello, Jobs, Report};
    use leasehold_types::{Epoch, Nonce, TermId, WorkerName};

    use super::*;

    const CONN: ConnId = ConnId(1);

    /// A core that leads two clusters, and what is published of it.
    struct Published {
        core: Core,
        changes: ClusterChanges,
        changed: broadcast::Receiver<ChangedClusters>,
        now: Moment,
        nonce: Nonce,
    }

    impl Published {
        fn new() -> Self {
            let changes = ClusterChanges::new();
            let changed = changes.sender.subscribe();
            let (core, now) = (Core::new(Config::default()), Moment(1_000_000_000));
            Self { core, changes, changed, now, nonce: Nonce(0) }
        }

        /// The clusters that a turn with this event changes.
        fn turn(&mut self, event: Event) -> Vec<String> {
            self.now = self.now + Duration::from_millis(20);
            self.changes.record_event(&event);
            self.core.handle(event, self.now);
            self.core.settle(self.now, self.now);
            while let Some(effect) = self.core.poll_effect() {
                if let Effect::Notice(notice) = effect {
                    self.changes.record_notice(&notice);
                }
            }
            self.changes.publish(&self.core, self.now);
            let changed = self.changed.try_recv().unwrap_or_default();
            changed.iter().map(ToString::to_string).collect()
        }

        fn lead(&mut self) {
            let elected = Elected {
                epoch: Epoch(1),
                term: TermId(0),
                cell: None,
                until: self.now + Duration::from_secs(60),
                predecessor_end: self.now,
                exposed: BTreeMap::new(),
                unreadable: BTreeSet::new(),
            };
            self.turn(Event::Elected(elected));
        }

        fn report(&mut self) -> Vec<String> {
            self.nonce = self.nonce.next();
            self.turn(Event::Report(CONN, Report { nonce: self.nonce, ..Report::example() }))
        }

        fn beat(&mut self, jobs: u32, drain: DrainPhase) -> Vec<String> {
            self.nonce = self.nonce.next();
            let (nonce, jobs) = (self.nonce, Jobs::Running(jobs));
            self.turn(Event::Beat(CONN, Beat { nonce, jobs, drain, ..Beat::example() }))
        }
    }

    fn cluster(name: &str) -> ClusterName {
        ClusterName::new(name).expect("a name")
    }

    fn desired(jobs_max: u32) -> Event {
        let spec = |jobs_max| Arc::new(Cluster { jobs_max, ..Cluster::example() });
        let clusters = [(cluster("a"), spec(jobs_max)), (cluster("b"), spec(8))];
        Event::Desired(Arc::new(Desired { clusters: clusters.into(), ..Desired::default() }))
    }

    #[test]
    fn a_cluster_changes_with_what_its_workers_hold_and_not_with_every_beat() {
        let mut published = Published::new();
        published.turn(desired(8));
        published.lead();
        let worker = WorkerName::new("w-0").expect("a name");
        let hello = Hello {
            epoch_seen: Some(Epoch(1)),
            ..Hello::example(WorkerKey { cluster: cluster("b"), worker: worker.clone() })
        };
        published.turn(Event::Hello(CONN, hello, None));
        assert_eq!(published.report(), ["b"], "the worker has joined");
        assert_eq!(published.beat(0, DrainPhase::Working), [""; 0]);
        assert_eq!(published.beat(1, DrainPhase::Working), ["b"]);
        assert_eq!(published.beat(2, DrainPhase::Working), [""; 0], "it runs jobs as before");
        assert_eq!(published.beat(2, DrainPhase::Draining), ["b"]);
        let key = WorkerKey { cluster: cluster("b"), worker };
        assert_eq!(published.turn(Event::Drain(key)), ["b"]);
        assert_eq!(published.beat(0, DrainPhase::Draining), ["b"]);
        assert_eq!(published.turn(Event::Closed(CONN)), ["b"]);
        assert_eq!(published.turn(Event::Wake), [""; 0]);
    }

    #[test]
    fn a_cluster_changes_when_another_definition_is_in_force() {
        let mut published = Published::new();
        assert_eq!(published.turn(desired(8)), ["a", "b"]);
        assert_eq!(published.turn(desired(8)), [""; 0]);
        assert_eq!(published.turn(desired(9)), ["a"]);
        assert_eq!(published.turn(Event::Desired(Arc::default())), ["a", "b"]);
    }

    #[test]
    fn a_watcher_misses_no_change_of_the_time_before_it() {
        let mut published = Published::new();
        published.turn(desired(8));
        published.changed = broadcast::channel(1).1;
        published.lead();
        let worker = WorkerName::new("w-0").expect("a name");
        let hello = Hello {
            epoch_seen: Some(Epoch(1)),
            ..Hello::example(WorkerKey { cluster: cluster("b"), worker })
        };
        published.turn(Event::Hello(CONN, hello, None));
        published.report();
        published.changed = published.changes.sender.subscribe();
        assert_eq!(published.beat(0, DrainPhase::Working), ["b"], "it compares with nothing");
        assert_eq!(published.beat(0, DrainPhase::Working), [""; 0]);
    }
}
