//! Statuses: while this replica leads, every WorkerCluster, WorkerClass and StreamSet says how it
//! stands. A status is a function of what is known now, so that none is ever caught up on.

mod board;
mod class;
mod cluster;
mod fleet;
mod look;
mod news;
mod set;

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

use self::board::{Board, Shown, Target};
use self::class::ClassWord;
use self::fleet::FleetFacts;
use self::look::Looks;
use self::news::{LOOK_EVERY, News};
use self::set::SetFacts;
use super::{Agents, Context, Workloads};

impl Shown for WorkerCluster {
    type Status = WorkerClusterStatus;

    fn into_status(self) -> Option<WorkerClusterStatus> {
        self.status
    }

    fn outlined(status: &WorkerClusterStatus) -> WorkerClusterStatus {
        cluster::outlined(status)
    }
}

impl Shown for WorkerClass {
    type Status = WorkerClassStatus;

    fn into_status(self) -> Option<WorkerClassStatus> {
        self.status
    }

    fn outlined(status: &WorkerClassStatus) -> WorkerClassStatus {
        class::outlined(status)
    }
}

impl Shown for StreamSet {
    type Status = StreamSetStatus;

    fn into_status(self) -> Option<StreamSetStatus> {
        self.status
    }

    fn outlined(status: &StreamSetStatus) -> StreamSetStatus {
        set::outlined(status)
    }
}

/// Writes statuses until the driver ends.
pub(super) async fn run(
    context: Context,
    workloads: watch::Receiver<Workloads>,
    agents: watch::Receiver<Agents>,
) {
    let clusters = clusters(context.clone(), workloads.clone(), agents.clone());
    let classes = classes(context.clone(), workloads, agents);
    let sets = sets(context);
    // All of them end with the driver, and with nothing else.
    let _ = tokio::join!(clusters, classes, sets);
}

/// Shows how clusters stand.
async fn clusters(
    context: Context,
    workloads: watch::Receiver<Workloads>,
    agents: watch::Receiver<Agents>,
) -> Result<(), Stopped> {
    let mut board: Board<WorkerCluster> = Board::new(context.client.clone());
    let mut looks = Looks::new(context.handle.clone());
    let mut news = News::new(&context, Some(workloads.clone()))?;
    let mut term = None;
    loop {
        news.wait().await?;
        let found = looks.look(|core, now| core.clusters(now)).await?;
        let Some((epoch, views)) = found else {
            board.clear();
            term = None;
            continue;
        };
        if term.replace(epoch) != Some(epoch) {
            board.clear();
        }
        let mut views: BTreeMap<_, _> =
            views.into_iter().map(|view| (view.name.clone(), view)).collect();
        let mut scene = Scene::of(&context, &workloads, &agents);
        let objects = Arc::clone(&context.objects.borrow());
        let mut wanted = Vec::new();
        for (name, seen) in &objects.clusters {
            let object = &seen.object;
            let mut facts = scene.facts(name, seen, views.remove(name));
            if facts.view.is_some() {
                match workers(&mut looks, epoch, name).await? {
                    Some(workers) => facts.workers = workers,
                    None => break,
                }
            }
            let make = move |before: &WorkerClusterStatus| {
                cluster::status(&facts, before, Timestamp::now())
            };
            wanted.extend(target(object.as_ref()).map(|target| (target, make)));
        }
        board.write(wanted, &context.handle.metrics).await;
    }
}

