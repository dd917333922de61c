//! One watch of the API server, as a task that passes on what changes. It lists again where it
//! must, tries again for as long as it takes, and logs each cause of failure once. A kind whose
//! definition is not there yet has no objects: nobody who uses other kinds waits for it.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

use super::pulse::Pulse;
use super::source::{Source, describe};

/// How long to wait after a failure: first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a watch of objects lasts, in seconds: one whose connection has died unseen is begun
/// anew soon after.
const WATCH_SECONDS: u32 = 60;
/// The status of a watch that is too far behind: everything is listed again.
const GONE: u16 = 410;
/// The status of a list of a kind that is not defined.
const NOT_FOUND: u16 = 404;

/// What changed.
#[derive(Debug)]
pub(super) enum Change {
    /// A list of everything begins.
    Begin,
    /// The list is complete: what it had not is gone.
    End,
    /// An object is there, new or changed or listed.
    Object(Box<DynamicObject>),
    /// An object is gone.
    ObjectGone(Box<DynamicObject>),
    /// The ConfigMap is there.
    Map(Box<ConfigMap>),
    /// The ConfigMap is gone.
    MapGone,
}

/// A watch that runs until this is dropped.
#[derive(Debug)]
pub(super) struct Feed {
    source: Source,
    life: u64,
    task: AbortHandle,
    pulse: Pulse,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
        self.pulse.is_well(&self.source, self.life);
    }
}

impl Feed {
    /// Begins to watch; each change comes with the source and this feed's [`Feed::life`].
    pub(super) fn start(
        client: &Client,
        source: Source,
        changes: mpsc::Sender<(Source, u64, Change)>,
        pulse: Pulse,
    ) -> Self {
        static LIVES: AtomicU64 = AtomicU64::new(0);
        let life = LIVES.fetch_add(1, Ordering::Relaxed);
        let client = client.clone();
        pulse.lists(&source, life);
        let outlet = Outlet {
            client: client.clone(),
            source: source.clone(),
            life,
            changes,
            pulse: pulse.clone(),
        };
        let task = match source.clone() {
            Source::Objects { kind, namespace } => {
                let api = api(client, kind, namespace.as_deref());
                let gone = |object| Change::ObjectGone(Box::new(object));
                let there = |object| Change::Object(Box::new(lean(object)));
                let config = watcher::Config::default().timeout(WATCH_SECONDS);
                tokio::spawn(outlet.follow(api, config, there, gone))
            }
            Source::Map((namespace, name)) => {
                let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
                let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
                let there = |map| Change::Map(Box::new(map));
                tokio::spawn(outlet.follow(api, config, there, |_| Change::MapGone))
            }
        };
        Self { source, life, task: task.abort_handle(), pulse }
    }

    /// Tells this feed from an earlier one of the same source.
    pub(super) fn life(&self) -> u64 {
        self.life
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

/// Who owns which field is as large as the object, and of no interest here.
fn lean(mut object: DynamicObject) -> DynamicObject {
    object.metadata.managed_fields = None;
    object
}

/// Where a feed's changes go.
struct Outlet {
    client: Client,
    source: Source,
    life: u64,
    changes: mpsc::Sender<(Source, u64, Change)>,
    pulse: Pulse,
}

impl Outlet {
    async fn follow<K>(
        self,
        api: Api<K>,
        config: watcher::Config,
        there: impl Fn(K) -> Change,
        gone: impl Fn(K) -> Change,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let Self { client, source, life, changes, pulse } = self;
        let mut events = pin!(watcher(api, config));
        let mut retry = RETRY_FIRST;
        let mut cause: Option<String> = None;
        let mut is_listed = false;
        while let Some(event) = events.next().await {
            let change = match event {
                Ok(watcher::Event::Init) => Change::Begin,
                Ok(watcher::Event::InitDone) => Change::End,
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    there(object)
                }
                Ok(watcher::Event::Delete(object)) => gone(object),
                Err(watcher::Error::WatchError(status)) if status.code == GONE => {
                    tracing::debug!(%source, "is listed again");
                    continue;
                }
                Err(error) => {
                    let why = describe(&error);
                    if cause.as_ref() != Some(&why) {
                        tracing::warn!(%source, why, "cannot be watched at present");
                        cause = Some(why);
                    }
                    pulse.failed(&source, life, clock::now() + retry, &describe(&error));
                    if !is_listed && is_undefined(&client, &source, &error).await {
                        tracing::warn!(
                            %source,
                            "there is no such kind: apply this version's definitions, deploy/crds; \
                             the other kinds are served meanwhile"
                        );
                        is_listed = true;
                        if changes.send((source.clone(), life, Change::End)).await.is_err() {
                            return;
                        }
                    }
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MAX);
                    continue;
                }
            };
            // The beginning of a list says nothing of its success.
            if !matches!(change, Change::Begin) {
                retry = RETRY_FIRST;
                if cause.take().is_some() {
                    tracing::info!(%source, "is watched again");
                }
            }
            match change {
                Change::Begin => pulse.lists(&source, life),
                Change::End => {
                    is_listed = true;
                    pulse.is_well(&source, life);
                }
                Change::Object(_) | Change::ObjectGone(_) | Change::Map(_) | Change::MapGone => {
                    pulse.speaks(&source, life);
                }
            }
            if changes.send((source.clone(), life, change)).await.is_err() {
                return;
            }
        }
    }
}

/// Whether a list failed since the API server, which knows our group, knows no such kind of it.
/// What it says while it starts, or of a group that is not there, is no answer.
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

    /// The first changes of a feed of pipelines.
    async fn first_two(client: &Client) -> [Change; 2] {
        let (sender, mut changes) = mpsc::channel(1);
        let source = Source::Objects { kind: "Pipeline", namespace: None };
        let _feed = Feed::start(client, source, sender, Pulse::default());
        let mut next = async || changes.recv().await.expect("a change").2;
        [next().await, next().await]
    }

    #[tokio::test]
    async fn a_kind_that_is_not_defined_has_no_objects() {
        let found = first_two(&server(&["WorkerCluster", "StreamSet"])).await;
        assert!(matches!(found, [Change::Begin, Change::End]), "{found:?}");
        // One that is defined and cannot be found at present may have some.
        let found = first_two(&server(&["WorkerCluster", "Pipeline"])).await;
        assert!(matches!(found, [Change::Begin, Change::Begin]), "{found:?}");
    }
}
