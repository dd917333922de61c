//! The desired state from the API server. The reflector watches all kinds that users write and the
//! ConfigMaps with lists of streams, publishes changes to the driver, and gives the operator the
//! objects themselves. It publishes nothing before every kind was listed once, so that no partial
//! state is put in force. While the API server does not answer, the last state stays in force. A
//! namespace that the API server forbids to read keeps its last state, and no other one waits for
//! it.

mod objects;
mod source;
mod source_watch;
mod watch_health;

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::DynamicObject;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::freshness::Freshness;
use leasehold_kube_api::resources::{Pipeline, StreamSet, WorkerClass, WorkerCluster};
use leasehold_manifest::collection::{Collection, ConfigMapName};
use leasehold_manifest::{ObjectId, Problem, Reading};
use leasehold_platform::desired_publisher::DesiredPublisher;
use leasehold_types::limits::NamespaceShare;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use self::objects::created;
pub use self::objects::{CachedObject, Objects};
use self::source::{NamedMaps, Source};
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
    let scopes: Vec<Option<String>> = match watched {
        [] => vec![None],
        names => names.iter().cloned().map(Some).collect(),
    };
    let source = match watched {
        [] => "any namespace".to_owned(),
        names => format!("a watched namespace ({})", names.join(", ")),
    };
    let mut reflector = DesiredReflector {
        client: client.clone(),
        scopes: scopes.clone(),
        state: State { collection: Collection::new(share), ..State::default() },
        watches: BTreeMap::new(),
        health: health.clone(),
        change_sender,
        changes,
        desired_publisher: DesiredPublisher::new(events, problem_sender, ready_sender, source),
        objects: object_sender,
        in_force: in_force_sender,
    };
    let probed = scopes.iter().map(Option::as_deref);
    let probed = probed.map(|scope| api(client.clone(), WorkerCluster::KIND, scope));
    tokio::spawn(health.run(probed.collect(), freshness_sender));
    for namespace in scopes {
        for kind in KINDS {
            let namespace = namespace.clone();
            reflector.start_watch(Source::Objects { kind, namespace }, NamedMaps::new());
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
    /// The ConfigMaps of which these keys are read; all others are dropped.
    maps: NamedMaps,
    /// Those of them that were seen since the list started.
    listed_maps: BTreeSet<ConfigMapName>,
    /// A list was completed once.
    synced: bool,
}

struct DesiredReflector {
    client: Client,
    /// The namespaces that are watched; all for `None`.
    scopes: Vec<Option<String>>,
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
            self.follow_named_maps();
            if self.publish().await.is_err() {
                return;
            }
        }
    }

    fn start_watch(&mut self, source: Source, maps: NamedMaps) {
        let (changes, health) = (self.change_sender.clone(), self.health.clone());
        let watch_handle = SourceWatch::start(&self.client, source.clone(), &maps, changes, health);
        self.state.sources.insert(source.clone(), SourceState { maps, ..SourceState::default() });
        self.watches.insert(source, watch_handle);
    }

    fn apply(&mut self, source: &Source, watch_id: u64, change: WatchChange) {
        // A stopped watch may have left changes in the queue: they are dropped.
        if self.watches.get(source).is_some_and(|watch_handle| watch_handle.watch_id() == watch_id)
        {
            self.state.apply(source, change);
        }
    }

    /// Reads exactly the ConfigMaps and keys that sets name now. Where there is another one, the
    /// list starts anew, since what nobody named was dropped.
    fn follow_named_maps(&mut self) {
        let named = self.state.collection.named();
        for namespace in self.scopes.clone() {
            let sets = Source::Objects { kind: StreamSet::KIND, namespace: namespace.clone() };
            // Sets that come one by one would start the list for each.
            if !self.state.is_synced(&sets) {
                continue;
            }
            let is_here = |(map, _): &(&ConfigMapName, &BTreeSet<String>)| {
                namespace.as_ref().is_none_or(|namespace| *namespace == map.0)
            };
            let wanted = named.iter().filter(is_here);
            let wanted: NamedMaps = wanted.map(|(map, keys)| (map.clone(), keys.clone())).collect();
            let source = Source::StreamLists { namespace: namespace.clone() };
            match self.state.want_maps(&source, wanted) {
                WantedMaps::AreRead => {}
                WantedMaps::None => drop(self.watches.remove(&source)),
                WantedMaps::Unread(wanted) => self.start_watch(source, wanted),
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
                state.listed_maps.clear();
            }
            WatchChange::Applied(object) => self.put(source, *object),
            WatchChange::Deleted(object) => {
                let id = id_of(source, &object);
                id.into_iter().for_each(|id| self.remove(source, &id));
            }
            WatchChange::ConfigMapApplied(name, data) => self.put_map(source, &name, &data),
            WatchChange::ConfigMapDeleted(name) => self.put_map(source, &name, &BTreeMap::new()),
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

    /// Whether a list of this source was completed once.
    fn is_synced(&self, source: &Source) -> bool {
        self.sources.get(source).is_some_and(|state| state.synced)
    }

    /// Forgets the ConfigMaps that are not wanted any more. Says what to do for the others.
    fn want_maps(&mut self, source: &Source, wanted: NamedMaps) -> WantedMaps {
        let Some(state) = self.sources.get_mut(source) else {
            return if wanted.is_empty() {
                WantedMaps::AreRead
            } else {
                WantedMaps::Unread(wanted)
            };
        };
        let gone = state.maps.keys().filter(|map| !wanted.contains_key(*map));
        for map in gone {
            self.collection.forget_map(map);
            self.is_spec_changed = true;
        }
        if wanted.is_empty() {
            self.sources.remove(source);
            return WantedMaps::None;
        }
        let is_read = |(map, keys): (&ConfigMapName, &BTreeSet<String>)| {
            state.maps.get(map).is_some_and(|read| read.is_superset(keys))
        };
        if wanted.iter().all(is_read) {
            state.maps = wanted;
            return WantedMaps::AreRead;
        }
        if !state.synced {
            // Asked again once this list is complete, so that edits never keep one from it.
            state.maps.retain(|map, _| wanted.contains_key(map));
            return WantedMaps::AreRead;
        }
        WantedMaps::Unread(wanted)
    }

    /// Stores what a ConfigMap contains: nothing, if it does not exist.
    fn put_map(&mut self, source: &Source, name: &ConfigMapName, data: &BTreeMap<String, String>) {
        let Some(state) = self.sources.get_mut(source) else { return };
        let Some(keys) = state.maps.get(name) else { return };
        state.listed_maps.insert(name.clone());
        self.collection.put_map(name, keys, data);
        self.is_spec_changed = true;
    }

    /// The objects cannot be read: others do not wait for them.
    fn forbid(&mut self, source: &Source, why: &str) {
        let Some(state) = self.sources.get_mut(source) else { return };
        state.synced = true;
        let problem = format!(
            "the coordinator may not read ConfigMaps: add components/stream-lists to the \
             installation, or put the streams into the StreamSet ({why})"
        );
        for (name, keys) in &state.maps {
            self.collection.refuse_map(name, keys, &problem);
            self.is_spec_changed = true;
        }
    }

    fn end_list(&mut self, source: &Source) {
        let Some(state) = self.sources.get_mut(source) else { return };
        state.synced = true;
        let gone: Vec<ObjectId> = state.objects.difference(&state.listed).cloned().collect();
        let is_missing = |name: &&ConfigMapName| !state.listed_maps.contains(*name);
        let missing: Vec<ConfigMapName> = state.maps.keys().filter(is_missing).cloned().collect();
        for name in missing {
            self.put_map(source, &name, &BTreeMap::new());
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

/// What to do for the ConfigMaps that sets name.
enum WantedMaps {
    /// Nothing.
    AreRead,
    /// End the watch: no set names a ConfigMap.
    None,
    /// Read these from the start.
    Unread(NamedMaps),
}

fn id_of(source: &Source, object: &DynamicObject) -> Option<ObjectId> {
    let Source::Objects { kind, .. } = source else { return None };
    let metadata = &object.metadata;
    Collection::id(kind, metadata.namespace.as_deref()?, metadata.name.as_deref()?)
}
