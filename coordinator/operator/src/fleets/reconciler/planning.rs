//! Reads the observed state of fleets, and plans them.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_driver::clock;
use leasehold_driver::port::Stopped;
use leasehold_manifest::manifest::WorkloadKind;
use leasehold_types::{ClusterName, Moment, WorkerName};

use super::super::action::Action;
use super::super::core_reads::{FleetWorkers, RemovableQuery, SLOW_READ_INTERVAL};
use super::super::fleet::Fleet;
use super::super::orphans::{self, OrphanPlan};
use super::super::plan::{FleetInput, FleetPlan, plan};
use super::super::restart::StreamOwnership;
use super::super::scaling::{self, ClassDemand, DesiredScale};
use super::super::worker_pod::WorkerPod;
use super::super::workload::{self, WorkloadFacts};
use super::super::{evictions, scale_in};
use super::{ACTIONS_MAX, FleetReconciler};

/// A fleet and its plan.
pub(super) struct PlannedFleet {
    pub(super) name: ClusterName,
    /// `None` for the pods of a deleted fleet.
    pub(super) fleet: Option<Fleet>,
    pub(super) plan: FleetPlan,
}

/// The observed state of a fleet.
struct FleetSnapshot {
    name: ClusterName,
    fleet: Fleet,
    /// Its pods, all of them.
    worker_pods: Vec<WorkerPod>,
    workload: Option<Arc<WorkloadFacts>>,
    scale: DesiredScale,
    /// When it is to be read again although nothing changes.
    due: Option<Moment>,
}

impl FleetReconciler {
    /// Plans these fleets, but for those that the core does not know, which are invalid or not read
    /// yet, and those that cannot be read.
    pub(super) async fn plan_fleets(
        &mut self,
        names: &[ClusterName],
        mut workers: BTreeMap<ClusterName, FleetWorkers>,
    ) -> Result<Vec<PlannedFleet>, Stopped> {
        let objects = Arc::clone(self.fleets.objects());
        if !objects.classes.is_empty() && self.reads.has_no_class() {
            self.reads.read_classes().await?;
        }
        let restart_sets = names.iter().filter_map(|name| {
            let sets = self.fleets.restart_sets(name)?;
            Some((name.clone(), sets.clone()))
        });
        let restart_sets = restart_sets.collect();
        let ownership = self.reads.read_ownership(restart_sets, clock::now()).await?;
        let mut snapshots = Vec::new();
        let mut left = BTreeMap::new();
        for name in names {
            let worker_pods = self.worker_pods(name);
            match Fleet::find(&objects, name) {
                Some(fleet) => {
                    let workers = workers.remove(name);
                    snapshots.extend(self.snapshot(name, fleet, worker_pods, workers));
                }
                None => {
                    self.state.forget_fleet(name);
                    _ = left.insert(name.clone(), worker_pods);
                }
            }
        }
        self.read_removable(&mut snapshots).await?;
        let mut planned = self.plan_orphans(left).await?;
        for snapshot in snapshots {
            let ownership = ownership.get(&snapshot.name);
            planned.push(self.plan(snapshot, ownership));
        }
        Ok(planned)
    }

    /// The pods with the label of a fleet.
    fn worker_pods(&mut self, name: &ClusterName) -> Vec<WorkerPod> {
        let found = self.pods.pods_of(name);
        let found = found.filter_map(|pod| self.context.pods.find(&pod.namespace, &pod.name));
        let mut worker_pods = Vec::new();
        for pod in found.filter(|pod| pod.cluster.as_ref() == Some(name)) {
            worker_pods.push(WorkerPod::new(Arc::clone(&pod), &self.state.drain_marks, None));
            self.state.observe(&pod);
        }
        worker_pods
    }

    /// The observed state of a fleet.
    fn snapshot(
        &mut self,
        name: &ClusterName,
        fleet: Fleet,
        mut worker_pods: Vec<WorkerPod>,
        workers: Option<FleetWorkers>,
    ) -> Option<FleetSnapshot> {
        let now = clock::now();
        let mut workers = workers.filter(|_| self.is_readable(name))?;
        for worker_pod in &mut worker_pods {
            let worker = WorkerName::present_name(&worker_pod.pod.pod.name).ok();
            worker_pod.view = worker.and_then(|worker| workers.by_name.remove(&worker));
        }
        let workload = self.caches.workload(&fleet);
        let current = workload.as_ref().map(|facts| facts.replicas);
        let scale = match &fleet {
            Fleet::Cluster(cluster) => {
                self.state.windows.remove(name);
                DesiredScale::of(workload::replicas(&cluster.spec.0))
            }
            Fleet::Class(class) => {
                let demand = ClassDemand::of(self.reads.class(name)?.clone(), &worker_pods);
                let window = self.state.windows.entry(name.clone()).or_default();
                scaling::decide(&class.spec.0, &demand, current, window, now)
            }
        };
        // Their end may have to wait for a renewal of leadership.
        let due = workers.unreported_until.map(|until| until.max(now + SLOW_READ_INTERVAL));
        let name = name.clone();
        Some(FleetSnapshot { name, fleet, worker_pods, workload, scale, due })
    }

