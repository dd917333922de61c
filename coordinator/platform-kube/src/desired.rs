//! What is wanted, from the API server: it follows all kinds that people write, and the ConfigMaps
//! that sets name, tells the driver what is different, and shows the operator the objects
//! themselves. Nothing is told before all of them were listed once, so that a part is never taken
//! for the whole; while the API server does not answer, the last state stays.

mod feed;
mod objects;
mod pulse;
mod source;

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
use leasehold_driver::herald::Herald;
use leasehold_driver::platform::Freshness;
use leasehold_kube_api::resources::{Pipeline, StreamSet, WorkerClass, WorkerCluster};
use leasehold_manifest::collection::{Collection, ConfigMapName};
use leasehold_manifest::{ObjectId, Problem};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use self::feed::{Change, Feed, api};
pub use self::objects::{Objects, Seen};
use self::pulse::Pulse;
use self::source::Source;

/// The kinds that people write.
const KINDS: [&str; 4] = [WorkerCluster::KIND, StreamSet::KIND, WorkerClass::KIND, Pipeline::KIND];
/// Changes are gathered until nothing has changed for so long.
const QUIET: Duration = Duration::from_millis(5);
/// Changes that are gathered before they are told, whether or not more follow.
const GATHERED_MAX: usize = 10_000;
/// Changes that wait; the feeds wait when there are so many.
const CHANGES_MAX: usize = 256;

/// What follows the desired state.
#[derive(Debug)]
pub struct Following {
    /// What is wrong with the objects at present.
    pub(super) problems: watch::Receiver<Arc<Vec<Problem>>>,
    /// Told when the driver has the first desired state.
    pub(super) ready: oneshot::Receiver<()>,
    /// How current that is.
    pub(super) freshness: watch::Receiver<Freshness>,
    /// The objects as last seen.
    pub(super) objects: watch::Receiver<Arc<Objects>>,
    /// What is in force; none before all of them were listed once.
    pub(super) in_force: watch::Receiver<Option<Arc<Desired>>>,
}

/// Follows the objects of these namespaces, all where none is given, until the driver is gone.
pub fn start(client: Client, watched: &[String], events: mpsc::Sender<Event>) -> Following {
    let (problem_sender, problems) = watch::channel(Arc::default());
    let (object_sender, objects) = watch::channel(Arc::default());
    let (in_force_sender, in_force) = watch::channel(None);
    let (ready_sender, ready) = oneshot::channel();
    let (change_sender, changes) = mpsc::channel(CHANGES_MAX);
    let (freshness_sender, freshness) = watch::channel(Freshness::default());
    let pulse = Pulse::default();
    let mut follower = Follower {
        client: client.clone(),
        state: State::default(),
        feeds: BTreeMap::new(),
        pulse: pulse.clone(),
        change_sender,
        changes,
        herald: Herald::new(events, problem_sender, ready_sender),
        objects: object_sender,
        in_force: in_force_sender,
    };
    let scopes: Vec<Option<&str>> = match watched {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let asked = api(client, WorkerCluster::KIND, scopes[0]);
    tokio::spawn(pulse.run(asked, freshness_sender));
    for namespace in scopes {
        for kind in KINDS {
            let namespace = namespace.map(str::to_owned);
            follower.feed(Source::Objects { kind, namespace }, BTreeSet::new());
        }
    }
    tokio::spawn(follower.run());
    Following { problems, ready, freshness, objects, in_force }
}

/// What was seen so far.
#[derive(Debug, Default)]
struct State {
    collection: Collection,
    objects: Objects,
    /// What each source has given since its list began; what it gave before and does not list
    /// again is gone.
    given: BTreeMap<Source, Given>,
}

#[derive(Debug, Default)]
struct Given {
    objects: BTreeSet<ObjectId>,
    listed: BTreeSet<ObjectId>,
    /// The keys of a ConfigMap that are looked at.
    keys: BTreeSet<String>,
    /// A ConfigMap was there since its list began.
    there: bool,
    /// It was listed whole once.
    complete: bool,
}

struct Follower {
    client: Client,
    state: State,
    feeds: BTreeMap<Source, Feed>,
    pulse: Pulse,
    change_sender: mpsc::Sender<(Source, u64, Change)>,
    changes: mpsc::Receiver<(Source, u64, Change)>,
    herald: Herald,
    objects: watch::Sender<Arc<Objects>>,
    in_force: watch::Sender<Option<Arc<Desired>>>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let first = tokio::select! {
                () = self.herald.closed() => return,
                change = self.changes.recv() => change,
            };
            // This task has a sender of its own, so that there always is a next change.
            let Some((source, life, change)) = first else { return };
            self.take(&source, life, change);
            for _ in 0..GATHERED_MAX {
                match timeout(QUIET, self.changes.recv()).await {
                    Ok(Some((source, life, change))) => self.take(&source, life, change),
                    Ok(None) | Err(_) => break,
                }
            }
            self.follow_maps();
            if self.tell().await.is_err() {
                return;
            }
        }
    }

    fn feed(&mut self, source: Source, keys: BTreeSet<String>) {
        let (changes, pulse) = (self.change_sender.clone(), self.pulse.clone());
        let feed = Feed::start(&self.client, source.clone(), changes, pulse);
        self.state.given.insert(source.clone(), Given { keys, ..Given::default() });
        self.feeds.insert(source, feed);
    }

    fn take(&mut self, source: &Source, life: u64, change: Change) {
        // What a feed that was stopped had left to say is of no interest.
        if self.feeds.get(source).is_some_and(|feed| feed.life() == life) {
            self.state.take(source, change);
        }
    }

    /// Follows just the ConfigMaps and keys that sets name now.
    fn follow_maps(&mut self) {
        let named = self.state.collection.named();
        let stale = |(source, given): (&Source, &Given)| match source {
            Source::Map(map) if named.get(map) != Some(&given.keys) => Some(map.clone()),
            Source::Map(_) | Source::Objects { .. } => None,
        };
        let stale: Vec<ConfigMapName> = self.state.given.iter().filter_map(stale).collect();
        for map in stale {
            let source = Source::Map(map.clone());
            self.feeds.remove(&source);
            self.state.given.remove(&source);
            self.state.collection.forget_map(&map);
        }
        for (map, keys) in named {
            let source = Source::Map(map);
            if !self.feeds.contains_key(&source) {
                self.feed(source, keys);
            }
        }
    }

    async fn tell(&mut self) -> Result<(), ()> {
        if !self.herald.has_told() && !self.state.given.values().all(|given| given.complete) {
            return Ok(());
        }
        let reading = self.state.collection.read();
        self.state.blame(&reading.problems);
        self.state.objects.is_whole = true;
        self.objects.send_if_modified(|shown| {
            let differs = **shown != self.state.objects;
            if differs {
                *shown = Arc::new(self.state.objects.clone());
            }
            differs
        });
        // Also where nothing is different: whoever waits for a change has seen this one.
        self.in_force.send_replace(reading.desired.clone());
        self.herald.tell(reading).await
    }
}

