//! Reconciles fleets every quarter of a second: read their state, plan, make the calls, record
//! events. Each batch makes a limited number of calls; the next one finds what is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::runtime::watcher;
use leasehold_coordinator_core::view::{ClassView, Leadership, WorkerView};
use leasehold_driver::clock;
use leasehold_driver::port::Stopped;
use leasehold_kube_api::names::{FIELD_MANAGER, MANAGED_BY_LABEL, disruption_budget};
use leasehold_manifest::manifest::{RefreshSpec, WorkloadKind};
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::watch_cache::{ObjectKey, WatchCache};
use leasehold_types::{ClusterName, Moment, SetName, WorkerKey, WorkerName};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::action::{Action, ActionKind, ActionOutcome, Failure};
use super::events::FleetEvents;
use super::evictions::BudgetFacts;
use super::fleet::Fleet;
use super::orphans::OrphanPlan;
use super::plan::{FleetInput, FleetPlan, plan};
use super::restart::StreamOwnership;
use super::scale_in;
use super::scaling::{self, ClassDemand, DesiredScale};
use super::state::ReconcilerState;
use super::turns::Turns;
use super::worker_pod::WorkerPod;
use super::workload::{self, WorkloadFacts};
use super::{Context, Workloads, drains, evictions, orphans};
use crate::nodes::ClosedNodes;
use crate::workqueue::WorkQueue;

/// The interval from the start of one batch to the start of the next.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(250);
/// The interval between two reads of all streams of sets with `refresh: Restart`, of all classes,
/// and of the workers of deleted fleets.
const SLOW_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Fleets that are reconciled together: one read of the core serves them all.
const BATCH_MAX: usize = 1_024;
/// Calls that one batch makes.
const ACTIONS_MAX: usize = 256;
/// An object counts as refused once the API server has failed on it so often with the same words,
/// which takes about two seconds. A shorter failure is retried only.
const REPEATED: u32 = 3;
/// Calls in flight at once.
const CONCURRENT_CALLS_MAX: usize = 16;

/// The reconciler of fleets.
pub(super) struct FleetReconciler {
    context: Context,
    deployments: WatchCache<WorkloadFacts>,
    stateful_sets: WatchCache<WorkloadFacts>,
    /// PodDisruptionBudgets of earlier versions.
    budgets: WatchCache<BudgetFacts>,
    /// The owners of the streams of sets with `refresh: Restart`, and when they were read.
    ownership: BTreeMap<ClusterName, StreamOwnership>,
    ownership_read_at: Moment,
    /// The core's view of each class, and when it was read.
    classes: BTreeMap<ClusterName, ClassView>,
    classes_read_at: Moment,
    /// When the workers of deleted fleets were read.
    orphans_read_at: Moment,
    /// The fleets to reconcile.
    queue: WorkQueue<ClusterName>,
    state: ReconcilerState,
    turns: Turns,
    events: FleetEvents,
    workload_states: watch::Sender<Workloads>,
}

type Workers = BTreeMap<ClusterName, BTreeMap<WorkerName, WorkerView>>;

/// The observed state of a fleet.
struct FleetSnapshot {
    name: ClusterName,
    fleet: Fleet,
    /// Its pods, all of them.
    worker_pods: Vec<WorkerPod>,
    workload: Option<Arc<WorkloadFacts>>,
    scale: DesiredScale,
}

/// The workers of which the core is asked whether they can be removed.
enum RemovableQuery {
    /// Any workers of a class.
    Any(ClusterName),
    /// This worker, if any.
    One(Option<WorkerKey>),
}

