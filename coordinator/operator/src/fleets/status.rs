//! Writes the statuses of WorkerClusters, WorkerClasses and StreamSets while this replica leads. A
//! status is a function of the current facts, so no old status is ever written.

mod class;
mod cluster;
mod core_reader;
mod fleet;
mod set;
mod trigger;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use leasehold_coordinator_core::view::{ClassView, SetView, WorkerView};
use leasehold_driver::clock;
use leasehold_driver::port::Stopped;
use leasehold_kube_api::resources::{StreamSet, WorkerClass, WorkerCluster};
use leasehold_kube_api::status::{StreamSetStatus, WorkerClassStatus, WorkerClusterStatus};
use leasehold_platform_kube::desired::CachedObject;
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::{ClusterName, Epoch, Moment, SetName};
use tokio::sync::watch;

use self::class::ClassSnapshot;
use self::core_reader::CoreReader;
use self::fleet::FleetFacts;
use self::set::SetFacts;
use self::trigger::{FleetReceivers, REFRESH_INTERVAL, StatusTrigger, refresh_interval};
use self::writer::{StatusResource, StatusTarget, StatusWriter};
use super::{Context, InjectionByCluster, Workloads};

impl StatusResource for WorkerCluster {
    type Status = WorkerClusterStatus;

    fn into_status(self) -> Option<WorkerClusterStatus> {
        self.status
    }

    fn without_figures(status: &WorkerClusterStatus) -> WorkerClusterStatus {
        cluster::without_figures(status)
    }
}

impl StatusResource for WorkerClass {
    type Status = WorkerClassStatus;

    fn into_status(self) -> Option<WorkerClassStatus> {
        self.status
    }

    fn without_figures(status: &WorkerClassStatus) -> WorkerClassStatus {
        class::without_figures(status)
    }
}

impl StatusResource for StreamSet {
    type Status = StreamSetStatus;

    fn into_status(self) -> Option<StreamSetStatus> {
        self.status
    }

    fn without_figures(status: &StreamSetStatus) -> StreamSetStatus {
        set::without_figures(status)
    }
}

/// Writes statuses until the driver ends.
pub(super) async fn run(
    context: Context,
    workloads: watch::Receiver<Workloads>,
    agents: watch::Receiver<InjectionByCluster>,
) {
    let clusters = clusters(context.clone(), workloads.clone(), agents.clone());
    let classes = classes(context.clone(), workloads, agents);
    let sets = sets(context);
    // Each of them runs until the driver ends.
    let _ = tokio::join!(clusters, classes, sets);
}

/// Writes the statuses of WorkerClusters.
async fn clusters(
    context: Context,
    workloads: watch::Receiver<Workloads>,
    agents: watch::Receiver<InjectionByCluster>,
) -> Result<(), Stopped> {
    let mut writer: StatusWriter<WorkerCluster> = StatusWriter::new(context.applier.clone());
    let mut core = CoreReader::new(context.handle.clone());
    let receivers = FleetReceivers { workloads: workloads.clone(), agents: agents.clone() };
    let mut trigger = StatusTrigger::new(&context, Some(receivers))?;
    let mut term = None;
    let mut interval = REFRESH_INTERVAL;
    loop {
        trigger.wait(interval).await?;
        interval = REFRESH_INTERVAL;
        let found = core.read(|core, now| core.clusters(now)).await?;
        let Some((epoch, views)) = found else {
            writer.clear();
            term = None;
            continue;
        };
        if term.replace(epoch) != Some(epoch) {
            writer.clear();
        }
        let mut views: BTreeMap<_, _> =
            views.into_iter().map(|view| (view.name.clone(), view)).collect();
        let mut observed = ObservedState::of(&context, &workloads, &agents);
        let objects = Arc::clone(&context.objects.borrow());
        let mut wanted = Vec::new();
        for (name, seen) in &objects.clusters {
            let object = &seen.object;
            if objects.is_class(name) {
                // Pods and workloads of this name belong to the WorkerClass.
                observed.forget(name);
            }
            let mut facts = observed.facts(name, seen, views.remove(name));
            if facts.view.is_some() {
                match workers(&mut core, epoch, name).await? {
                    Some(workers) => facts.workers = workers,
                    None => break,
                }
            }
            let make = move |before: &WorkerClusterStatus| {
                cluster::status(&facts, before, Timestamp::now())
            };
            wanted.extend(target(object.as_ref()).map(|target| (target, make)));
        }
        let computed = wanted.len();
        let are_written = writer.write(wanted, &context.handle.metrics).await;
        interval = refresh_interval(computed, are_written);
    }
}

