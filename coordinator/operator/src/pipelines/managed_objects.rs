//! The objects of pipelines, as last seen: of each, what tells whether it is up to date. A change
//! or deletion by another client is noticed; own writes are not reported as changes.

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

use super::managed_kind::{ManagedKind, belongs_to, owning_pipeline};
use crate::digest::digest;

/// What is kept of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ManagedObject {
    /// Which of the objects of its name it is.
    pub(super) uid: String,
    /// When it was written last, in the API server's count.
    pub(super) version: u64,
    /// The generation of its spec, where the kind has one.
    pub(super) generation: Option<i64>,
    /// The digest of the compared fields.
    pub(super) compared_fields: String,
    /// The immutable fields.
    pub(super) immutable_fields: String,
    /// Whether its deletion was asked for.
    pub(super) is_deleting: bool,
    /// The UID of the Pipeline that it says it is of.
    pub(super) owner: Option<String>,
    /// Whether it has no controller at all.
    pub(super) has_no_controller: bool,
    /// The status, of a PipelineBinding.
    pub(super) status: Option<Box<PipelineBindingStatus>>,
}

type Key = (ManagedKind, String);
type ObjectsByPipeline = BTreeMap<PipelineName, BTreeMap<Key, ManagedObject>>;

/// The objects of pipelines; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct ManagedObjects(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    marks: ObjectsByPipeline,
    /// Pipelines of which something was changed by others.
    changed_by_others: BTreeSet<PipelineName>,
    /// Watches that have not shown all once.
    unsynced_watches: usize,
}

/// Watches, until it is dropped.
#[derive(Debug)]
pub(super) struct Watches(#[expect(dead_code, reason = "its end ends them")] JoinSet<()>);

impl ManagedObject {
    /// What is kept of an object.
    pub(super) fn new(kind: ManagedKind, object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let status = match kind {
            ManagedKind::Binding => serde_json::from_value(object.data["status"].clone()).ok(),
            ManagedKind::Service | ManagedKind::EndpointSlice => None,
        };
        let controller = super::managed_kind::controller(metadata);
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: version(metadata.resource_version.as_deref()),
            generation: metadata.generation,
            compared_fields: digest(&kind.compared_fields(object)),
            immutable_fields: kind.immutable_fields(object),
            is_deleting: metadata.deletion_timestamp.is_some(),
            owner: controller.map(|(_, uid)| uid.to_owned()),
            has_no_controller: owning_pipeline(metadata)
                .is_some_and(|pipeline| belongs_to(metadata, &pipeline, "")),
            status,
        }
    }

    /// Whether it was made for the Pipeline with this UID.
    pub(super) fn belongs_to(&self, uid: &str) -> bool {
        self.has_no_controller || self.owner.as_deref() == Some(uid)
    }
}

impl ManagedObjects {
    /// Starts to watch these namespaces, all where none is given.
    pub(super) fn watch(client: &Client, watched: &[String]) -> (Self, Watches) {
        let managed_objects = Self::default();
        let mut watches = JoinSet::new();
        let scopes: Vec<Option<&str>> = match watched {
            [] => vec![None],
            names => names.iter().map(|name| Some(name.as_str())).collect(),
        };
        for namespace in scopes {
            for kind in ManagedKind::ALL {
                managed_objects.state().unsynced_watches += 1;
                let resource = kind.resource();
                let api: Api<DynamicObject> = match namespace {
                    Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                    None => Api::all_with(client.clone(), &resource),
                };
                let scope = namespace.map(str::to_owned);
                watches.spawn(managed_objects.clone().follow(api, kind, scope));
            }
        }
        (managed_objects, Watches(watches))
    }

    /// Whether every object was listed once. Before that, a missing object may exist.
    pub(super) fn is_synced(&self) -> bool {
        self.state().unsynced_watches == 0
    }

    /// Waits for a change by another client, or until every object was listed once.
    pub(super) async fn changed(&self) {
        self.0.news.notified().await;
    }

    /// The pipelines of which others have changed something since this was last asked.
    pub(super) fn changed_by_others(&self) -> BTreeSet<PipelineName> {
        std::mem::take(&mut self.state().changed_by_others)
    }

    /// The pipelines for which something is there.
    pub(super) fn pipelines(&self) -> Vec<PipelineName> {
        self.state().marks.keys().cloned().collect()
    }

    /// One object.
    pub(super) fn find(
        &self,
        pipeline: &PipelineName,
        kind: ManagedKind,
        name: &str,
    ) -> Option<ManagedObject> {
        self.state().marks.get(pipeline)?.get(&(kind, name.to_owned())).cloned()
    }