impl FleetReconciler {
    /// Starts its watches.
    pub(super) fn new(context: Context, workload_states: watch::Sender<Workloads>) -> Self {
        let all = watcher::Config::default();
        let own = watcher::Config::default().labels(&format!("{MANAGED_BY_LABEL}={FIELD_MANAGER}"));
        let deployments = context.apis::<Deployment>();
        let stateful_sets = context.apis::<StatefulSet>();
        let budgets = context.apis::<PodDisruptionBudget>();
        Self {
            deployments: WatchCache::start(
                "deployments",
                deployments,
                &all,
                WorkloadFacts::of_deployment,
            ),
            stateful_sets: WatchCache::start(
                "statefulsets",
                stateful_sets,
                &all,
                WorkloadFacts::of_stateful_set,
            ),
            budgets: WatchCache::start("poddisruptionbudgets", budgets, &own, BudgetFacts::new),
            ownership: BTreeMap::new(),
            ownership_read_at: Moment(0),
            classes: BTreeMap::new(),
            classes_read_at: Moment(0),
            orphans_read_at: Moment(0),
            queue: WorkQueue::new(BATCH_MAX),
            state: ReconcilerState::default(),
            turns: Turns::default(),
            events: FleetEvents::new(context.events.clone()),
            workload_states,
            context,
        }
    }

    /// Reconciles until the driver ends.
    pub(super) async fn run(mut self) -> Result<(), Stopped> {
        let mut ticks = interval(RECONCILE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let objects = Arc::clone(&self.context.objects.borrow());
            let now = clock::now();
            Fleet::all(&objects).for_each(|(name, _)| self.queue.add(name.clone(), now));
            let names = self.queue.take_due(now);
            let workers = self.workers(names.clone()).await?;
            // The next batch continues with the remaining work.
            names.iter().for_each(|name| self.queue.done(name));
            let Some(workers) = workers else {
                self.queue.clear();
                self.state = ReconcilerState::default();
                self.classes.clear();
                self.classes_read_at = Moment(0);
                continue;
            };
            if !self.is_synced() {
                continue;
            }
            self.read_stream_ownership(&objects).await?;
            let nodes = self.context.nodes.closed();
            self.read_classes(&objects).await?;
            let mut plans = Vec::new();
            let mut pods = self.pods();
            for snapshot in self.snapshots(&objects, workers, &mut pods).await? {
                plans.push(self.plan(snapshot, &nodes));
            }
            self.publish(&objects, &names, &plans);
            let orphans = self.plan_orphans(&objects, pods).await?;
            self.execute(plans, orphans).await?;
        }
    }

    /// The core's workers of these fleets; `None` if this replica does not lead.
    async fn workers(&self, names: Vec<ClusterName>) -> Result<Option<Workers>, Stopped> {
        let asked = self.context.handle.ask(move |core, now| match core.leadership() {
            Leadership::Standby(_) => None,
            Leadership::Leader(_) => Some(
                names
                    .into_iter()
                    .filter_map(|name| Some((core.workers(&name, now)?, name)))
                    .collect::<Vec<_>>(),
            ),
        });
        Ok(asked.await?.map(|found| {
            let by_name = |views: Vec<WorkerView>| {
                views.into_iter().map(|view| (view.key.worker.clone(), view)).collect()
            };
            found.into_iter().map(|(views, name)| (name, by_name(views))).collect()
        }))
    }

    /// The observed state of each fleet. A fleet that the core does not know is invalid, or not
    /// read yet. Takes their pods out of `pods`.
    async fn snapshots(
        &mut self,
        objects: &Objects,
        mut workers: Workers,
        pods: &mut BTreeMap<ClusterName, Vec<WorkerPod>>,
    ) -> Result<Vec<FleetSnapshot>, Stopped> {
        self.state.windows.retain(|name, _| objects.classes.contains_key(name));
        self.state.undone.retain(|name| Fleet::find(objects, name).is_some());
        let mut snapshots = Vec::new();
        for (name, fleet) in Fleet::all(objects) {
            let Some(mut workers) = workers.remove(name) else { continue };
            if !self.is_readable(name) {
                continue;
            }
            let mut worker_pods = pods.remove(name).unwrap_or_default();
            for it in &mut worker_pods {
                let worker = WorkerName::present_name(&it.pod.pod.name).ok();
                it.view = worker.and_then(|worker| workers.remove(&worker));
            }
            let workload = self.workload(&fleet);
            let current = workload.as_ref().map(|facts| facts.replicas);
            let scale = match (&fleet, self.classes.get(name)) {
                (Fleet::Cluster(cluster), _) => {
                    DesiredScale::of(workload::replicas(&cluster.spec.0))
                }
                (Fleet::Class(class), Some(view)) => {
                    let demand = ClassDemand::of(view.clone(), &worker_pods);
                    let window = self.state.windows.entry(name.clone()).or_default();
                    scaling::decide(&class.spec.0, &demand, current, window, clock::now())
                }
                (Fleet::Class(_), None) => continue,
            };
            snapshots.push(FleetSnapshot {
                name: name.clone(),
                fleet,
                worker_pods,
                workload,
                scale,
            });
        }
        self.read_removable(&mut snapshots).await?;
        Ok(snapshots)
    }