/// Writes the statuses of WorkerClasses.
async fn classes(
    context: Context,
    workloads: watch::Receiver<Workloads>,
    agents: watch::Receiver<InjectionByCluster>,
) -> Result<(), Stopped> {
    let mut writer: StatusWriter<WorkerClass> = StatusWriter::new(context.applier.clone());
    let mut core = CoreReader::new(context.handle.clone());
    let receivers = FleetReceivers { workloads: workloads.clone(), agents: agents.clone() };
    let mut trigger = StatusTrigger::new(&context, Some(receivers))?;
    let mut term = None;
    let mut interval = REFRESH_INTERVAL;
    loop {
        trigger.wait(interval).await?;
        interval = REFRESH_INTERVAL;
        let objects = Arc::clone(&context.objects.borrow());
        if objects.classes.is_empty() {
            continue;
        }
        let found = core.read(|core, now| (core.classes(now), core.clusters(now))).await?;
        let Some((epoch, (views, clusters))) = found else {
            writer.clear();
            term = None;
            continue;
        };
        if term.replace(epoch) != Some(epoch) {
            writer.clear();
        }
        let held = clusters.into_iter().filter(|view| view.held.is_some());
        let held: BTreeMap<_, _> = held.map(|view| (view.name, view.workers)).collect();
        let class_snapshot = |class: ClassView| {
            let held = held.get(&class.name).copied();
            (class.name.clone(), ClassSnapshot { class, held })
        };
        let mut views: BTreeMap<_, _> = views.into_iter().map(class_snapshot).collect();
        let mut observed = ObservedState::of(&context, &workloads, &agents);
        let mut wanted = Vec::new();
        for (name, seen) in &objects.classes {
            let object = &seen.object;
            if !objects.is_class(name) {
                // Pods and workloads of this name belong to the WorkerCluster.
                observed.forget(name);
            }
            let mut facts = observed.facts(name, seen, views.remove(name));
            if facts.view.is_some() {
                match workers(&mut core, epoch, name).await? {
                    Some(workers) => facts.workers = workers,
                    None => break,
                }
            }
            let make =
                move |before: &WorkerClassStatus| class::status(&facts, before, Timestamp::now());
            wanted.extend(target(object.as_ref()).map(|target| (target, make)));
        }
        let computed = wanted.len();
        let are_written = writer.write(wanted, &context.handle.metrics).await;
        interval = refresh_interval(computed, are_written);
    }
}

/// The workers of a fleet in the core; none if the term has ended meanwhile.
async fn workers(
    core: &mut CoreReader,
    epoch: Epoch,
    name: &ClusterName,
) -> Result<Option<Vec<WorkerView>>, Stopped> {
    let name = name.clone();
    let found = core.read(move |core, now| core.workers(&name, now)).await?;
    let same = found.filter(|(same, _)| *same == epoch);
    Ok(same.map(|(_, workers)| workers.unwrap_or_default()))
}

