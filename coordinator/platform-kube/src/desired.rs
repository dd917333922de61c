//! The desired state from the API server. The reflector watches all kinds that users write and the
//! ConfigMaps that sets name, publishes changes to the driver, and gives the operator the objects
//! themselves. It publishes nothing before every kind was listed once, so that no partial state is
//! put in force. While the API server does not answer, the last state stays in force. A namespace
//! that the API server forbids to read keeps its last state, and no other one waits for it.

mod objects;
mod source;
mod source_watch;
mod watch_health;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::DynamicObject;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::desired_publisher::DesiredPublisher;
use leasehold_driver::platform::Freshness;
use leasehold_kube_api::resources::{Pipeline, StreamSet, WorkerClass, WorkerCluster};
use leasehold_manifest::collection::{Collection, ConfigMapName};
use leasehold_manifest::{ObjectId, Problem, Reading};
use leasehold_types::limits::NamespaceShare;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use self::objects::created;
pub use self::objects::{CachedObject, Objects};
use self::source::Source;
use self::source_watch::{SourceWatch, WatchChange, api};
use self::watch_health::WatchHealth;

/// The kinds that users write.
const KINDS: [&str; 4] = [WorkerCluster::KIND, StreamSet::KIND, WorkerClass::KIND, Pipeline::KIND];
/// A batch ends when no change arrives for this long.
const QUIET: Duration = Duration::from_millis(5);
/// The most changes in one batch.
const GATHERED_MAX: usize = 10_000;
/// The most changes in the queue; when it is full, the watches wait.
const CHANGES_MAX: usize = 256;

/// The channels of the running reflector.
#[derive(Debug)]
pub struct DesiredWatch {
    /// The current problems of the objects.
    pub(super) problems: watch::Receiver<Arc<Vec<Problem>>>,
    /// Resolves when the driver has the first desired state.
    pub(super) ready: oneshot::Receiver<()>,
    /// When the state was last confirmed as up to date.
    pub(super) freshness: watch::Receiver<Freshness>,
    /// The objects as last seen.
    pub(super) objects: watch::Receiver<Arc<Objects>>,
    /// The desired state in force; `None` before all objects were listed once.
    pub(super) in_force: watch::Receiver<Option<Arc<Desired>>>,
}