    /// The plan for pods of deleted fleets, at most every [`SLOW_READ_INTERVAL`].
    async fn plan_orphans(
        &mut self,
        objects: &Objects,
        pods: BTreeMap<ClusterName, Vec<WorkerPod>>,
    ) -> Result<OrphanPlan, Stopped> {
        let now = clock::now();
        if now.since(self.orphans_read_at) < SLOW_READ_INTERVAL {
            return Ok(OrphanPlan::default());
        }
        self.orphans_read_at = now;
        let found = orphans::find(objects, pods, |name| self.is_readable(name));
        let orphans = orphans::read_workers(&self.context, found).await?;
        Ok(orphans::plan(&orphans, &mut self.state, now))
    }

    /// The workload of a fleet, as it was last seen.
    fn workload(&self, fleet: &Fleet) -> Option<Arc<WorkloadFacts>> {
        let target = workload::target(fleet)?;
        let key = ObjectKey::new(fleet.namespace(), target.name);
        match target.kind {
            WorkloadKind::Deployment => self.deployments.get(&key),
            WorkloadKind::StatefulSet => self.stateful_sets.get(&key),
        }
    }

    /// Reads the owners of streams of sets with `refresh: Restart`, at most every
    /// [`SLOW_READ_INTERVAL`].
    async fn read_stream_ownership(&mut self, objects: &Objects) -> Result<(), Stopped> {
        let now = clock::now();
        if now.since(self.ownership_read_at) < SLOW_READ_INTERVAL {
            // Restarts are decided from a fresh read only.
            self.ownership.clear();
            return Ok(());
        }
        self.ownership_read_at = now;
        let mut sets_by_cluster: BTreeMap<ClusterName, Vec<SetName>> = BTreeMap::new();
        for (name, seen) in &objects.sets {
            let set = &seen.object;
            let namespace = set.namespace().unwrap_or_default();
            let cluster = ClusterName::in_namespace(&namespace, &set.spec.0.cluster);
            if let (RefreshSpec::Restart, Ok(cluster)) = (set.spec.0.refresh, cluster) {
                sets_by_cluster.entry(cluster).or_default().push(name.clone());
            }
        }
        if sets_by_cluster.is_empty() {
            self.ownership.clear();
            return Ok(());
        }
        let input = self.context.handle.ask(move |core, _| {
            let of = |(cluster, sets): (_, Vec<_>)| (cluster, StreamOwnership::of(core, &sets));
            sets_by_cluster.into_iter().map(of).collect()
        });
        self.ownership = input.await?;
        Ok(())
    }

    /// Reads the core's view of classes, at most every [`SLOW_READ_INTERVAL`].
    async fn read_classes(&mut self, objects: &Objects) -> Result<(), Stopped> {
        let now = clock::now();
        if objects.classes.is_empty() || now.since(self.classes_read_at) < SLOW_READ_INTERVAL {
            return Ok(());
        }
        self.classes_read_at = now;
        let look = self.context.handle.ask(|core, now| {
            core.classes(now).into_iter().map(|view| (view.name.clone(), view)).collect()
        });
        self.classes = look.await?;
        Ok(())
    }

