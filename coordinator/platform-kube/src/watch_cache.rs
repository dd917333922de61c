//! The cache of watched objects: it lists and watches with backoff, keeps a value per object,
//! reports whether every object was listed once, and notifies of changes. While the API server
//! cannot be reached, the cache keeps the objects as last seen.
//!
//! * One named object: [`WatchCache::start`] with [`named`], then [`WatchCache::only`].
//! * Objects by label or in several namespaces: one [`Api`] each, then [`WatchCache::get`].
//! * Events in their order, for code with a state of its own: [`events`].

mod events;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::events::{RetriedError, events};

/// The most objects in one cache. A cache with more never becomes complete.
pub const OBJECTS_MAX: usize = 500_000;

/// Names an object within its kind. Objects outside namespaces have an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }

    /// The key with this namespace and name.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// The watch of one named object.
pub fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// A cache of the objects of a kind; cheap to clone. Dropping the last clone ends its watches.
#[derive(Debug)]
pub struct WatchCache<T> {
    shared: Arc<Shared<T>>,
    _watches: Arc<JoinSet<()>>,
}

impl<T> Clone for WatchCache<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), _watches: Arc::clone(&self._watches) }
    }
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    /// The namespace of each watch; `None` for all.
    namespaces: Vec<Option<String>>,
    /// Counts the changes.
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct State<T> {
    entries: BTreeMap<ObjectKey, Entry<T>>,
    /// Whether each watch has listed all of its objects once.
    listed: Vec<bool>,
    /// The last failure of each watch that is broken.
    failures: Vec<Option<WatchFailure>>,
    /// Keys that have changed since the last [`WatchCache::take_changed`]; `None` if not collected.
    changed: Option<BTreeSet<ObjectKey>>,
    /// An object was left out at [`OBJECTS_MAX`].
    is_full: bool,
}

/// Why a watch is broken.
#[derive(Clone, Debug)]
struct WatchFailure {
    message: String,
    is_forbidden: bool,
}

#[derive(Debug)]
struct Entry<T> {
    uid: String,
    resource_version: u64,
    /// This process wrote it, and no watch has shown it yet.
    is_own_write: bool,
    value: Arc<T>,
}

impl<T: PartialEq + Send + Sync + 'static> WatchCache<T> {
    /// Watches the objects of `apis`, on the current runtime. `keep` returns the value to keep
    /// of an object, or `None` to leave the object out. `name` names the objects in logs.
    pub fn start<K>(
        name: &'static str,
        apis: Vec<Api<K>>,
        config: &watcher::Config,
        keep: impl Fn(&K) -> Option<T> + Clone + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let state = State {
            entries: BTreeMap::new(),
            listed: vec![false; apis.len()],
            failures: vec![None; apis.len()],
            changed: None,
            is_full: false,
        };
        let (version, _) = watch::channel(0);
        let namespaces = apis.iter().map(|api| api.namespace().map(str::to_owned)).collect();
        let shared = Arc::new(Shared { state: Mutex::new(state), namespaces, version });
        let mut watches = JoinSet::new();
        for (index, api) in apis.into_iter().enumerate() {
            let namespace = api.namespace().map(str::to_owned);
            let scope = Scope { index, namespace, shared: Arc::clone(&shared) };
            watches.spawn(scope.follow(name, api, config.clone(), keep.clone()));
        }
        Self { shared, _watches: Arc::new(watches) }
    }

    /// Collects the keys of objects that change from now on, for [`WatchCache::take_changed`].
    pub fn collect_changed(&self) {
        self.state().changed.get_or_insert_default();
    }

    /// Whether every object was listed once, but for those of namespaces that the API server
    /// forbids to list. Before that, or with [`WatchCache::forbidden_in`], an object that is
    /// missing may exist.
    pub fn is_complete(&self) -> bool {
        let state = self.state();
        let is_forbidden = |index: usize| {
            let failure = state.failures[index].as_ref();
            self.shared.namespaces[index].is_some()
                && failure.is_some_and(|failure| failure.is_forbidden)
        };
        let mut watches = state.listed.iter().enumerate();
        !state.is_full && watches.all(|(index, listed)| *listed || is_forbidden(index))
    }

    /// Waits until every object was listed once.
    pub async fn complete(&self) {
        let mut version = self.changed();
        while !self.is_complete() {
            if version.changed().await.is_err() {
                return;
            }
        }
    }

    /// Notifies of each change, when the cache becomes complete, and when the API server begins to
    /// forbid it. The number has no meaning.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// The keys of objects that a watch has shown as changed or deleted since the last call.
    pub fn take_changed(&self) -> BTreeSet<ObjectKey> {
        self.state().changed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The error of a watch that fails at present.
    pub fn failure(&self) -> Option<String> {
        self.state().failures.iter().flatten().next().map(|failure| failure.message.clone())
    }

    /// The answer of the API server, if it forbids a list that was never read and that has the
    /// objects of this namespace; all namespaces if none is given.
    pub fn forbidden_in(&self, namespace: Option<&str>) -> Option<String> {
        let state = self.state();
        let watches = self.shared.namespaces.iter().zip(&state.failures);
        let mut failures = watches.filter_map(|(watched, failure)| {
            let is_its = watched.as_deref().is_none_or(|watched| namespace == Some(watched));
            failure.as_ref().filter(|failure| is_its && failure.is_forbidden)
        });
        failures.next().map(|failure| failure.message.clone())
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.state().entries.get(key).map(|entry| Arc::clone(&entry.value))
    }

    /// The object of a cache that watches one named object.
    pub fn only(&self) -> Option<Arc<T>> {
        self.state().entries.values().next().map(|entry| Arc::clone(&entry.value))
    }

    /// Every object.
    pub fn all(&self) -> Vec<(ObjectKey, Arc<T>)> {
        let entry = |(key, entry): (&ObjectKey, &Entry<T>)| (key.clone(), Arc::clone(&entry.value));
        self.state().entries.iter().map(entry).collect()
    }

    /// Stores an object that this process has just written, without a notification. The cache
    /// ignores older versions of it from the watch.
    pub fn store(&self, object: &impl ResourceExt, value: T) {
        let entry = Entry::new(object, true, value);
        self.state().put(ObjectKey::of(object), entry);
    }

    /// Removes an object that this process has just deleted, without a notification.
    pub fn remove(&self, key: &ObjectKey) {
        self.state().entries.remove(key);
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.shared.lock()
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("the lock is not poisoned")
    }

    fn notify(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }
}

