//! One watch of desired state, as a task that sends changes in their order. It runs on the watch
//! loop of [`watch_cache::events`](crate::watch_cache::events) and keeps no objects. It cannot use
//! a `WatchCache`, which shows only the newest value of each object. The reflector must see a
//! deletion before the new object of the same name: it drops the last valid specification then. It
//! must also see the start of a list, since desired state is not fresh until the list is complete.
//! A kind without a CRD counts as an empty list: the other kinds do not wait for it. Nor do other
//! namespaces wait for one that the coordinator may not read, or for ConfigMaps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use leasehold_driver::clock;
use leasehold_kube_api::names::{GROUP, TRUE, VERSION};
use leasehold_manifest::collection::ConfigMapName;
use leasehold_manifest::manifest::STREAM_LIST_LABEL;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::source::{NamedMaps, Source};
use super::watch_health::WatchHealth;
use crate::api_call::ApiError;
use crate::watch_cache::events;

/// ConfigMaps in one answer of the API server: each may have a MiB, and tenants decide how many
/// there are.
const STREAM_LISTS_PER_PAGE: u32 = 8;

/// What changed.
#[derive(Debug)]
pub(super) enum WatchChange {
    /// A full list starts.
    ListStarted,
    /// The list is complete: objects that it does not have are deleted.
    ListCompleted,
    /// An object was listed, created or changed.
    Applied(Box<DynamicObject>),
    /// An object was deleted.
    Deleted(Box<DynamicObject>),
    /// A ConfigMap was listed, created or changed, or has got the label.
    ConfigMapApplied(ConfigMapName, BTreeMap<String, String>),
    /// A ConfigMap was deleted, or has lost the label.
    ConfigMapDeleted(ConfigMapName),
    /// The API server forbids to read the ConfigMaps, or the objects of one namespace, in these
    /// words.
    Forbidden(String),
}