    /// Asks which workers can be removed from classes with too many.
    async fn read_removable(&self, snapshots: &mut [FleetSnapshot]) -> Result<(), Stopped> {
        let is_too_large = |snapshot: &FleetSnapshot| {
            let most = snapshot.workload.as_ref().map_or(0, |facts| facts.replicas);
            snapshot.scale.removable.is_some() && most > snapshot.scale.replicas
        };
        let snapshots: Vec<&mut FleetSnapshot> =
            snapshots.iter_mut().filter(|snapshot| is_too_large(snapshot)).collect();
        if snapshots.is_empty() {
            return Ok(());
        }
        let of_case = |snapshot: &&mut FleetSnapshot| match &snapshot.workload {
            // A StatefulSet removes only its highest ordinal.
            Some(facts) if facts.kind == WorkloadKind::StatefulSet => RemovableQuery::One(
                scale_in::next_stateful_set_pod(&snapshot.worker_pods).map(|view| view.key.clone()),
            ),
            Some(_) | None => RemovableQuery::Any(snapshot.name.clone()),
        };
        let asked: Vec<RemovableQuery> = snapshots.iter().map(of_case).collect();
        let asked = self.context.handle.ask(move |core, now| {
            let answer = |removable| match removable {
                RemovableQuery::Any(class) => core.removable(&class, now),
                RemovableQuery::One(worker) => {
                    let worker = worker.filter(|worker| core.is_removable(worker));
                    worker.into_iter().map(|key: WorkerKey| key.worker).collect()
                }
            };
            asked.into_iter().map(answer).collect::<Vec<_>>()
        });
        for (snapshot, removable) in snapshots.into_iter().zip(asked.await?) {
            snapshot.scale.removable = Some(removable);
        }
        Ok(())
    }

    fn is_synced(&self) -> bool {
        self.context.pods.is_synced()
            && self.deployments.is_complete()
            && self.stateful_sets.is_complete()
            && self.budgets.is_complete()
    }

    /// Whether the pods and workloads of a fleet's namespace were listed: a namespace of which the
    /// API server forbids it stays as it is.
    fn is_readable(&self, fleet: &ClusterName) -> bool {
        let Some(namespace) = fleet.parts().0 else { return true };
        self.context.pods.is_listed(namespace)
            && self.deployments.forbidden_in(Some(namespace)).is_none()
            && self.stateful_sets.forbidden_in(Some(namespace)).is_none()
            && self.budgets.forbidden_in(Some(namespace)).is_none()
    }

    /// Every pod by its fleet; the state of other pods is forgotten.
    fn pods(&mut self) -> BTreeMap<ClusterName, Vec<WorkerPod>> {
        let mut pods: BTreeMap<ClusterName, Vec<WorkerPod>> = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for pod in self.context.pods.all() {
            let Some(cluster) = pod.cluster.clone() else { continue };
            let it = WorkerPod::new(pod, &self.state.drain_marks, None);
            seen.extend([ReconcilerState::seen(&it)]);
            pods.entry(cluster).or_default().push(it);
        }
        self.state.forget_old(&seen, clock::now());
        pods
    }

    fn plan(
        &mut self,
        snapshot: FleetSnapshot,
        nodes: &ClosedNodes,
    ) -> (ClusterName, Fleet, FleetPlan) {
        let FleetSnapshot { name, fleet, worker_pods, workload, scale } = snapshot;
        let now = clock::now();
        let ownership = self.ownership.get(&name);
        let (of, called) = (&fleet, &name);
        let input = FleetInput {
            fleet: of,
            name: called,
            worker_pods,
            workload,
            scale,
            ownership,
            nodes,
            now,
        };
        let mut plan = plan(input, &mut self.state);
        let budget = ObjectKey::new(fleet.namespace(), disruption_budget(fleet.name()));
        let budget = self.budgets.get(&budget);
        let obsolete = budget.and_then(|budget| evictions::delete_earlier_budget(&fleet, &budget));
        plan.actions.extend(obsolete);
        (name, fleet, plan)
    }

    /// Publishes the states of the workloads to the writer of statuses.
    fn publish(
        &self,
        objects: &Objects,
        batch: &[ClusterName],
        plans: &[(ClusterName, Fleet, FleetPlan)],
    ) {
        self.workload_states.send_if_modified(|shown| {
            let mut states = BTreeMap::clone(shown);
            states.retain(|name, _| Fleet::find(objects, name).is_some());
            // A fleet of the batch without a plan is not known to the core.
            batch.iter().for_each(|name| _ = states.remove(name));
            for (name, _, plan) in plans {
                states.extend(plan.state.clone().map(|state| (name.clone(), state)));
            }
            let is_new = **shown != states;
            if is_new {
                *shown = Arc::new(states);
            }
            is_new
        });
    }