/// Writes the statuses of StreamSets.
async fn sets(context: Context) -> Result<(), Stopped> {
    let mut writer: StatusWriter<StreamSet> = StatusWriter::new(context.applier.clone());
    let mut core = CoreReader::new(context.handle.clone());
    let mut trigger = StatusTrigger::new(&context, None)?;
    let mut term: Option<Epoch> = None;
    // The view of each set, and when it was read: reading one takes long.
    let mut seen: BTreeMap<SetName, (Moment, Option<SetView>)> = BTreeMap::new();
    loop {
        trigger.wait(REFRESH_INTERVAL).await?;
        let Some((epoch, ())) = core.read(|_, _| ()).await? else {
            writer.clear();
            seen.clear();
            term = None;
            continue;
        };
        if term.replace(epoch) != Some(epoch) {
            writer.clear();
            seen.clear();
        }
        let objects = Arc::clone(&context.objects.borrow());
        seen.retain(|name, _| objects.sets.contains_key(name));
        let mut wanted = Vec::new();
        for (name, found) in &objects.sets {
            let object = &found.object;
            let last = seen.get(name).map(|(at, _)| *at);
            let is_old = last.is_none_or(|at| clock::now().since(at) >= REFRESH_INTERVAL);
            if trigger.has_changed(name) || is_old {
                let asked = name.clone();
                match core.read(move |core, _| core.set(&asked)).await? {
                    Some((same, view)) if same == epoch => {
                        seen.insert(name.clone(), (clock::now(), view));
                    }
                    Some(_) | None => break,
                }
            }
            let problem = found.problem();
            let facts = SetFacts {
                generation: object.metadata.generation,
                in_force: in_force(object.as_ref(), found.generation, problem.as_ref()),
                problem,
                view: seen.get(name).and_then(|(_, view)| view.clone()),
            };
            let make =
                move |before: &StreamSetStatus| set::status(&facts, before, Timestamp::now());
            wanted.extend(target(object.as_ref()).map(|target| (target, make)));
        }
        writer.write(wanted, &context.handle.metrics).await;
    }
}

/// The generation in force, if the object shows it. If the newest spec is valid by itself but not
/// in force, an older one may be in force, and only the last status names it.
fn in_force(object: &impl Resource, generation: i64, problem: Option<&String>) -> Option<i64> {
    let is_newest = object.meta().generation == Some(generation);
    (problem.is_none() || !is_newest).then_some(generation)
}

fn target(object: &impl Resource) -> Option<StatusTarget> {
    let meta = object.meta();
    let (namespace, name) = (meta.namespace.clone()?, meta.name.clone()?);
    Some(StatusTarget { namespace, name, uid: meta.uid.clone()? })
}

/// The facts besides the core's: pods, workloads and agents.
struct ObservedState {
    pods: BTreeMap<ClusterName, Vec<Arc<PodFacts>>>,
    workloads: Workloads,
    agents: InjectionByCluster,
}

impl ObservedState {
    fn of(
        context: &Context,
        workloads: &watch::Receiver<Workloads>,
        agents: &watch::Receiver<InjectionByCluster>,
    ) -> Self {
        let mut pods: BTreeMap<ClusterName, Vec<Arc<PodFacts>>> = BTreeMap::new();
        for pod in context.pods.all() {
            if let Some(cluster) = &pod.cluster {
                pods.entry(cluster.clone()).or_default().push(pod);
            }
        }
        let (workloads, agents) = (workloads.borrow().clone(), agents.borrow().clone());
        Self { pods, workloads, agents }
    }

    /// Removes the facts under a name.
    fn forget(&mut self, name: &ClusterName) {
        self.pods.remove(name);
        Arc::make_mut(&mut self.workloads).remove(name);
        Arc::make_mut(&mut self.agents).remove(name);
    }

    /// The facts of a fleet, without its workers.
    fn facts<K: Resource, V>(
        &mut self,
        name: &ClusterName,
        seen: &CachedObject<K>,
        view: Option<V>,
    ) -> FleetFacts<V> {
        let (meta, problem) = (seen.object.meta(), seen.problem());
        FleetFacts {
            name: meta.name.clone().unwrap_or_default(),
            generation: meta.generation,
            in_force: in_force(seen.object.as_ref(), seen.generation, problem.as_ref()),
            problem,
            view,
            workers: Vec::new(),
            pods: self.pods.remove(name).unwrap_or_default(),
            workload: self.workloads.get(name).cloned(),
            agents: self.agents.get(name).cloned().unwrap_or_default(),
        }
    }
}
