//! Reconciles Pipelines while this replica leads: every binding has a Service, EndpointSlices of
//! the workers that serve it, and a PipelineBinding; every Pipeline has a status. All of it is a
//! function of the core's view and the pods: a change of either is written at once, and changes by
//! other clients are reverted.

mod desired;
mod endpoint_slices;
mod events;
mod managed_kind;
mod managed_objects;
mod object_writer;
mod phase_history;
mod reconciliation;
mod state;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::select_all;
use kube::Resource;
use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::view::{Leadership, PipelineView};
use leasehold_driver::clock;
use leasehold_driver::history::{FleetChange, RecordedChange};
use leasehold_driver::port::Stopped;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::{PodFacts, PodName};
use leasehold_types::{ClusterName, PipelineName};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::WatchStream;

use self::desired::CacheLookup;
use self::events::PipelineEvents;
use self::managed_objects::ManagedObjects;
use self::object_writer::ObjectWriter;
use self::phase_history::PhaseHistory;
use self::reconciliation::{Reconciliation, Tools};
use self::state::PipelineState;
use crate::conditions::ConditionReason;
use crate::context::Context;
use crate::workqueue::WorkQueue;

/// With more pipelines queued than this, only the newest phase of each is shown.
const QUEUED_WITH_PHASES_MAX: usize = 64;
/// Pipelines that are reconciled at a time.
const CONCURRENT_MAX: usize = 16;

/// Reconciles pipelines until the driver ends.
pub(crate) async fn run(context: Context) {
    // It ends with the driver, and with nothing else.
    let Ok(reconciler) = PipelineReconciler::new(context) else { return };
    let _ = reconciler.run().await;
}

struct PipelineReconciler {
    context: Context,
    changes: broadcast::Receiver<Arc<RecordedChange>>,
    tools: Tools,
    /// As last processed, to find what has changed.
    objects: Arc<Objects>,
    endpoint_pods: BTreeMap<PodName, EndpointPod>,
    /// The pods that a pipeline's endpoints depend on.
    pods_of_pipeline: BTreeMap<PipelineName, BTreeSet<PodName>>,
    queue: WorkQueue<PipelineName>,
    phases: PhaseHistory,
    /// Why no object of a namespace can be managed, or of all, as last processed.
    forbidden: BTreeMap<Option<String>, ConditionReason>,
    states: BTreeMap<PipelineName, PipelineState>,
    running: JoinSet<(PipelineName, PipelineState)>,
}

/// A pod that endpoints depend on.
#[derive(Default)]
struct EndpointPod {
    /// As last processed.
    pod: Option<Arc<PodFacts>>,
    /// The pipelines whose endpoints depend on it.
    pipelines: BTreeSet<PipelineName>,
}

/// The core's view of a pipeline.
struct PipelineSnapshot {
    name: PipelineName,
    view: Option<PipelineView>,
    /// This leader does not know its workers' shares yet: the status stays unchanged.
    is_unrecovered: bool,
}

impl PipelineReconciler {
    fn new(context: Context) -> Result<Self, Stopped> {
        let changes = context.handle.watch()?;
        let managed_objects = ManagedObjects::watch(&context.client, &context.settings.watched);
        let object_writer = ObjectWriter::new(context.applier.clone(), managed_objects.clone());
        let events = PipelineEvents::new(context.events.clone());
        Ok(Self {
            changes,
            tools: Tools { object_writer, managed_objects, events },
            objects: Arc::default(),
            endpoint_pods: BTreeMap::new(),
            pods_of_pipeline: BTreeMap::new(),
            queue: WorkQueue::new(CONCURRENT_MAX),
            phases: PhaseHistory::default(),
            forbidden: BTreeMap::new(),
            states: BTreeMap::new(),
            running: JoinSet::new(),
            context,
        })
    }

