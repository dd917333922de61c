//! What was made for pipelines, as the API server last showed it: kept as the little that tells
//! whether it is as it should be. Whoever changes or deletes something of it is noticed, and what
//! this replica has written itself is not.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use leasehold_kube_api::names::{FIELD_MANAGER, MANAGED_BY_LABEL};
use leasehold_kube_api::status::PipelineBindingStatus;
use leasehold_platform_kube::pods::version;
use leasehold_types::PipelineName;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::kinds::{Kind, home, is_of};
use crate::digest::digest;

/// An object, in what is kept of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    /// Which of the objects of its name it is.
    pub(super) uid: String,
    /// When it was written last, in the API server's count.
    pub(super) version: u64,
    /// The generation of its spec, where the kind has one.
    pub(super) generation: Option<i64>,
    /// The digest of what is compared.
    pub(super) essence: String,
    /// What nobody can change.
    pub(super) fixed: String,
    /// Whether its deletion was asked for.
    pub(super) goes: bool,
    /// The UID of the Pipeline that it says it is of.
    pub(super) owner: Option<String>,
    /// Whether it has no controller at all.
    pub(super) is_stray: bool,
    /// The status, of a PipelineBinding.
    pub(super) status: Option<Box<PipelineBindingStatus>>,
}

type Key = (Kind, String);
type Marks = BTreeMap<PipelineName, BTreeMap<Key, Mark>>;

/// What was made; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Made(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    marks: Marks,
    /// Pipelines of which something was changed by others.
    touched: BTreeSet<PipelineName>,
    /// Watches that have not shown all once.
    unseen: usize,
}

/// Watches, until it is dropped.
#[derive(Debug)]
pub(super) struct Watches(#[expect(dead_code, reason = "its end ends them")] JoinSet<()>);

impl Mark {
    /// What is kept of an object.
    pub(super) fn new(kind: Kind, object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let status = match kind {
            Kind::Binding => serde_json::from_value(object.data["status"].clone()).ok(),
            Kind::Service | Kind::EndpointSlice => None,
        };
        let controller = super::kinds::controller(metadata);
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: version(metadata.resource_version.as_deref()),
            generation: metadata.generation,
            essence: digest(&kind.essence(object)),
            fixed: kind.fixed(object),
            goes: metadata.deletion_timestamp.is_some(),
            owner: controller.map(|(_, uid)| uid.to_owned()),
            is_stray: home(metadata).is_some_and(|home| is_of(metadata, &home, "")),
            status,
        }
    }

    /// Whether it was made for the Pipeline with this UID.
    pub(super) fn is_of(&self, uid: &str) -> bool {
        self.is_stray || self.owner.as_deref() == Some(uid)
    }
}

impl Made {
    /// Starts to watch these namespaces, all where none is given.
    pub(super) fn watch(client: &Client, watched: &[String]) -> (Self, Watches) {
        let made = Self::default();
        let mut watches = JoinSet::new();
        let scopes: Vec<Option<&str>> = match watched {
            [] => vec![None],
            names => names.iter().map(|name| Some(name.as_str())).collect(),
        };
        for namespace in scopes {
            for kind in Kind::ALL {
                made.state().unseen += 1;
                let resource = kind.resource();
                let api: Api<DynamicObject> = match namespace {
                    Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                    None => Api::all_with(client.clone(), &resource),
                };
                let scope = namespace.map(str::to_owned);
                watches.spawn(made.clone().follow(api, kind, scope));
            }
        }
        (made, Watches(watches))
    }

    /// Whether all was seen once: before that, what is missing here may be there.
    pub(super) fn is_synced(&self) -> bool {
        self.state().unseen == 0
    }

    /// Waits for a change that somebody else made, or until all was seen once.
    pub(super) async fn changed(&self) {
        self.0.news.notified().await;
    }

    /// The pipelines of which others have changed something since this was last asked.
    pub(super) fn touched(&self) -> BTreeSet<PipelineName> {
        std::mem::take(&mut self.state().touched)
    }

    /// The pipelines for which something is there.
    pub(super) fn homes(&self) -> Vec<PipelineName> {
        self.state().marks.keys().cloned().collect()
    }

    /// One object.
    pub(super) fn find(&self, home: &PipelineName, kind: Kind, name: &str) -> Option<Mark> {
        self.state().marks.get(home)?.get(&(kind, name.to_owned())).cloned()
    }

    /// All that is there for a pipeline.
    pub(super) fn all(&self, home: &PipelineName) -> BTreeMap<Key, Mark> {
        self.state().marks.get(home).cloned().unwrap_or_default()
    }