fn name_of(map: &ConfigMap) -> ConfigMapName {
    let metadata = &map.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// A watch that runs until this is dropped.
#[derive(Debug)]
pub(super) struct SourceWatch {
    source: Source,
    watch_id: u64,
    task: AbortHandle,
    health: WatchHealth,
}

impl Drop for SourceWatch {
    fn drop(&mut self) {
        self.task.abort();
        self.health.mark_healthy(&self.source, self.watch_id);
    }
}

impl SourceWatch {
    /// Starts to watch; each change comes with the source and this [`SourceWatch::watch_id`]. Of
    /// other ConfigMaps than `maps` it gives only the name.
    pub(super) fn start(
        client: &Client,
        source: Source,
        maps: &NamedMaps,
        changes: mpsc::Sender<(Source, u64, WatchChange)>,
        health: WatchHealth,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let watch_id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let client = client.clone();
        health.list_started(&source, watch_id);
        let task_state = WatchTask {
            client: client.clone(),
            source: source.clone(),
            watch_id,
            changes,
            health: health.clone(),
        };
        let task = match source.clone() {
            Source::Objects { kind, namespace } => {
                let api = api(client, kind, namespace.as_deref());
                let deleted = |object| WatchChange::Deleted(Box::new(object));
                let applied =
                    |object| WatchChange::Applied(Box::new(without_managed_fields(object)));
                tokio::spawn(task_state.follow(api, watcher::Config::default(), applied, deleted))
            }
            Source::StreamLists { namespace } => {
                let api: Api<ConfigMap> = match &namespace {
                    Some(namespace) => Api::namespaced(client, namespace),
                    None => Api::all(client),
                };
                let config = watcher::Config::default();
                let config = config.labels(&format!("{STREAM_LIST_LABEL}={TRUE}"));
                let config = config.page_size(STREAM_LISTS_PER_PAGE);
                let named: BTreeSet<ConfigMapName> = maps.keys().cloned().collect();
                let applied = move |map: ConfigMap| {
                    let name = name_of(&map);
                    let data = map.data.filter(|_| named.contains(&name));
                    WatchChange::ConfigMapApplied(name, data.unwrap_or_default())
                };
                let deleted = |map| WatchChange::ConfigMapDeleted(name_of(&map));
                tokio::spawn(task_state.follow(api, config, applied, deleted))
            }
        };
        Self { source, watch_id, task: task.abort_handle(), health }
    }

    /// Distinguishes this watch from an earlier one of the same source.
    pub(super) fn watch_id(&self) -> u64 {
        self.watch_id
    }
}

/// The objects of a kind, of one namespace or of all.
pub(super) fn api(client: Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// Drops managedFields: they are as large as the object, and nothing here reads them.
fn without_managed_fields(mut object: DynamicObject) -> DynamicObject {
    object.metadata.managed_fields = None;
    object
}

/// The state of a watch's task.
struct WatchTask {
    client: Client,
    source: Source,
    watch_id: u64,
    changes: mpsc::Sender<(Source, u64, WatchChange)>,
    health: WatchHealth,
}

impl WatchTask {
    async fn follow<K>(
        self,
        api: Api<K>,
        config: watcher::Config,
        applied: impl Fn(K) -> WatchChange,
        deleted: impl Fn(K) -> WatchChange,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut events = pin!(events(self.source.to_string(), api, config));
        let mut is_listed = false;
        let mut is_forbidden = false;
        while let Some(event) = events.next().await {
            let change = match event {
                Ok(Event::Init) => WatchChange::ListStarted,
                Ok(Event::InitDone) => WatchChange::ListCompleted,
                Ok(Event::Apply(object) | Event::InitApply(object)) => applied(object),
                Ok(Event::Delete(object)) => deleted(object),
                Err(failed) if self.stops_no_other() && failed.is_forbidden() => {
                    let retry_at = clock::now() + failed.retry_in;
                    self.health.forbidden(&self.source, self.watch_id, retry_at);
                    // What was read before stays in force.
                    if !failed.is_forbidden_list() || std::mem::replace(&mut is_forbidden, true) {
                        continue;
                    }
                    WatchChange::Forbidden(failed.message)
                }
                Err(failed) => {
                    let retry_at = clock::now() + failed.retry_in;
                    self.health.failed(&self.source, self.watch_id, retry_at, &failed.message);
                    if is_listed || !is_undefined(&self.client, &self.source, &failed.error).await {
                        continue;
                    }
                    tracing::warn!(
                        source = %self.source,
                        "the API server does not know this kind: apply the CRDs of this version \
                         (deploy/crds); the other kinds are served meanwhile"
                    );
                    is_listed = true;
                    if self.send(WatchChange::ListCompleted).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            match change {
                WatchChange::ListStarted if is_forbidden => {}
                WatchChange::ListStarted => self.health.list_started(&self.source, self.watch_id),
                WatchChange::ListCompleted => {
                    (is_listed, is_forbidden) = (true, false);
                    self.health.mark_healthy(&self.source, self.watch_id);
                }
                WatchChange::Applied(_)
                | WatchChange::Deleted(_)
                | WatchChange::ConfigMapApplied(..)
                | WatchChange::ConfigMapDeleted(_) => {
                    self.health.event_received(&self.source, self.watch_id);
                }
                WatchChange::Forbidden(_) => {}
            }
            if self.send(change).await.is_err() {
                return;
            }
        }
    }

    /// Whether all but one namespace, or all but streams, are served where the API server forbids
    /// to read this.
    fn stops_no_other(&self) -> bool {
        match &self.source {
            Source::Objects { namespace, .. } => namespace.is_some(),
            Source::StreamLists { .. } => true,
        }
    }

    async fn send(&self, change: WatchChange) -> Result<(), ()> {
        self.changes.send((self.source.clone(), self.watch_id, change)).await.map_err(drop)
    }
}

/// Whether a list failed because the API server serves our group without this kind. A server that
/// is starting, or does not serve the group, does not count.
async fn is_undefined(client: &Client, source: &Source, error: &watcher::Error) -> bool {
    let Source::Objects { kind, .. } = source else { return false };
    let watcher::Error::InitialListFailed(error) = error else { return false };
    if !ApiError::from(error).is_not_found() {
        return false;
    }
    let known = client.list_api_group_resources(&format!("{GROUP}/{VERSION}")).await;
    known.is_ok_and(|known| known.resources.iter().all(|resource| resource.kind != *kind))
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An API server that serves these kinds of the group, and answers every list with 404.
    fn server(kinds: &'static [&'static str]) -> Client {
        let answer = move |request: Request<Body>| async move {
            let (status, body): (_, Value) = match request.uri().path() {
                "/apis/leasehold.dev/v1alpha1" => {
                    let resource = |kind: &&str| {
                        json!({
                            "name": kind.to_lowercase() + "s", "kind": kind, "verbs": [],
                            "namespaced": true, "singularName": "",
                        })
                    };
                    let resources: Vec<_> = kinds.iter().map(resource).collect();
                    (
                        200,
                        json!({ "groupVersion": "leasehold.dev/v1alpha1", "resources": resources }),
                    )
                }
                _ => (404, json!({ "status": "Failure", "code": 404, "message": "not found" })),
            };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(
                Response::builder().status(status).body(body).expect("an answer"),
            )
        };
        Client::new(tower::service_fn(answer), "ns")
    }

    /// The first changes of a watch of pipelines.
    async fn first_two(client: &Client) -> [WatchChange; 2] {
        let (sender, mut changes) = mpsc::channel(1);
        let source = Source::Objects { kind: "Pipeline", namespace: None };
        let (maps, health) = (NamedMaps::new(), WatchHealth::default());
        let _watch = SourceWatch::start(client, source, &maps, sender, health);
        let mut next = async || changes.recv().await.expect("a change").2;
        [next().await, next().await]
    }

    #[tokio::test]
    async fn a_kind_without_a_crd_counts_as_an_empty_list() {
        let found = first_two(&server(&["WorkerCluster", "StreamSet"])).await;
        assert!(
            matches!(found, [WatchChange::ListStarted, WatchChange::ListCompleted]),
            "{found:?}"
        );
        // The kind is served: a failed list may hide objects.
        let found = first_two(&server(&["WorkerCluster", "Pipeline"])).await;
        assert!(matches!(found, [WatchChange::ListStarted, WatchChange::ListStarted]), "{found:?}");
    }
}
