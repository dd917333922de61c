//! Reconciles fleets, each by its name and only when something has changed that its plan depends
//! on: read its state, plan, make the calls, record events. A key is the name of a fleet, or of a
//! deleted one that has left pods behind.
//!
//! # Triggers
//!
//! * A pod: the fleet in its label, and the one that was in it before.
//! * A Deployment, a StatefulSet or a PodDisruptionBudget: the fleets that create, adopt or own it.
//! * A node: the fleets with pods on it.
//! * A WorkerCluster or a WorkerClass, without its status: the fleet of its name.
//! * A StreamSet with `refresh: Restart`: its cluster.
//! * The core's view of a worker: its cluster. That is its presence, its drain and an order of the
//!   admin API about it, whether it runs jobs, and whether it holds streams. A definition that is
//!   in force and the end of a hold count, too. See [`Handle::watch_clusters`].
//! * The core's view of a class (load, workers, what waits): the class.
//! * An answer of the API server: the fleet that the call was for.
//! * Leadership, a list that is complete, and rights: every fleet.
//!
//! The view of a class has no cheap changes: the planner computes it. It is read every second where
//! there are classes, and compared with the one before.
//!
//! # Due times
//!
//! A comparison with the present time is a trigger, too. Each plan returns the earliest moment at
//! which it could differ by time alone: a drain passes its deadline, a pod counts as idle, a
//! workload is to be repaired or was not seen after its creation, the replicas are no longer left
//! to another manager, a recommendation leaves the stabilization window, the leases of a silent
//! worker end. To these come: an object may be written again after a failure or a write, the
//! unreported leases of a worker end, the owners of streams can be read again, and what is
//! removable from a class that is too large is asked again.
//!
//! # Safety net
//!
//! A trigger that is missed costs at most a round of the re-scan ([`Rescan`]). A receiver of
//! changes that lags behind makes every fleet due.
//!
//! # Work
//!
//! Fleets that are due together are read together. A fleet is planned again at once after a change,
//! but planning takes at most a twentieth of the time. Calls run beside the planning of other
//! fleets ([`FleetCalls`]).
//!
//! **Invariant**: a replica that does not lead plans nothing; a new term starts without any state
//! of an earlier one, and with every fleet due.
//!
//! [`Handle::watch_clusters`]: leasehold_driver::port::Handle::watch_clusters

mod outcomes;
mod planning;
mod triggers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_driver::clock;
use leasehold_driver::port::Stopped;
use leasehold_types::{ClusterName, Epoch};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::planning::PlannedFleet;
use super::calls::FleetCalls;
use super::core_reads::{CoreReads, FleetWorkers};
use super::events::FleetEvents;
use super::fleet_index::FleetIndex;
use super::pod_index::PodIndex;
use super::rescan::{Rescan, TICK};
use super::state::ReconcilerState;
use super::workload_caches::WorkloadCaches;
use super::{Context, Workloads, drains};
use crate::nodes::ClosedNodes;
use crate::workqueue::WorkQueue;

/// Fleets that are reconciled together: one read of the core serves them all.
const BATCH_MAX: usize = 1_024;
/// Calls that one reconciliation of a fleet makes; the next one finds what is left.
const ACTIONS_MAX: usize = 64;
/// From one plan of a fleet to the next passes this many times the time that a plan takes.
const SPACING_FACTOR: u32 = 20;
/// The bounds of that time.
const SPACING: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// The reconciler of fleets.
pub(super) struct FleetReconciler {
    context: Context,
    caches: WorkloadCaches,
    /// The nodes that take no new pods, as last processed.
    nodes: ClosedNodes,
    fleets: FleetIndex,
    pods: PodIndex,
    /// Whether the objects of each watched scope can be read, as last processed.
    readable: Vec<bool>,
    reads: CoreReads,
    /// The fleets to reconcile.
    queue: WorkQueue<ClusterName>,
    rescan: Rescan,
    calls: FleetCalls,
    /// The term that `state` is of; `None` while this replica is not known to lead.
    term: Option<Epoch>,
    state: ReconcilerState,
    events: FleetEvents,
    workload_states: watch::Sender<Workloads>,
}

impl FleetReconciler {
    /// Starts its watches.
    pub(super) fn new(context: Context, workload_states: watch::Sender<Workloads>) -> Self {
        Self {
            caches: WorkloadCaches::start(&context),
            nodes: ClosedNodes::default(),
            fleets: FleetIndex::default(),
            pods: PodIndex::default(),
            readable: Vec::new(),
            reads: CoreReads::new(context.handle.clone()),
            queue: WorkQueue::new(BATCH_MAX),
            rescan: Rescan::default(),
            calls: FleetCalls::new(context.applier.clone(), context.pods.clone()),
            term: None,
            state: ReconcilerState::default(),
            events: FleetEvents::new(context.events.clone()),
            workload_states,
            context,
        }
    }

