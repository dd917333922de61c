//! One watch of the API server, as a task that sends changes. It lists again when it must, retries
//! without end, and logs each cause of failure once. A kind whose definition is not there yet has
//! no objects: the other kinds do not wait for it.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use leasehold_driver::clock;
use leasehold_kube_api::names::{GROUP, VERSION};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::source::{Source, describe};
use super::watch_health::WatchHealth;

/// The backoff after a failure: first delay and longest delay.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a watch of objects lasts, in seconds: this bounds how long a dead connection stays
/// unnoticed.
const WATCH_SECONDS: u32 = 60;
/// The status of a watch that is too far behind: everything is listed again.
const GONE: u16 = 410;
/// The status of a list of a kind that is not defined.
const NOT_FOUND: u16 = 404;

/// What changed.
#[derive(Debug)]
pub(super) enum WatchChange {
    /// A full list starts.
    ListStarted,
    /// The list is complete: objects that it does not have are deleted.
    ListCompleted,
    /// An object is there, new or changed or listed.
    Applied(Box<DynamicObject>),
    /// An object is gone.
    Deleted(Box<DynamicObject>),
    /// The ConfigMap is there.
    ConfigMapApplied(Box<ConfigMap>),
    /// The ConfigMap is gone.
    ConfigMapDeleted,
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
    /// Starts to watch; each change comes with the source and this [`SourceWatch::watch_id`].
    pub(super) fn start(
        client: &Client,
        source: Source,
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
                let gone = |object| WatchChange::Deleted(Box::new(object));
                let there = |object| WatchChange::Applied(Box::new(without_managed_fields(object)));
                let config = watcher::Config::default().timeout(WATCH_SECONDS);
                tokio::spawn(task_state.follow(api, config, there, gone))
            }
            Source::Map((namespace, name)) => {
                let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
                let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
                let there = |map| WatchChange::ConfigMapApplied(Box::new(map));
                tokio::spawn(
                    task_state.follow(api, config, there, |_| WatchChange::ConfigMapDeleted),
                )
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

/// managedFields is as large as the object, and nothing here reads it.
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
        there: impl Fn(K) -> WatchChange,
        gone: impl Fn(K) -> WatchChange,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let Self { client, source, watch_id, changes, health } = self;
        let mut events = pin!(watcher(api, config));
        let mut delays = backoff();
        let mut cause: Option<String> = None;
        let mut is_listed = false;
        while let Some(event) = events.next().await {
            let change = match event {
                Ok(watcher::Event::Init) => WatchChange::ListStarted,
                Ok(watcher::Event::InitDone) => WatchChange::ListCompleted,
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    there(object)
                }
                Ok(watcher::Event::Delete(object)) => gone(object),
                Err(watcher::Error::WatchError(status)) if status.code == GONE => {
                    tracing::debug!(%source, "listing again");
                    continue;
                }
                Err(error) => {
                    let retry = delays.next().unwrap_or(RETRY_MAX);
                    let why = describe(&error);
                    if cause.as_ref() != Some(&why) {
                        tracing::warn!(%source, why, "cannot watch");
                        cause = Some(why);
                    }
                    health.failed(&source, watch_id, clock::now() + retry, &describe(&error));
                    if !is_listed && is_undefined(&client, &source, &error).await {
                        tracing::warn!(
                            %source,
                            "there is no such kind: apply this version's definitions, deploy/crds; \
                             the other kinds are served meanwhile"
                        );
                        is_listed = true;
                        if changes
                            .send((source.clone(), watch_id, WatchChange::ListCompleted))
                            .await
                            .is_err()
                        {
                            return;
                        }
                    }
                    tokio::time::sleep(retry).await;
                    continue;
                }
            };
            // The beginning of a list says nothing of its success.
            if !matches!(change, WatchChange::ListStarted) {
                delays = backoff();
                if cause.take().is_some() {
                    tracing::info!(%source, "watching again");
                }
            }
            match change {
                WatchChange::ListStarted => health.list_started(&source, watch_id),
                WatchChange::ListCompleted => {
                    is_listed = true;
                    health.mark_healthy(&source, watch_id);
                }
                WatchChange::Applied(_)
                | WatchChange::Deleted(_)
                | WatchChange::ConfigMapApplied(_)
                | WatchChange::ConfigMapDeleted => {
                    health.event_received(&source, watch_id);
                }
            }
            if changes.send((source.clone(), watch_id, change)).await.is_err() {
                return;
            }
        }
    }
}

fn backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::new().with_min_delay(RETRY_FIRST).with_max_delay(RETRY_MAX);
    builder.without_max_times().build()
}

/// Whether a list failed since the API server, which knows our group, knows no such kind of it. An
/// answer while the API server starts, or for an unknown group, does not count.
async fn is_undefined(client: &Client, source: &Source, error: &watcher::Error) -> bool {
    let Source::Objects { kind, .. } = source else { return false };
    let watcher::Error::InitialListFailed(kube::Error::Api(status)) = error else { return false };
    if status.code != NOT_FOUND {
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

    /// An API server that finds no object of any kind, and knows just these.
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
                _ => {
                    (404, json!({ "status": "Failure", "code": NOT_FOUND, "message": "not found" }))
                }
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
        let _feed = SourceWatch::start(client, source, sender, WatchHealth::default());
        let mut next = async || changes.recv().await.expect("a change").2;
        [next().await, next().await]
    }

    #[tokio::test]
    async fn a_kind_that_is_not_defined_has_no_objects() {
        let found = first_two(&server(&["WorkerCluster", "StreamSet"])).await;
        assert!(
            matches!(found, [WatchChange::ListStarted, WatchChange::ListCompleted]),
            "{found:?}"
        );
        // One that is defined and cannot be found at present may have some.
        let found = first_two(&server(&["WorkerCluster", "Pipeline"])).await;
        assert!(matches!(found, [WatchChange::ListStarted, WatchChange::ListStarted]), "{found:?}");
    }
}
