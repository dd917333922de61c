//! What a reconciliation of fleets reads of the core, and when it has to be read again although no
//! trigger says so.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::{ClassView, Leadership, Presence, WorkerView};
use leasehold_driver::port::{Handle, Stopped};
use leasehold_types::{ClusterName, Epoch, Moment, SetName, WorkerKey, WorkerName};

use super::restart::StreamOwnership;

/// The interval between two reads of what has no trigger, and of all streams of a cluster's sets.
pub(super) const SLOW_READ_INTERVAL: Duration = Duration::from_secs(1);

/// The workers of a fleet.
#[derive(Debug, Default)]
pub(super) struct FleetWorkers {
    pub(super) by_name: BTreeMap<WorkerName, WorkerView>,
    /// Until when the unreported leases of one of them may last: their end has no notice.
    pub(super) unreported_until: Option<Moment>,
}

/// The workers of which the core is asked whether they can be removed.
#[derive(Debug)]
pub(super) enum RemovableQuery {
    /// Any workers of a class.
    Any(ClusterName),
    /// This worker, if any.
    One(Option<WorkerKey>),
}

/// Reads the core, and keeps what is read at intervals only.
#[derive(Debug)]
pub(super) struct CoreReads {
    handle: Handle,
    /// The view of each class.
    classes: BTreeMap<ClusterName, ClassView>,
    /// When the streams of each cluster with `refresh: Restart` were read.
    ownership_read_at: BTreeMap<ClusterName, Moment>,
}

impl CoreReads {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, classes: BTreeMap::new(), ownership_read_at: BTreeMap::new() }
    }

    /// Forgets what was read of an earlier term.
    pub(super) fn clear(&mut self) {
        self.classes.clear();
        self.ownership_read_at.clear();
    }

    /// The term and the workers of these fleets, but for fleets that the core does not know; `None`
    /// if this replica does not lead.
    pub(super) async fn workers(
        &self,
        names: Vec<ClusterName>,
    ) -> Result<Option<(Epoch, BTreeMap<ClusterName, FleetWorkers>)>, Stopped> {
        let asked = self.handle.ask(move |core, now| match core.leadership() {
            Leadership::Standby(_) => None,
            Leadership::Leader(epoch) => {
                let of = |name| Some((workers(core, &name, now)?, name));
                Some((epoch, names.into_iter().filter_map(of).collect::<Vec<_>>()))
            }
        });
        let found = asked.await?;
        let by_fleet = |(epoch, found): (_, Vec<(FleetWorkers, ClusterName)>)| {
            (epoch, found.into_iter().map(|(workers, name)| (name, workers)).collect())
        };
        Ok(found.map(by_fleet))
    }

    /// The view of a class as last read.
    pub(super) fn class(&self, name: &ClusterName) -> Option<&ClassView> {
        self.classes.get(name)
    }

    /// Whether no class was read in this term.
    pub(super) fn has_no_class(&self) -> bool {
        self.classes.is_empty()
    }

    /// Reads the view of every class. Returns those whose view has changed.
    pub(super) async fn read_classes(&mut self) -> Result<Vec<ClusterName>, Stopped> {
        let look = self.handle.ask(|core, now| {
            let views = core.classes(now).into_iter();
            views.map(|view| (view.name.clone(), view)).collect()
        });
        let before = std::mem::replace(&mut self.classes, look.await?);
        let names = before.keys().chain(self.classes.keys());
        let mut changed: Vec<_> =
            names.filter(|name| before.get(*name) != self.classes.get(*name)).cloned().collect();
        changed.dedup();
        Ok(changed)
    }

    /// Reads the owners of the streams of these sets, those of each cluster at most every
    /// [`SLOW_READ_INTERVAL`]: reading them takes long. Restarts are decided from a fresh read
    /// only.
    pub(super) async fn read_ownership(
        &mut self,
        sets_by_cluster: BTreeMap<ClusterName, Vec<SetName>>,
        now: Moment,
    ) -> Result<BTreeMap<ClusterName, StreamOwnership>, Stopped> {
        let read_at = &self.ownership_read_at;
        let is_due = |name: &ClusterName| {
            read_at.get(name).is_none_or(|at| now.since(*at) >= SLOW_READ_INTERVAL)
        };
        let sets_by_cluster: BTreeMap<ClusterName, Vec<SetName>> =
            sets_by_cluster.into_iter().filter(|(name, _)| is_due(name)).collect();
        if sets_by_cluster.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.ownership_read_at.extend(sets_by_cluster.keys().map(|name| (name.clone(), now)));
        let asked = self.handle.ask(move |core, _| {
            let of = |(cluster, sets): (_, Vec<_>)| (cluster, StreamOwnership::of(core, &sets));
            sets_by_cluster.into_iter().map(of).collect()
        });
        asked.await
    }

    /// When the owners of a cluster's streams can be read next.
    pub(super) fn ownership_due(&self, name: &ClusterName) -> Option<Moment> {
        self.ownership_read_at.get(name).map(|at| *at + SLOW_READ_INTERVAL)
    }

    /// Asks which workers can be removed.
    pub(super) async fn removable(
        &self,
        asked: Vec<RemovableQuery>,
    ) -> Result<Vec<Vec<WorkerName>>, Stopped> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let asked = self.handle.ask(move |core, now| {
            let answer = |removable| match removable {
                RemovableQuery::Any(class) => core.removable(&class, now),
                RemovableQuery::One(worker) => {
                    let worker = worker.filter(|worker| core.is_removable(worker));
                    worker.into_iter().map(|key: WorkerKey| key.worker).collect()
                }
            };
            asked.into_iter().map(answer).collect()
        });
        asked.await
    }
}

fn workers(core: &Core, name: &ClusterName, now: Moment) -> Option<FleetWorkers> {
    let mut workers = FleetWorkers::default();
    for view in core.workers(name, now)? {
        if view.presence == Presence::Unreported {
            let until = core.unreported_until(&view.key);
            workers.unreported_until = workers.unreported_until.into_iter().chain(until).min();
        }
        workers.by_name.insert(view.key.worker.clone(), view);
    }
    Some(workers)
}