    /// Reconciles until the driver ends.
    pub(super) async fn run(mut self) -> Result<(), Stopped> {
        let mut changes = self.context.handle.watch()?;
        let mut clusters = self.context.handle.watch_clusters()?;
        let mut objects = self.context.objects.clone();
        objects.mark_changed();
        let mut pods = self.context.pods.changes();
        self.read_all_pods();
        let mut cache_changes = self.caches.changes(self.context.nodes.changed());
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.queue.next_due().filter(|_| self.is_synced());
            let wait = due.map_or_else(Default::default, |at| at.since(clock::now()));
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) => self.on_change(&change.change),
                    Err(RecvError::Lagged(_)) => self.enqueue_all(),
                    Err(RecvError::Closed) => return Err(Stopped),
                },
                changed = clusters.recv() => match changed {
                    Ok(changed) => self.enqueue(changed.iter()),
                    Err(RecvError::Lagged(_)) => self.enqueue_all(),
                    Err(RecvError::Closed) => return Err(Stopped),
                },
                Ok(()) = objects.changed() => {
                    let seen = objects.borrow_and_update().clone();
                    self.on_objects_changed(seen);
                }
                change = pods.recv() => self.on_pod_changes(change, &mut pods),
                Some(_) = cache_changes.next() => self.on_caches_changed(),
                Some((call, outcome)) = self.calls.next_done() => self.finish_call(call, outcome),
                _ = ticks.tick() => self.on_tick().await?,
                () = sleep(wait), if due.is_some() => {}
            }
            if self.is_synced() {
                self.start_due().await?;
            }
        }
    }

    fn is_synced(&self) -> bool {
        self.context.pods.is_synced() && self.caches.are_complete()
    }

    /// Reconciles the fleets that are due.
    async fn start_due(&mut self) -> Result<(), Stopped> {
        let started_at = clock::now();
        let names = self.queue.take_due(started_at);
        if names.is_empty() {
            return Ok(());
        }
        let Some((epoch, workers)) = self.reads.workers(names.clone()).await? else {
            self.reset();
            return Ok(());
        };
        if self.term != Some(epoch) {
            self.reset();
            self.term = Some(epoch);
            self.enqueue_all();
            return Ok(());
        }
        self.reconcile(&names, workers).await?;
        let now = clock::now();
        let (least, most) = SPACING;
        let spacing = (now.since(started_at) * SPACING_FACTOR).clamp(least, most);
        for name in names {
            if self.calls.are_done(&name) {
                self.queue.done(&name);
            }
            if self.is_known(&name) {
                self.queue.delay(&name, started_at + spacing);
            }
        }
        Ok(())
    }

    /// Whether a name has a fleet, or pods that are left of one.
    fn is_known(&self, name: &ClusterName) -> bool {
        self.fleets.has(name) || self.pods.pods_of(name).next().is_some()
    }

    /// Plans these fleets, orders drains, and starts the calls.
    async fn reconcile(
        &mut self,
        names: &[ClusterName],
        workers: BTreeMap<ClusterName, FleetWorkers>,
    ) -> Result<(), Stopped> {
        let planned = self.plan_fleets(names, workers).await?;
        self.publish(names, &planned);
        let (mut orders, mut calls) = (Vec::new(), Vec::new());
        for planned in planned {
            let PlannedFleet { name, fleet, plan } = planned;
            if let Some(at) = plan.due {
                self.queue.add(name.clone(), at);
            }
            if let Some(fleet) = &fleet {
                self.record_plan(&name, fleet, &plan);
            }
            orders.extend(plan.orders);
            calls.push((self.writable(&name, plan.actions), name, fleet));
        }
        drains::order(&self.context, orders).await?;
        for (actions, name, fleet) in calls {
            self.calls.add(&name, fleet.as_ref(), actions);
        }
        Ok(())
    }

    /// Publishes the states of the workloads of these fleets to the writer of statuses.
    fn publish(&self, names: &[ClusterName], planned: &[PlannedFleet]) {
        let mut states: BTreeMap<&ClusterName, _> = names.iter().map(|name| (name, None)).collect();
        states.extend(planned.iter().map(|planned| (&planned.name, planned.plan.state.as_ref())));
        self.workload_states.send_if_modified(|shown| {
            let is_new = |(name, state): &(&ClusterName, Option<_>)| shown.get(*name) != *state;
            let new: Vec<_> = states.into_iter().filter(is_new).collect();
            let is_new = !new.is_empty();
            for (name, state) in new {
                let shown = Arc::make_mut(shown);
                match state {
                    Some(state) => _ = shown.insert(name.clone(), state.clone()),
                    None => _ = shown.remove(name),
                }
            }
            is_new
        });
    }

    /// Another leader may write from now on: calls are cancelled.
    fn reset(&mut self) {
        self.term = None;
        self.queue.clear();
        self.calls.cancel_all();
        self.reads.clear();
        self.state = ReconcilerState::default();
    }
}
