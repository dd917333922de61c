//! What the operator does to objects: each a single call that may be made twice. What is done to a
//! pod is bound to its UID, so that a later pod of its name is never meant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use leasehold_kube_api::names::{
    DELETION_COST_ANNOTATION, DRAIN_ANNOTATION, FIELD_MANAGER, STREAMS_ANNOTATION,
};
use leasehold_platform_kube::pods::{PodFacts, PodName, Pods};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::standing::Mark;
use crate::events::Reason;

/// How long one may take.
const WITHIN: Duration = Duration::from_secs(5);

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Action {
    /// To this object.
    pub(super) target: Target,
    /// This.
    pub(super) what: What,
    /// What the cluster's people are told when it is done.
    pub(super) news: Option<(Reason, String)>,
}

/// Names an object; what goes wrong with one keeps nobody from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Pod(PodName),
    Object { kind: String, namespace: String, name: String },
}

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    /// Mark a pod for a drain.
    Mark(Arc<PodFacts>, Mark),
    /// Write down which streams a pod began with.
    Began(Arc<PodFacts>, String),
    /// Say that a pod's removal costs so much.
    Cost(Arc<PodFacts>, i32),
    /// Write the label of busy pods, or strike it.
    Busy(Arc<PodFacts>, bool),
    /// Delete a pod that holds nothing, so that another takes its place.
    Replace(Arc<PodFacts>),
    /// Server-side apply.
    Apply(Value),
}

/// How an action went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It is done; the object's generation after an apply.
    Yes(Option<i64>),
    /// The object is another one by now, or is gone: what is seen next tells.
    Outdated,
    /// It was not done, for this reason; true where the API server has refused it.
    Failed(String, bool),
}

impl Action {
    /// Something done to a pod.
    pub(super) fn of_pod(pod: &PodFacts, what: What) -> Self {
        Self { target: Target::Pod(pod.pod.clone()), what, news: None }
    }

    /// A server-side apply of a body that names its object.
    pub(super) fn apply(body: Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let target = Target::Object {
            kind: text(&body["kind"]),
            namespace: text(&body["metadata"]["namespace"]),
            name: text(&body["metadata"]["name"]),
        };
        Self { target, what: What::Apply(body), news: None }
    }

    /// The same, and people are told when it is done.
    pub(super) fn telling(self, news: (Reason, String)) -> Self {
        Self { news: Some(news), ..self }
    }

    /// The most urgent first: labels that keep evictions off are written first, and struck last.
    pub(super) fn rank(&self) -> u8 {
        match self.what {
            What::Busy(_, true) => 0,
            What::Mark(..)
            | What::Cost(..)
            | What::Began(..)
            | What::Replace(_)
            | What::Apply(_) => 1,
            What::Busy(_, false) => 2,
        }
    }

    /// Whether a workload is applied.
    pub(super) fn is_workload(&self) -> bool {
        match &self.target {
            Target::Pod(_) => false,
            Target::Object { kind, .. } => kind == "Deployment" || kind == "StatefulSet",
        }
    }

    /// Does it.
    pub(super) async fn carry_out(&self, client: &Client, pods: &Pods) -> Done {
        match timeout(WITHIN, self.call(client, pods)).await {
            Ok(Ok(done)) => done,
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                tracing::debug!(object = %self.target, status.message, "outdated");
                // A namespace that is going, or a kind that is not there, is no race.
                match &self.what {
                    What::Apply(_) if status.code == 404 => {
                        Done::Failed(status.message.clone(), true)
                    }
                    _ => Done::Outdated,
                }
            }
            Ok(Err(kube::Error::Api(status))) => {
                Done::Failed(status.message.clone(), status.code < 500 && status.code != 429)
            }
            Ok(Err(error)) => Done::Failed(error.to_string(), false),
            Err(_) => Done::Failed("the API server does not answer".into(), false),
        }
    }

    async fn call(&self, client: &Client, pods: &Pods) -> Result<Done, kube::Error> {
        match &self.what {
            What::Mark(pod, mark) => {
                annotate(client, pod, DRAIN_ANNOTATION, mark.text().into()).await
            }
            What::Began(pod, streams) => {
                annotate(client, pod, STREAMS_ANNOTATION, streams.clone()).await
            }
            What::Cost(pod, cost) => {
                annotate(client, pod, DELETION_COST_ANNOTATION, cost.to_string()).await
            }
            What::Busy(pod, busy) => {
                let done = pods.mark_busy(pod, *busy).await?;
                Ok(if done { Done::Yes(None) } else { Done::Outdated })
            }
            What::Replace(pod) => {
                let this = Preconditions { uid: Some(pod.uid.clone()), ..Default::default() };
                let params = DeleteParams { preconditions: Some(this), ..Default::default() };
                api(client, &pod.pod).delete(&pod.pod.name, &params).await?;
                Ok(Done::Yes(None))
            }
            What::Apply(body) => self.apply_body(client, body).await,
        }
    }

    async fn apply_body(&self, client: &Client, body: &Value) -> Result<Done, kube::Error> {
        let Target::Object { kind, namespace, name } = &self.target else {
            return Ok(Done::Outdated);
        };
        let version = body["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let object = api.patch(name, &params, &Patch::Apply(body)).await?;
        Ok(Done::Yes(object.metadata.generation))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(PodName { namespace, name }) => write!(f, "Pod {namespace}/{name}"),
            Self::Object { kind, namespace, name } => write!(f, "{kind} {namespace}/{name}"),
        }
    }
}

async fn annotate(
    client: &Client,
    pod: &PodFacts,
    annotation: &str,
    value: String,
) -> Result<Done, kube::Error> {
    // The API server refuses a patch that would change the UID: it is another pod then.
    let metadata = json!({ "uid": pod.uid, "annotations": { annotation: value } });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    api(client, &pod.pod).patch_metadata(&pod.pod.name, &params, &patch).await?;
    Ok(Done::Yes(None))
}

fn api(client: &Client, pod: &PodName) -> Api<Pod> {
    Api::namespaced(client.clone(), &pod.namespace)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::client::Body;
    use leasehold_types::TimeBounds;
    use tokio::sync::{mpsc, watch};
    use tonic::codegen::http::{Request, Response};

    use super::*;
    use crate::fleets::fixtures;
    use leasehold_platform_kube::pods::PodsSettings;

    /// Pods of an API server that answers everything with this code.
    fn answered(code: u16) -> (Client, Pods) {
        let answer = move |_: Request<Body>| async move {
            let text = json!({ "status": "Failure", "message": "it says no", "code": code });
            let response = Response::builder().status(code).body(text.to_string());
            Ok::<_, Infallible>(response.expect("an answer"))
        };
        let client = Client::new(tower::service_fn(answer), "ns");
        let settings = PodsSettings {
            client: client.clone(),
            watched: Vec::new(),
            bounds: TimeBounds::default(),
            handle: watch::channel(None).1,
        };
        (client, Pods::start(settings, mpsc::channel(1).0))
    }

    #[tokio::test]
    async fn a_busy_label_that_is_not_written_is_a_failure_and_no_race() {
        let pod = fixtures::pod("a jobs=1").pod;
        let action = Action::of_pod(&pod, What::Busy(Arc::clone(&pod), true));
        for (code, done) in [
            (500, Done::Failed("it says no".into(), false)),
            (403, Done::Failed("it says no".into(), true)),
            (404, Done::Outdated),
        ] {
            let (client, pods) = answered(code);
            assert_eq!(action.carry_out(&client, &pods).await, done, "{code}");
        }
    }
}