    /// Takes in an object as this replica has just written it.
    pub(super) fn wrote(&self, kind: Kind, object: &DynamicObject) {
        if let Some(home) = home(&object.metadata) {
            self.state().put(home, (kind, object.name_any()), Mark::new(kind, object));
        }
    }

    /// Forgets an object that is there no more.
    pub(super) fn forget(&self, home: &PipelineName, kind: Kind, name: &str) {
        let mut state = self.state();
        let Some(marks) = state.marks.get_mut(home) else { return };
        marks.remove(&(kind, name.to_owned()));
        if marks.is_empty() {
            state.marks.remove(home);
        }
    }

    async fn follow(self, api: Api<DynamicObject>, kind: Kind, scope: Option<String>) {
        let ours =
            watcher::Config::default().labels(&format!("{MANAGED_BY_LABEL}={FIELD_MANAGER}"));
        let mut events = pin!(watcher(api, ours).default_backoff());
        let mut listed = BTreeSet::new();
        let (mut is_well, mut is_seen) = (true, false);
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    if std::mem::replace(&mut is_well, false) {
                        let kind = kind.name();
                        tracing::warn!(
                            %error,
                            kind,
                            "the watch is broken and tried again; no pipeline is shown before all \
                             was seen once: are this version's definitions and rights applied?"
                        );
                    }
                    continue;
                }
            };
            is_well = true;
            match event {
                Event::Init => listed.clear(),
                Event::InitApply(object) => {
                    let Some(home) = home(&object.metadata) else { continue };
                    listed.insert((home, object.name_any()));
                    self.saw(kind, &object);
                }
                Event::InitDone => {
                    let within =
                        |home: &PipelineName| scope.is_none() || home.parts().0 == scope.as_deref();
                    let mut state = self.state();
                    state.retain(kind, within, &std::mem::take(&mut listed));
                    if !std::mem::replace(&mut is_seen, true) {
                        state.unseen -= 1;
                    }
                    drop(state);
                    self.0.news.notify_one();
                }
                Event::Apply(object) => self.saw(kind, &object),
                Event::Delete(object) => {
                    // It may have lost what tells whose it was.
                    let gone = self.state().lose(kind, &object);
                    gone.into_iter().for_each(|home| self.touch(home));
                }
            }
        }
    }

    fn saw(&self, kind: Kind, object: &DynamicObject) {
        let Some(home) = home(&object.metadata) else { return };
        let is_news =
            self.state().put(home.clone(), (kind, object.name_any()), Mark::new(kind, object));
        if is_news {
            self.touch(home);
        }
    }

    fn touch(&self, home: PipelineName) {
        self.state().touched.insert(home);
        self.0.news.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while it is held")
    }
}

impl State {
    /// Takes in an object; returns whether it was not known like this. Of one object the newest
    /// stays.
    fn put(&mut self, home: PipelineName, key: Key, mark: Mark) -> bool {
        let marks = self.marks.entry(home).or_default();
        if let Some(known) = marks.get(&key)
            && known.uid == mark.uid
            && known.version >= mark.version
        {
            return false;
        }
        marks.insert(key, mark);
        true
    }

    /// Forgets an object that is gone, or bears our label no more; returns whose it was, where it
    /// was known.
    fn lose(&mut self, kind: Kind, object: &DynamicObject) -> Option<PipelineName> {
        let key = (kind, object.name_any());
        let (uid, namespace) = (object.metadata.uid.as_deref(), object.namespace());
        let mut homes = self.marks.iter_mut().filter(|(home, marks)| {
            home.parts().0 == namespace.as_deref()
                && marks.get(&key).is_some_and(|mark| Some(mark.uid.as_str()) == uid)
        });
        let (home, marks) = homes.next()?;
        marks.remove(&key);
        let home = home.clone();
        if marks.is_empty() {
            drop(homes);
            self.marks.remove(&home);
        }
        Some(home)
    }

    /// Forgets what of a kind was not listed.
    fn retain(
        &mut self,
        kind: Kind,
        within: impl Fn(&PipelineName) -> bool,
        listed: &BTreeSet<(PipelineName, String)>,
    ) {
        let Self { marks, touched, .. } = self;
        for (home, known) in marks.iter_mut().filter(|(home, _)| within(home)) {
            let before = known.len();
            known.retain(|(it, name), _| {
                *it != kind || listed.contains(&(home.clone(), name.clone()))
            });
            if known.len() < before {
                touched.insert(home.clone());
            }
        }
        marks.retain(|_, known| !known.is_empty());
    }
}