/// Watches the objects of these namespaces (all, if none is given) until the driver has ended.
/// Each namespace may use `share` of the limits.
pub fn start(
    client: Client,
    watched: &[String],
    share: NamespaceShare,
    events: mpsc::Sender<Event>,
) -> DesiredWatch {
    let (problem_sender, problems) = watch::channel(Arc::default());
    let (object_sender, objects) = watch::channel(Arc::default());
    let (in_force_sender, in_force) = watch::channel(None);
    let (ready_sender, ready) = oneshot::channel();
    let (change_sender, changes) = mpsc::channel(CHANGES_MAX);
    let (freshness_sender, freshness) = watch::channel(Freshness::default());
    let health = WatchHealth::default();
    let mut reflector = DesiredReflector {
        client: client.clone(),
        state: State { collection: Collection::new(share), ..State::default() },
        watches: BTreeMap::new(),
        health: health.clone(),
        change_sender,
        changes,
        desired_publisher: DesiredPublisher::new(events, problem_sender, ready_sender),
        objects: object_sender,
        in_force: in_force_sender,
    };
    let scopes: Vec<Option<&str>> = match watched {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let probed = scopes.iter().map(|scope| api(client.clone(), WorkerCluster::KIND, *scope));
    tokio::spawn(health.run(probed.collect(), freshness_sender));
    for namespace in scopes {
        for kind in KINDS {
            let namespace = namespace.map(str::to_owned);
            reflector.start_watch(Source::Objects { kind, namespace }, BTreeSet::new());
        }
    }
    tokio::spawn(reflector.run());
    DesiredWatch { problems, ready, freshness, objects, in_force }
}

/// Everything that the watches have reported.
#[derive(Debug, Default)]
struct State {
    collection: Collection,
    objects: Objects,
    /// UID and generation of each object as its spec was last parsed: an update with the same ones
    /// changes only metadata or status.
    parsed: BTreeMap<ObjectId, (Option<String>, i64)>,
    /// A spec or a list has changed since the last reading.
    is_spec_changed: bool,
    /// An object has changed since the objects were last published.
    is_object_changed: bool,
    /// Readings so far, each over every object.
    readings: u64,
    /// The objects of each source. An object that a completed list does not contain is deleted.
    sources: BTreeMap<Source, SourceState>,
}

#[derive(Debug, Default)]
struct SourceState {
    objects: BTreeSet<ObjectId>,
    listed: BTreeSet<ObjectId>,
    /// The keys of a ConfigMap that are read.
    keys: BTreeSet<String>,
    /// The ConfigMap was seen since its list started.
    present: bool,
    /// A list was completed once.
    synced: bool,
}

struct DesiredReflector {
    client: Client,
    state: State,
    watches: BTreeMap<Source, SourceWatch>,
    health: WatchHealth,
    change_sender: mpsc::Sender<(Source, u64, WatchChange)>,
    changes: mpsc::Receiver<(Source, u64, WatchChange)>,
    desired_publisher: DesiredPublisher,
    objects: watch::Sender<Arc<Objects>>,
    in_force: watch::Sender<Option<Arc<Desired>>>,
}

impl DesiredReflector {
    async fn run(mut self) {
        loop {
            let first = tokio::select! {
                () = self.desired_publisher.closed() => return,
                change = self.changes.recv() => change,
            };
            // This task has a sender of its own, so the channel never closes.
            let Some((source, watch_id, change)) = first else { return };
            self.apply(&source, watch_id, change);
            for _ in 0..GATHERED_MAX {
                match timeout(QUIET, self.changes.recv()).await {
                    Ok(Some((source, watch_id, change))) => self.apply(&source, watch_id, change),
                    Ok(None) | Err(_) => break,
                }
            }
            self.watch_named_maps();
            if self.publish().await.is_err() {
                return;
            }
        }
    }

    fn start_watch(&mut self, source: Source, keys: BTreeSet<String>) {
        let (changes, health) = (self.change_sender.clone(), self.health.clone());
        let watch_handle = SourceWatch::start(&self.client, source.clone(), changes, health);
        self.state.sources.insert(source.clone(), SourceState { keys, ..SourceState::default() });
        self.watches.insert(source, watch_handle);
    }

    fn apply(&mut self, source: &Source, watch_id: u64, change: WatchChange) {
        // A stopped watch may have left changes in the queue: they are dropped.
        if self.watches.get(source).is_some_and(|watch_handle| watch_handle.watch_id() == watch_id)
        {
            self.state.apply(source, change);
        }
    }

    /// Watches exactly the ConfigMaps and keys that sets name now.
    fn watch_named_maps(&mut self) {
        let named = self.state.collection.named();
        let stale = |(source, state): (&Source, &SourceState)| match source {
            Source::Map(map) if named.get(map) != Some(&state.keys) => Some(map.clone()),
            Source::Map(_) | Source::Objects { .. } => None,
        };
        let stale: Vec<ConfigMapName> = self.state.sources.iter().filter_map(stale).collect();
        for map in stale {
            let source = Source::Map(map.clone());
            self.watches.remove(&source);
            self.state.sources.remove(&source);
            self.state.collection.forget_map(&map);
            self.state.is_spec_changed = true;
        }
        for (map, keys) in named {
            let source = Source::Map(map);
            if !self.watches.contains_key(&source) {
                self.start_watch(source, keys);
            }
        }
    }

    async fn publish(&mut self) -> Result<(), ()> {
        if !self.desired_publisher.has_published()
            && !self.state.sources.values().all(|state| state.synced)
        {
            return Ok(());
        }
        self.state.is_object_changed |= !self.state.objects.is_whole;
        self.state.objects.is_whole = true;
        let reading = self.state.read();
        if std::mem::take(&mut self.state.is_object_changed) {
            self.objects.send_replace(Arc::new(self.state.objects.clone()));
        }
        let Some(reading) = reading else { return Ok(()) };
        // Sent also without a difference: the validator waits for the next batch.
        self.in_force.send_replace(reading.desired.clone());
        self.desired_publisher.publish(reading).await
    }
}

impl State {
    fn apply(&mut self, source: &Source, change: WatchChange) {
        match change {
            WatchChange::ListStarted => {
                let Some(state) = self.sources.get_mut(source) else { return };
                state.listed.clear();
                state.present = false;
            }
            WatchChange::Applied(object) => self.put(source, *object),
            WatchChange::Deleted(object) => {
                let id = id_of(source, &object);
                id.into_iter().for_each(|id| self.remove(source, &id));
            }
            WatchChange::ConfigMapApplied(map) => self.put_map(source, &map),
            WatchChange::ConfigMapDeleted => self.put_map(source, &ConfigMap::default()),
            WatchChange::Forbidden(why) => self.forbid(source, &why),
            WatchChange::ListCompleted => self.end_list(source),
        }
    }

    fn put(&mut self, source: &Source, object: DynamicObject) {
        let Source::Objects { kind, .. } = source else { return };
        let DynamicObject { metadata, mut data, .. } = object;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let name = metadata.name.clone().unwrap_or_default();
        let spec = data["spec"].take();
        let status = data["status"].take();
        let Some(id) = Collection::id(kind, &namespace, &name) else { return };
        if let Some(state) = self.sources.get_mut(source) {
            state.listed.insert(id.clone());
            state.objects.insert(id.clone());
        }
        let version = metadata.generation.map(|generation| (metadata.uid.clone(), generation));
        if version.is_some() && self.parsed.get(&id) == version.as_ref() {
            // Only metadata or status differ: the spec of this generation was parsed before.
            self.is_object_changed |= self.objects.refresh(&id, metadata, status);
            return;
        }
        let spec = self.collection.put(&id, created(&metadata), spec);
        self.is_spec_changed = true;
        self.is_object_changed |= self.objects.put(&id, metadata, spec, status);
        if let Some(version) = version {
            self.parsed.insert(id, version);
        }
    }

    fn remove(&mut self, source: &Source, id: &ObjectId) {
        self.collection.remove(id);
        self.objects.remove(id);
        self.parsed.remove(id);
        self.is_spec_changed = true;
        self.is_object_changed = true;
        if let Some(state) = self.sources.get_mut(source) {
            state.objects.remove(id);
            state.listed.remove(id);
        }
    }

    fn put_map(&mut self, source: &Source, map: &ConfigMap) {
        let (Source::Map(name), Some(state)) = (source, self.sources.get_mut(source)) else {
            return;
        };
        state.present = true;
        let nothing = BTreeMap::new();
        let data = map.data.as_ref().unwrap_or(&nothing);
        self.collection.put_map(name, &state.keys, data);
        self.is_spec_changed = true;
    }

    /// The objects cannot be read: others do not wait for them.
    fn forbid(&mut self, source: &Source, why: &str) {
        let Some(state) = self.sources.get_mut(source) else { return };
        state.synced = true;
        let Source::Map(name) = source else { return };
        let problem = format!(
            "the coordinator may not read this ConfigMap: add components/stream-lists to the \
             installation, or put the streams into the StreamSet ({why})"
        );
        self.collection.refuse_map(name, &state.keys, &problem);
        self.is_spec_changed = true;
    }

    fn end_list(&mut self, source: &Source) {
        let Some(state) = self.sources.get_mut(source) else { return };
        state.synced = true;
        let gone: Vec<ObjectId> = state.objects.difference(&state.listed).cloned().collect();
        if let Source::Map(_) = source
            && !state.present
        {
            self.put_map(source, &ConfigMap::default());
        }
        for id in gone {
            self.remove(source, &id);
        }
    }

    /// The desired state over all objects, if a spec or a list has changed since the last call.
    fn read(&mut self) -> Option<Reading> {
        let is_first = self.readings == 0;
        if !std::mem::take(&mut self.is_spec_changed) && !is_first {
            return None;
        }
        self.readings += 1;
        let reading = self.collection.read();
        self.is_object_changed |= self.set_problems(&reading.problems);
        let problems = self.collection.reported(&reading.problems);
        Some(Reading { problems, ..reading })
    }

    /// Sets each object's problems: its own, and those of the lists that it names.
    fn set_problems(&mut self, problems: &[Problem]) -> bool {
        let mut by_place: BTreeMap<&str, Vec<&Problem>> = BTreeMap::new();
        for problem in problems {
            by_place.entry(&problem.file).or_default().push(problem);
        }
        let collection = &self.collection;
        self.objects.set_problems(|id| {
            let own = leasehold_manifest::collection::called(id);
            let places = std::iter::once(own).chain(collection.lists_of(id));
            let found = places.filter_map(|place| by_place.get(place.as_str()));
            found.flatten().map(|problem| (*problem).clone()).collect()
        })
    }
}

fn id_of(source: &Source, object: &DynamicObject) -> Option<ObjectId> {
    let Source::Objects { kind, .. } = source else { return None };
    let metadata = &object.metadata;
    Collection::id(kind, metadata.namespace.as_deref()?, metadata.name.as_deref()?)
}