/// One watch of a cache.
struct Scope<T> {
    index: usize,
    /// `None` for all namespaces.
    namespace: Option<String>,
    shared: Arc<Shared<T>>,
}

impl<T: PartialEq + Send + Sync + 'static> Scope<T> {
    async fn follow<K>(
        self,
        name: &'static str,
        api: Api<K>,
        config: watcher::Config,
        keep: impl Fn(&K) -> Option<T>,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut events = pin!(events(name, api, config));
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(failed) => {
                    let is_forbidden = failed.is_forbidden_list();
                    let failure = WatchFailure { message: failed.message, is_forbidden };
                    let before = self.shared.lock().failures[self.index].replace(failure);
                    if is_forbidden && !before.is_some_and(|before| before.is_forbidden) {
                        self.shared.notify();
                    }
                    continue;
                }
            };
            // A list that has started may still fail.
            if !matches!(event, Event::Init) {
                self.shared.lock().failures[self.index] = None;
            }
            let is_new = match event {
                Event::Init => {
                    listed.clear();
                    self.shared.lock().is_full = false;
                    false
                }
                Event::InitApply(object) => {
                    let key = ObjectKey::of(&object);
                    listed.insert(key.clone());
                    self.shared.lock().observe(key, &object, keep(&object))
                }
                Event::InitDone => {
                    let is_own = |key: &ObjectKey| {
                        self.namespace.as_ref().is_none_or(|watched| *watched == key.namespace)
                    };
                    self.shared.lock().end_list(self.index, is_own, &std::mem::take(&mut listed))
                }
                Event::Apply(object) => {
                    self.shared.lock().observe(ObjectKey::of(&object), &object, keep(&object))
                }
                Event::Delete(object) => {
                    self.shared.lock().delete(ObjectKey::of(&object), object.meta().uid.as_deref())
                }
            };
            if is_new {
                self.shared.notify();
            }
        }
    }
}

impl<T> Entry<T> {
    fn new(object: &impl ResourceExt, is_own_write: bool, value: T) -> Self {
        let version = object.resource_version().and_then(|version| version.parse().ok());
        Self {
            uid: object.uid().unwrap_or_default(),
            resource_version: version.unwrap_or(0),
            is_own_write,
            value: Arc::new(value),
        }
    }
}

impl<T: PartialEq> State<T> {
    /// Stores an object from a watch event; returns whether it has changed.
    fn observe(&mut self, key: ObjectKey, object: &impl ResourceExt, value: Option<T>) -> bool {
        let Some(value) = value else {
            let is_known = self.entries.remove(&key).is_some();
            return is_known && self.has_changed(key);
        };
        let entry = Entry::new(object, false, value);
        self.put(key.clone(), entry) && self.has_changed(key)
    }