impl State {
    fn take(&mut self, source: &Source, change: Change) {
        match change {
            Change::Begin => {
                let Some(given) = self.given.get_mut(source) else { return };
                given.listed.clear();
                given.there = false;
            }
            Change::Object(object) => self.put(source, *object),
            Change::ObjectGone(object) => {
                let id = id_of(source, &object);
                id.into_iter().for_each(|id| self.remove(source, &id));
            }
            Change::Map(map) => self.put_map(source, &map),
            Change::MapGone => self.put_map(source, &ConfigMap::default()),
            Change::End => self.end_list(source),
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
        if let Some(given) = self.given.get_mut(source) {
            given.listed.insert(id.clone());
            given.objects.insert(id.clone());
        }
        if self.objects.has_generation(&id, &metadata) {
            // Only metadata or the status are different: what is wanted was looked at before.
            return self.objects.refresh(&id, metadata, status);
        }
        let spec = self.collection.put(&id, spec);
        self.objects.put(&id, metadata, spec, status);
    }

    fn remove(&mut self, source: &Source, id: &ObjectId) {
        self.collection.remove(id);
        self.objects.remove(id);
        if let Some(given) = self.given.get_mut(source) {
            given.objects.remove(id);
            given.listed.remove(id);
        }
    }

    fn put_map(&mut self, source: &Source, map: &ConfigMap) {
        let (Source::Map(name), Some(given)) = (source, self.given.get_mut(source)) else { return };
        given.there = true;
        let nothing = BTreeMap::new();
        let data = map.data.as_ref().unwrap_or(&nothing);
        self.collection.put_map(name, &given.keys, data);
    }

    fn end_list(&mut self, source: &Source) {
        let Some(given) = self.given.get_mut(source) else { return };
        given.complete = true;
        let gone: Vec<ObjectId> = given.objects.difference(&given.listed).cloned().collect();
        if let Source::Map(_) = source
            && !given.there
        {
            self.put_map(source, &ConfigMap::default());
        }
        for id in gone {
            self.remove(source, &id);
        }
    }

    /// Gives each object the problems that are its own, or of a list that it names.
    fn blame(&mut self, problems: &[Problem]) {
        let mut by_place: BTreeMap<&str, Vec<&Problem>> = BTreeMap::new();
        for problem in problems {
            by_place.entry(&problem.file).or_default().push(problem);
        }
        let collection = &self.collection;
        self.objects.blame(|id| {
            let own = leasehold_manifest::collection::called(id);
            let places = std::iter::once(own).chain(collection.lists_of(id));
            let found = places.filter_map(|place| by_place.get(place.as_str()));
            found.flatten().map(|problem| (*problem).clone()).collect()
        });
    }
}

fn id_of(source: &Source, object: &DynamicObject) -> Option<ObjectId> {
    let Source::Objects { kind, .. } = source else { return None };
    let metadata = &object.metadata;
    Collection::id(kind, metadata.namespace.as_deref()?, metadata.name.as_deref()?)
}