/// Shows how classes stand.
async fn classes(
    context: Context,
    workloads: watch::Receiver<Workloads>,
    agents: watch::Receiver<Agents>,
) -> Result<(), Stopped> {
    let mut board: Board<WorkerClass> = Board::new(context.client.clone());
    let mut looks = Looks::new(context.handle.clone());
    let mut news = News::new(&context, Some(workloads.clone()))?;
    let mut term = None;
    loop {
        news.wait().await?;
        let objects = Arc::clone(&context.objects.borrow());
        if objects.classes.is_empty() {
            continue;
        }
        let found = looks.look(|core, now| (core.classes(now), core.clusters(now))).await?;
        let Some((epoch, (views, clusters))) = found else {
            board.clear();
            term = None;
            continue;
        };
        if term.replace(epoch) != Some(epoch) {
            board.clear();
        }
        let held = clusters.into_iter().filter(|view| view.held.is_some());
        let held: BTreeMap<_, _> = held.map(|view| (view.name, view.workers)).collect();
        let word = |class: ClassView| {
            let held = held.get(&class.name).copied();
            (class.name.clone(), ClassWord { class, held })
        };
        let mut views: BTreeMap<_, _> = views.into_iter().map(word).collect();
        let mut scene = Scene::of(&context, &workloads, &agents);
        let mut wanted = Vec::new();
        for (name, seen) in &objects.classes {
            let object = &seen.object;
            if objects.clusters.contains_key(name) {
                // What goes by the name is the WorkerCluster's.
                scene.forget(name);
            }
            let mut facts = scene.facts(name, seen, views.remove(name));
            if facts.view.is_some() {
                match workers(&mut looks, epoch, name).await? {
                    Some(workers) => facts.workers = workers,
                    None => break,
                }
            }
            let make =
                move |before: &WorkerClassStatus| class::status(&facts, before, Timestamp::now());
            wanted.extend(target(object.as_ref()).map(|target| (target, make)));
        }
        board.write(wanted, &context.handle.metrics).await;
    }
}

/// The workers of a fleet that the core has; none where the term has ended meanwhile.
async fn workers(
    looks: &mut Looks,
    epoch: Epoch,
    name: &ClusterName,
) -> Result<Option<Vec<WorkerView>>, Stopped> {
    let name = name.clone();
    let found = looks.look(move |core, now| core.workers(&name, now)).await?;
    let same = found.filter(|(same, _)| *same == epoch);
    Ok(same.map(|(_, workers)| workers.unwrap_or_default()))
}

/// Shows how stream sets stand.
async fn sets(context: Context) -> Result<(), Stopped> {
    let mut board: Board<StreamSet> = Board::new(context.client.clone());
    let mut looks = Looks::new(context.handle.clone());
    let mut news = News::new(&context, None)?;
    let mut term: Option<Epoch> = None;
    // What was seen of each set, and when: a look at one is long.
    let mut seen: BTreeMap<SetName, (Moment, Option<SetView>)> = BTreeMap::new();
    loop {
        news.wait().await?;
        let Some((epoch, ())) = looks.look(|_, _| ()).await? else {
            board.clear();
            seen.clear();
            term = None;
            continue;
        };
        if term.replace(epoch) != Some(epoch) {
            board.clear();
            seen.clear();
        }
        let objects = Arc::clone(&context.objects.borrow());
        seen.retain(|name, _| objects.sets.contains_key(name));
        let mut wanted = Vec::new();
        for (name, found) in &objects.sets {
            let object = &found.object;
            let last = seen.get(name).map(|(at, _)| *at);
            let is_old = last.is_none_or(|at| clock::now().since(at) >= LOOK_EVERY);
            if news.is_about(name) || is_old {
                let asked = name.clone();
                match looks.look(move |core, _| core.set(&asked)).await? {
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
        board.write(wanted, &context.handle.metrics).await;
    }
}

/// The generation in force, as far as the object tells: where the newest specification is valid by
/// itself and yet not in force, an older one may be, and the last status says which.
fn in_force(object: &impl Resource, generation: i64, problem: Option<&String>) -> Option<i64> {
    let is_newest = object.meta().generation == Some(generation);
    (problem.is_none() || !is_newest).then_some(generation)
}

fn target(object: &impl Resource) -> Option<Target> {
    let meta = object.meta();
    let (namespace, name) = (meta.namespace.clone()?, meta.name.clone()?);
    Some(Target { namespace, name, uid: meta.uid.clone()? })
}

/// What there is beside the core: pods, workloads and agents.
struct Scene {
    pods: BTreeMap<ClusterName, Vec<Arc<PodFacts>>>,
    workloads: Workloads,
    agents: Agents,
}

impl Scene {
    fn of(
        context: &Context,
        workloads: &watch::Receiver<Workloads>,
        agents: &watch::Receiver<Agents>,
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

    /// Leaves out whatever goes by a name.
    fn forget(&mut self, name: &ClusterName) {
        self.pods.remove(name);
        Arc::make_mut(&mut self.workloads).remove(name);
        Arc::make_mut(&mut self.agents).remove(name);
    }

    /// What is known of a fleet, but for its workers.
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