    /// Stores an entry, unless this process wrote a later version; returns whether it has changed.
    fn put(&mut self, key: ObjectKey, entry: Entry<T>) -> bool {
        let has_room = self.entries.len() < OBJECTS_MAX;
        match self.entries.get_mut(&key) {
            Some(known) => {
                let is_older = known.uid == entry.uid
                    && known.is_own_write
                    && known.resource_version > entry.resource_version;
                if is_older {
                    return false;
                }
                let is_same = known.uid == entry.uid && known.value == entry.value;
                *known = entry;
                !is_same
            }
            None if !has_room => {
                if !std::mem::replace(&mut self.is_full, true) {
                    tracing::error!(
                        limit = OBJECTS_MAX,
                        "a watch cache is full: serve fewer namespaces (--watch-namespace)"
                    );
                }
                false
            }
            None => {
                self.entries.insert(key, entry);
                true
            }
        }
    }

    /// Removes a deleted object, unless an object of its name with another UID is cached.
    fn delete(&mut self, key: ObjectKey, uid: Option<&str>) -> bool {
        let is_known =
            self.entries.get(&key).is_some_and(|entry| uid.is_none_or(|uid| entry.uid == uid));
        is_known && self.entries.remove(&key).is_some() && self.has_changed(key)
    }

    /// Removes the objects that a completed list did not contain.
    fn end_list(
        &mut self,
        index: usize,
        is_own: impl Fn(&ObjectKey) -> bool,
        listed: &BTreeSet<ObjectKey>,
    ) -> bool {
        let is_first = !std::mem::replace(&mut self.listed[index], true);
        let gone = self.entries.keys().filter(|key| is_own(key) && !listed.contains(*key));
        let gone: Vec<ObjectKey> = gone.cloned().collect();
        let is_new = is_first || !gone.is_empty();
        for key in gone {
            self.entries.remove(&key);
            self.has_changed(key);
        }
        is_new
    }

    fn has_changed(&mut self, key: ObjectKey) -> bool {
        self.changed.iter_mut().for_each(|changed| _ = changed.insert(key.clone()));
        true
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    fn object(name: &str, uid: &str, version: u64) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some("ns".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    fn state() -> State<u32> {
        State {
            entries: BTreeMap::new(),
            listed: vec![false],
            failures: vec![None],
            changed: Some(BTreeSet::new()),
            is_full: false,
        }
    }

    #[test]
    fn a_watch_event_is_a_change_only_if_the_value_differs() {
        let mut state = state();
        assert!(state.observe(key("a"), &object("a", "1", 5), Some(7)));
        assert!(!state.observe(key("a"), &object("a", "1", 6), Some(7)), "the value is the same");
        assert!(state.observe(key("a"), &object("a", "1", 7), Some(8)));
        assert!(state.observe(key("a"), &object("a", "1", 8), None), "it is no longer kept");
        assert!(!state.delete(key("a"), Some("1")));
        assert_eq!(state.changed, Some(BTreeSet::from([key("a")])));
    }

    #[test]
    fn an_own_write_hides_older_watch_events_and_is_not_a_change() {
        let mut state = state();
        state.observe(key("a"), &object("a", "1", 5), Some(7));
        let written = object("a", "1", 9);
        state.put(key("a"), Entry::new(&written, true, 8));
        assert!(
            !state.observe(key("a"), &object("a", "1", 8), Some(1)),
            "the event is older than the write"
        );
        assert!(!state.observe(key("a"), &written, Some(8)), "the event is the write itself");
        assert!(state.observe(key("a"), &object("a", "1", 10), Some(9)));
        assert!(!state.delete(key("a"), Some("earlier")), "the deleted object has another UID");
        assert!(state.delete(key("a"), Some("1")));
    }

    #[test]
    fn a_list_removes_missing_objects_and_the_first_one_completes_the_cache() {
        let mut state = state();
        assert!(state.end_list(0, |_| true, &BTreeSet::new()), "the first list is a change");
        state.observe(key("a"), &object("a", "1", 5), Some(7));
        state.observe(key("b"), &object("b", "2", 5), Some(7));
        state.changed = Some(BTreeSet::new());
        assert!(state.end_list(0, |key| key.namespace == "ns", &BTreeSet::from([key("a")])));
        assert_eq!(state.changed, Some(BTreeSet::from([key("b")])));
        assert!(!state.end_list(0, |key| key.namespace == "other", &BTreeSet::new()));
        assert_eq!(state.entries.len(), 1);
    }
}