    /// All that is there for a pipeline.
    pub(super) fn all(&self, pipeline: &PipelineName) -> BTreeMap<Key, ManagedObject> {
        self.state().marks.get(pipeline).cloned().unwrap_or_default()
    }

    /// Takes in an object as this replica has just written it.
    pub(super) fn store_written(&self, kind: ManagedKind, object: &DynamicObject) {
        if let Some(pipeline) = owning_pipeline(&object.metadata) {
            self.state().put(pipeline, (kind, object.name_any()), ManagedObject::new(kind, object));
        }
    }

    /// Forgets an object that no longer exists.
    pub(super) fn forget(&self, pipeline: &PipelineName, kind: ManagedKind, name: &str) {
        let mut state = self.state();
        let Some(marks) = state.marks.get_mut(pipeline) else { return };
        marks.remove(&(kind, name.to_owned()));
        if marks.is_empty() {
            state.marks.remove(pipeline);
        }
    }

    async fn follow(self, api: Api<DynamicObject>, kind: ManagedKind, scope: Option<String>) {
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
                            "cannot watch: retrying; no pipeline is written before every object \
                             was listed once: check that the CRDs and the RBAC rules of this \
                             version are applied"
                        );
                    }
                    continue;
                }
            };
            is_well = true;
            match event {
                Event::Init => listed.clear(),
                Event::InitApply(object) => {
                    let Some(pipeline) = owning_pipeline(&object.metadata) else { continue };
                    listed.insert((pipeline, object.name_any()));
                    self.observe(kind, &object);
                }
                Event::InitDone => {
                    let within = |pipeline: &PipelineName| {
                        scope.is_none() || pipeline.parts().0 == scope.as_deref()
                    };
                    let mut state = self.state();
                    state.retain(kind, within, &std::mem::take(&mut listed));
                    if !std::mem::replace(&mut is_seen, true) {
                        state.unsynced_watches -= 1;
                    }
                    drop(state);
                    self.0.news.notify_one();
                }
                Event::Apply(object) => self.observe(kind, &object),
                Event::Delete(object) => {
                    // It may have lost the labels that name its pipeline.
                    let gone = self.state().lose(kind, &object);
                    gone.into_iter().for_each(|pipeline| self.mark_changed_by_others(pipeline));
                }
            }
        }
    }

    fn observe(&self, kind: ManagedKind, object: &DynamicObject) {
        let Some(pipeline) = owning_pipeline(&object.metadata) else { return };
        let is_news = self.state().put(
            pipeline.clone(),
            (kind, object.name_any()),
            ManagedObject::new(kind, object),
        );
        if is_news {
            self.mark_changed_by_others(pipeline);
        }
    }

    fn mark_changed_by_others(&self, pipeline: PipelineName) {
        self.state().changed_by_others.insert(pipeline);
        self.0.news.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while it is held")
    }
}

impl State {
    /// Takes in an object; returns whether it was not known like this. Of one object the newest
    /// stays.
    fn put(&mut self, pipeline: PipelineName, key: Key, managed: ManagedObject) -> bool {
        let marks = self.marks.entry(pipeline).or_default();
        if let Some(known) = marks.get(&key)
            && known.uid == managed.uid
            && known.version >= managed.version
        {
            return false;
        }
        marks.insert(key, managed);
        true
    }

    /// Forgets an object that was deleted or has lost our label; returns its pipeline, if known.
    fn lose(&mut self, kind: ManagedKind, object: &DynamicObject) -> Option<PipelineName> {
        let key = (kind, object.name_any());
        let (uid, namespace) = (object.metadata.uid.as_deref(), object.namespace());
        let mut pipelines = self.marks.iter_mut().filter(|(pipeline, marks)| {
            pipeline.parts().0 == namespace.as_deref()
                && marks.get(&key).is_some_and(|managed| Some(managed.uid.as_str()) == uid)
        });
        let (pipeline, marks) = pipelines.next()?;
        marks.remove(&key);
        let pipeline = pipeline.clone();
        if marks.is_empty() {
            drop(pipelines);
            self.marks.remove(&pipeline);
        }
        Some(pipeline)
    }

    /// Forgets what of a kind was not listed.
    fn retain(
        &mut self,
        kind: ManagedKind,
        within: impl Fn(&PipelineName) -> bool,
        listed: &BTreeSet<(PipelineName, String)>,
    ) {
        let Self { marks, changed_by_others, .. } = self;
        for (pipeline, known) in marks.iter_mut().filter(|(pipeline, _)| within(pipeline)) {
            let before = known.len();
            known.retain(|(it, name), _| {
                *it != kind || listed.contains(&(pipeline.clone(), name.clone()))
            });
            if known.len() < before {
                changed_by_others.insert(pipeline.clone());
            }
        }
        marks.retain(|_, known| !known.is_empty());
    }
}