    /// Asks which workers can be removed from classes with too many.
    async fn read_removable(&self, snapshots: &mut [FleetSnapshot]) -> Result<(), Stopped> {
        let is_too_large = |snapshot: &FleetSnapshot| {
            let most = snapshot.workload.as_ref().map_or(0, |facts| facts.replicas);
            snapshot.scale.removable.is_some() && most > snapshot.scale.replicas
        };
        let snapshots: Vec<&mut FleetSnapshot> =
            snapshots.iter_mut().filter(|snapshot| is_too_large(snapshot)).collect();
        let of_case = |snapshot: &&mut FleetSnapshot| match &snapshot.workload {
            // A StatefulSet removes only its highest ordinal.
            Some(facts) if facts.kind == WorkloadKind::StatefulSet => RemovableQuery::One(
                scale_in::next_stateful_set_pod(&snapshot.worker_pods).map(|view| view.key.clone()),
            ),
            Some(_) | None => RemovableQuery::Any(snapshot.name.clone()),
        };
        let asked = snapshots.iter().map(of_case).collect();
        let removable = self.reads.removable(asked).await?;
        let again_at = clock::now() + SLOW_READ_INTERVAL;
        for (snapshot, removable) in snapshots.into_iter().zip(removable) {
            snapshot.scale.removable = Some(removable);
            snapshot.due = snapshot.due.into_iter().chain([again_at]).min();
        }
        Ok(())
    }

    fn plan(
        &mut self,
        snapshot: FleetSnapshot,
        ownership: Option<&StreamOwnership>,
    ) -> PlannedFleet {
        let FleetSnapshot { name, fleet, worker_pods, workload, scale, due } = snapshot;
        let now = clock::now();
        let input = FleetInput {
            fleet: &fleet,
            name: &name,
            worker_pods,
            workload,
            scale,
            ownership,
            nodes: &self.nodes,
            now,
        };
        let mut plan = plan(input, &mut self.state);
        let budget = self.caches.budget(&fleet);
        let obsolete = budget.and_then(|budget| evictions::delete_earlier_budget(&fleet, &budget));
        plan.actions.extend(obsolete);
        plan.is_due_at(due, now);
        let is_settled = ownership.is_some_and(|ownership| ownership.is_settled);
        if self.fleets.restart_sets(&name).is_some() && !is_settled {
            plan.is_due_at(self.reads.ownership_due(&name), now);
        }
        PlannedFleet { name, fleet: Some(fleet), plan }
    }

    /// Plans the pods that deleted fleets have left.
    async fn plan_orphans(
        &mut self,
        left: BTreeMap<ClusterName, Vec<WorkerPod>>,
    ) -> Result<Vec<PlannedFleet>, Stopped> {
        let found = orphans::find(self.fleets.objects(), left, |name| self.is_readable(name));
        let mut by_fleet: BTreeMap<ClusterName, Vec<_>> = BTreeMap::new();
        for orphan in orphans::read_workers(&self.context, found).await? {
            if let Some(name) = orphan.pod.pod.cluster.clone() {
                by_fleet.entry(name).or_default().push(orphan);
            }
        }
        let now = clock::now();
        let planned = by_fleet.into_iter().map(|(name, orphans)| {
            let OrphanPlan { orders, actions, due } = orphans::plan(&orphans, &mut self.state, now);
            let plan = FleetPlan { orders, actions, due, ..FleetPlan::default() };
            PlannedFleet { name, fleet: None, plan }
        });
        Ok(planned.collect())
    }

    /// The calls that may be made now, the most urgent ones. The fleet is due when another one may
    /// be made.
    pub(super) fn writable(&mut self, name: &ClusterName, mut actions: Vec<Action>) -> Vec<Action> {
        let now = clock::now();
        let mut waits_until = None;
        actions.retain(|action| {
            let from = self.state.writable_from(&action.target).filter(|at| *at > now);
            waits_until = waits_until.into_iter().chain(from).min();
            from.is_none()
        });
        if let Some(at) = waits_until {
            self.queue.add(name.clone(), at);
        }
        actions.sort_by_key(Action::rank);
        actions.truncate(ACTIONS_MAX);
        actions
    }
}