    async fn execute(
        &mut self,
        plans: Vec<(ClusterName, Fleet, FleetPlan)>,
        orphans: OrphanPlan,
    ) -> Result<(), Stopped> {
        let now = clock::now();
        let mut orders = orphans.orders;
        let mut work: Vec<(Option<(ClusterName, Fleet)>, Action)> =
            orphans.actions.into_iter().map(|action| (None, action)).collect();
        for (name, fleet, plan) in plans {
            orders.extend(plan.orders);
            for (it, stage) in plan.drain_progress {
                self.events.drain_progress(&fleet, &it.pod, stage);
            }
            if let Some(note) = &plan.scale_in_started {
                self.events.scale_in_started(&fleet, note);
            }
            self.events.rollout_blocked(&mut self.state, &name, &fleet, plan.blocked);
            if let Some(why) = plan.refused {
                self.report_rejection(&name, &fleet, why);
            }
            let actions = plan.actions.into_iter();
            work.extend(actions.map(|action| (Some((name.clone(), fleet.clone())), action)));
        }
        work.retain(|(_, action)| self.state.failures.is_due(&action.target, now));
        drains::order(&self.context, orders).await?;
        let work = self
            .turns
            .take(work, ACTIONS_MAX, |(_, action)| (action.rank(), action.target.namespace()));
        let (applier, pods) = (self.context.applier.clone(), self.context.pods.clone());
        let calls = work.into_iter().map(|(owner, action)| {
            let (applier, pods) = (&applier, &pods);
            async move {
                let done = action.execute(applier, pods).await;
                (owner, action, done)
            }
        });
        let mut calls = std::pin::pin!(stream::iter(calls).buffer_unordered(CONCURRENT_CALLS_MAX));
        while let Some((owner, action, done)) = calls.next().await {
            self.record_outcome(owner.as_ref(), action, done);
        }
        Ok(())
    }

    /// Records the outcome of an action and its event. `fleet` is `None` for a pod whose fleet was
    /// deleted.
    fn record_outcome(
        &mut self,
        fleet: Option<&(ClusterName, Fleet)>,
        action: Action,
        done: ActionOutcome,
    ) {
        let now = clock::now();
        let is_workload = action.is_workload();
        match done {
            ActionOutcome::Outdated => {}
            ActionOutcome::Failed(why, failure) => {
                if self.state.failures.failed(action.target.clone(), why.clone(), now) {
                    tracing::warn!(object = %action.target, why, "cannot write the object: \
                                                                  retrying");
                }
                let is_refused = match failure {
                    Failure::Refused => true,
                    Failure::Internal => self.state.failures.times(&action.target) >= REPEATED,
                    Failure::Passing => false,
                };
                if let Some((name, fleet)) = fleet.filter(|_| is_refused && is_workload) {
                    self.report_rejection(name, fleet, why);
                }
            }
            ActionOutcome::Done(generation) => {
                self.state.failures.succeeded(&action.target);
                if let Some((name, fleet)) = fleet {
                    if is_workload {
                        self.state.refusals.remove(name);
                    }
                    self.events.action_done(fleet, &action);
                }
                match action.kind {
                    ActionKind::MarkForDrain(pod, mark) => {
                        self.state.drain_marks.insert(pod.uid.clone(), Some(mark));
                    }
                    ActionKind::Unmark(pod) | ActionKind::RemoveMarks(pod) => {
                        self.state.drain_marks.insert(pod.uid.clone(), None);
                    }
                    ActionKind::Apply(body) => {
                        self.state.applied.note(action.target, body, generation, now);
                    }
                    ActionKind::RecordStreams(..)
                    | ActionKind::SetDeletionCost(..)
                    | ActionKind::SetBusyLabel(..)
                    | ActionKind::DeletePod(_)
                    | ActionKind::EvictPod(_)
                    | ActionKind::DeleteBudget(_) => {}
                }
            }
        }
    }

    fn report_rejection(&mut self, name: &ClusterName, fleet: &Fleet, why: String) {
        if self.state.refusal(name) != Some(&why) {
            self.events.workload_rejected(fleet, &why);
            self.state.refusals.insert(name.clone(), why);
        }
    }
}