    async fn run(mut self) -> Result<(), Stopped> {
        let mut objects = self.context.objects.clone();
        let mut pods = self.context.pods.changed();
        let mut nodes = self.context.nodes.changed();
        let managed_objects = self.tools.managed_objects.clone();
        let changes = managed_objects.changes().into_iter().map(WatchStream::new);
        let mut managed_changes = select_all(changes);
        objects.mark_changed();
        pods.mark_changed();
        loop {
            let now = clock::now();
            let due = self.queue.next_due().filter(|_| self.is_synced());
            let wait = due.map_or_else(Default::default, |at| at.since(now));
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => self.handle_change(&change.change),
                    Err(RecvError::Lagged(_)) => self.enqueue_all(),
                    Err(RecvError::Closed) => return Err(Stopped),
                },
                Ok(()) = objects.changed() => {
                    let seen = Arc::clone(&objects.borrow_and_update());
                    self.on_objects_changed(seen);
                }
                Ok(()) = pods.changed() => self.on_pods_changed(),
                Ok(()) = nodes.changed() => self.enqueue_all(),
                Some(_) = managed_changes.next() => {
                    let changed_by_others = managed_objects.changed_by_others();
                    changed_by_others.into_iter().for_each(|name| self.queue.add(name, now));
                    self.on_managed_objects_changed();
                }
                Some(done) = self.running.join_next() => {
                    if let Ok((name, state)) = done {
                        self.finish(name, state);
                    }
                }
                () = sleep(wait), if due.is_some() => {}
            }
            self.handle_pending_changes();
            if self.is_synced() {
                self.start_due().await?;
            }
        }
    }

    /// Whether every object was listed once, or cannot be. Before that, a missing object may exist.
    fn is_synced(&self) -> bool {
        self.objects.is_whole
            && self.tools.managed_objects.is_synced()
            && self.context.pods.is_synced()
    }

    /// Without a right on one of the kinds, the status of each pipeline that needs it says so.
    fn on_managed_objects_changed(&mut self) {
        let scopes: Vec<Option<&str>> = match &self.context.settings.watched[..] {
            [] => vec![None],
            names => names.iter().map(|name| Some(name.as_str())).collect(),
        };
        let forbidden = scopes.into_iter().filter_map(|scope| {
            let (kind, why) = self.tools.managed_objects.forbidden_in(scope)?;
            Some((scope.map(str::to_owned), events::forbidden(kind, &why)))
        });
        let forbidden = forbidden.collect();
        if self.forbidden != forbidden {
            self.forbidden = forbidden;
            self.enqueue_all();
        }
    }

    /// Starts to reconcile the pipelines that are due, up to the limit of concurrency.
    async fn start_due(&mut self) -> Result<(), Stopped> {
        let names = self.queue.take_due(clock::now());
        if names.is_empty() {
            return Ok(());
        }
        let asked = names.clone();
        let snapshots = self.context.handle.ask(move |core, _| match core.leadership() {
            Leadership::Standby(_) => None,
            Leadership::Leader(_) => {
                Some(asked.into_iter().map(|name| snapshot(core, name)).collect::<Vec<_>>())
            }
        });
        let Some(snapshots) = snapshots.await? else {
            names.iter().for_each(|name| self.queue.done(name));
            self.reset();
            return Ok(());
        };
        // Notices of what led to these answers were sent before the answers.
        self.handle_pending_changes();
        // After a change of leaders the queue is empty.
        for snapshot in snapshots {
            match (self.queue.is_processing(&snapshot.name), snapshot.is_unrecovered) {
                (false, _) => {}
                // A notice follows when the leader knows it.
                (true, true) => self.queue.done(&snapshot.name),
                (true, false) => self.start(snapshot),
            }
        }
        Ok(())
    }

    fn start(&mut self, snapshot: PipelineSnapshot) {
        let PipelineSnapshot { name, view, .. } = snapshot;
        let seen = self.objects.pipelines.get(&name);
        let object = seen.filter(|seen| seen.object.meta().deletion_timestamp.is_none()).cloned();
        let state = self.states.remove(&name).unwrap_or_default();
        let mut phases = Vec::new();
        if let (Some(seen), Some(view)) = (&object, &view) {
            let shown = state.status(&seen.object).phase;
            let is_crowded = self.queue.len() > QUEUED_WITH_PHASES_MAX;
            phases = self.phases.take(&name, phase(&shown), view.phase, is_crowded);
        }
        let lookup = CacheLookup {
            namespace: name.parts().0.unwrap_or_default().to_owned(),
            objects: Arc::clone(&self.objects),
            pods: self.context.pods.clone(),
            nodes: self.context.nodes.clone(),
        };
        let tools = self.tools.clone();
        let namespace = name.parts().0.map(str::to_owned);
        let forbidden = self.forbidden.get(&None).or_else(|| self.forbidden.get(&namespace));
        let forbidden = forbidden.cloned();
        let reconciliation =
            Reconciliation { tools, lookup, name, object, view, forbidden, phases, state };
        self.running.spawn(reconciliation.run());
    }

    fn finish(&mut self, name: PipelineName, mut state: PipelineState) {
        self.queue.done(&name);
        let now = clock::now();
        self.track_endpoint_pods(&name, std::mem::take(&mut state.pods));
        if let Some(at) = state.failures.next_due() {
            self.queue.add(name.clone(), at);
        }
        if std::mem::take(&mut state.wrote) {
            let at = state.next_write_at(now);
            if at > now {
                self.queue.delay(&name, at);
            }
        }
        if self.objects.pipelines.contains_key(&name) {
            self.states.insert(name, state);
        }
    }

    fn handle_pending_changes(&mut self) {
        loop {
            match self.changes.try_recv() {
                Ok(change) => self.handle_change(&change.change),
                Err(TryRecvError::Lagged(_)) => self.enqueue_all(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn handle_change(&mut self, change: &FleetChange) {
        let FleetChange::Notice(notice) = change else { return };
        let now = clock::now();
        match notice {
            Notice::Elected(_) => {
                self.reset();
                self.enqueue_all();
            }
            Notice::Deposed(_) => self.reset(),
            Notice::Pipeline { pipeline, from, to, why } => {
                self.queue.add(pipeline.clone(), now);
                let Some(to) = *to else { return self.phases.forget(pipeline) };
                if *from != Some(to) {
                    self.phases.record(pipeline, (*from, to));
                }
                if let Some(seen) = self.context.objects.borrow().pipelines.get(pipeline) {
                    self.tools.events.phase_changed(&seen.object, *from, to, why);
                }
            }
            Notice::Binding { pipeline, .. } | Notice::Endpoints { pipeline, .. } => {
                self.queue.add(pipeline.clone(), now);
            }
            Notice::HoldEnded(_)
            | Notice::Joined(_)
            | Notice::Disconnected(_)
            | Notice::Lost(_)
            | Notice::GivenUp { .. }
            | Notice::DrainStarted(_)
            | Notice::Failing { .. }
            | Notice::Recovered(_)
            | Notice::Gone(_)
            | Notice::PoolGranted { .. }
            | Notice::StreamGranted { .. }
            | Notice::StreamRevoked { .. }
            | Notice::StreamFreed { .. }
            | Notice::EpochAhead { .. }
            | Notice::EpochRepeated { .. }
            | Notice::NameRefused { .. }
            | Notice::ProtocolViolation { .. } => {}
        }
    }

    /// Another leader may write from now on: running reconciliations are cancelled.
    fn reset(&mut self) {
        self.running = JoinSet::new();
        self.queue.clear();
        self.phases.clear();
        self.states.clear();
        self.endpoint_pods.clear();
        self.pods_of_pipeline.clear();
    }

    fn enqueue_all(&mut self) {
        let now = clock::now();
        let objects = self.objects.pipelines.keys().cloned();
        let names: Vec<_> = objects.chain(self.tools.managed_objects.pipelines()).collect();
        names.into_iter().for_each(|name| self.queue.add(name, now));
    }

    fn enqueue_class(&mut self, class: &ClusterName) {
        let now = clock::now();
        let of_class = |spec: &leasehold_manifest::manifest::PipelineSpec| {
            spec.workers.values().any(|node| node.class == class.parts().1)
        };
        for (name, seen) in &self.objects.pipelines {
            if name.parts().0 == class.parts().0 && of_class(&seen.object.spec.0) {
                self.queue.add(name.clone(), now);
            }
        }
    }

    fn on_objects_changed(&mut self, seen: Arc<Objects>) {
        let before = std::mem::replace(&mut self.objects, seen);
        if before.is_whole != self.objects.is_whole {
            return self.enqueue_all();
        }
        let now = clock::now();
        let is_same = |name: &PipelineName| match (
            before.pipelines.get(name),
            self.objects.pipelines.get(name),
        ) {
            (Some(one), Some(other)) => {
                Arc::ptr_eq(&one.object, &other.object) && one.problems == other.problems
            }
            (one, other) => one.is_none() && other.is_none(),
        };
        let names = before.pipelines.keys().chain(self.objects.pipelines.keys());
        let changed: Vec<_> = names.filter(|name| !is_same(name)).cloned().collect();
        changed.into_iter().for_each(|name| self.queue.add(name, now));
        let port = |objects: &Objects, class: &ClusterName| {
            objects.classes.get(class).and_then(|seen| seen.object.spec.0.port)
        };
        let classes = before.classes.keys().chain(self.objects.classes.keys());
        let others: BTreeSet<ClusterName> = classes
            .filter(|class| port(&before, class) != port(&self.objects, class))
            .cloned()
            .collect();
        others.iter().for_each(|class| self.enqueue_class(class));
    }

    fn on_pods_changed(&mut self) {
        let now = clock::now();
        for (name, endpoint_pods) in &mut self.endpoint_pods {
            let pod = self.context.pods.find(&name.namespace, &name.name);
            if !is_same(endpoint_pods.pod.as_ref(), pod.as_ref()) {
                endpoint_pods.pod = pod;
                endpoint_pods
                    .pipelines
                    .iter()
                    .for_each(|pipeline| self.queue.add(pipeline.clone(), now));
            }
        }
    }

    /// Remembers the pods that a pipeline's endpoints depend on, as the reconciliation saw them.
    fn track_endpoint_pods(
        &mut self,
        name: &PipelineName,
        pods: BTreeMap<PodName, Option<Arc<PodFacts>>>,
    ) {
        let names: BTreeSet<_> = pods.keys().cloned().collect();
        let before = if names.is_empty() {
            self.pods_of_pipeline.remove(name)
        } else {
            self.pods_of_pipeline.insert(name.clone(), names)
        };
        for pod in before.into_iter().flatten().filter(|pod| !pods.contains_key(pod)) {
            let Some(endpoint_pods) = self.endpoint_pods.get_mut(&pod) else { continue };
            endpoint_pods.pipelines.remove(name);
            if endpoint_pods.pipelines.is_empty() {
                self.endpoint_pods.remove(&pod);
            }
        }
        for (pod, seen) in pods {
            let is = self.context.pods.find(&pod.namespace, &pod.name);
            if !is_same(seen.as_ref(), is.as_ref()) {
                self.queue.add(name.clone(), clock::now());
            }
            let endpoint_pods = self.endpoint_pods.entry(pod).or_default();
            if endpoint_pods.pipelines.is_empty() {
                endpoint_pods.pod = is;
            }
            endpoint_pods.pipelines.insert(name.clone());
        }
    }
}

fn is_same(one: Option<&Arc<PodFacts>>, other: Option<&Arc<PodFacts>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

fn snapshot(core: &leasehold_coordinator_core::Core, name: PipelineName) -> PipelineSnapshot {
    let view = core.pipeline(&name);
    let is_unrecovered = view.is_some() && !core.is_recovered(&name);
    PipelineSnapshot { name, view, is_unrecovered }
}

fn phase(text: &str) -> Option<leasehold_coordinator_core::view::PipelinePhase> {
    use leasehold_coordinator_core::view::PipelinePhase::{Broken, Pending, Plotted, Ready};
    [Pending, Plotted, Ready, Broken].into_iter().find(|phase| phase.to_string() == text)
}
