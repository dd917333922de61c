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

use super::worker_pod::DrainReason;
use crate::events::EventReason;

/// How long one may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Action {
    /// To this object.
    pub(super) target: ObjectRef,
    /// This.
    pub(super) kind: ActionKind,
    /// What the cluster's people are told when it is done.
    pub(super) event: Option<(EventReason, String)>,
}

/// Names an object; what goes wrong with one keeps nobody from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ObjectRef {
    Pod(PodName),
    Object { kind: String, namespace: String, name: String },
}

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ActionKind {
    /// Mark a pod for a drain.
    MarkForDrain(Arc<PodFacts>, DrainReason),
    /// Write down which streams a pod began with.
    RecordStreams(Arc<PodFacts>, String),
    /// Say that a pod's removal costs so much.
    SetDeletionCost(Arc<PodFacts>, i32),
    /// Write the label of busy pods, or strike it.
    SetBusyLabel(Arc<PodFacts>, bool),
    /// Delete a pod that holds nothing, so that another takes its place.
    DeletePod(Arc<PodFacts>),
    /// Server-side apply.
    Apply(Value),
}

/// How an action went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionOutcome {
    /// It is done; the object's generation after an apply.
    Done(Option<i64>),
    /// The object is another one by now, or is gone: what is seen next tells.
    Outdated,
    /// It was not done, for this reason; true where the API server has refused it.
    Failed(String, bool),
}

impl Action {
    /// Something done to a pod.
    pub(super) fn on_pod(pod: &PodFacts, kind: ActionKind) -> Self {
        Self { target: ObjectRef::Pod(pod.pod.clone()), kind, event: None }
    }

    /// A server-side apply of a body that names its object.
    pub(super) fn apply(body: Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let target = ObjectRef::Object {
            kind: text(&body["kind"]),
            namespace: text(&body["metadata"]["namespace"]),
            name: text(&body["metadata"]["name"]),
        };
        Self { target, kind: ActionKind::Apply(body), event: None }
    }

    /// The same, and people are told when it is done.
    pub(super) fn with_event(self, event: (EventReason, String)) -> Self {
        Self { event: Some(event), ..self }
    }

    /// The most urgent first: labels that keep evictions off are written first, and struck last.
    pub(super) fn rank(&self) -> u8 {
        match self.kind {
            ActionKind::SetBusyLabel(_, true) => 0,
            ActionKind::MarkForDrain(..)
            | ActionKind::SetDeletionCost(..)
            | ActionKind::RecordStreams(..)
            | ActionKind::DeletePod(_)
            | ActionKind::Apply(_) => 1,
            ActionKind::SetBusyLabel(_, false) => 2,
        }
    }

    /// Whether a workload is applied.
    pub(super) fn is_workload(&self) -> bool {
        match &self.target {
            ObjectRef::Pod(_) => false,
            ObjectRef::Object { kind, .. } => kind == "Deployment" || kind == "StatefulSet",
        }
    }

    /// Does it.
    pub(super) async fn execute(&self, client: &Client, pods: &Pods) -> ActionOutcome {
        match timeout(ANSWER_WITHIN, self.call(client, pods)).await {
            Ok(Ok(done)) => done,
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                tracing::debug!(object = %self.target, status.message, "outdated");
                // A namespace that is going, or a kind that is not there, is no race.
                match &self.kind {
                    ActionKind::Apply(_) if status.code == 404 => {
                        ActionOutcome::Failed(status.message.clone(), true)
                    }
                    _ => ActionOutcome::Outdated,
                }
            }
            Ok(Err(kube::Error::Api(status))) => ActionOutcome::Failed(
                status.message.clone(),
                status.code < 500 && status.code != 429,
            ),
            Ok(Err(error)) => ActionOutcome::Failed(error.to_string(), false),
            Err(_) => ActionOutcome::Failed("the API server does not answer".into(), false),
        }
    }

    async fn call(&self, client: &Client, pods: &Pods) -> Result<ActionOutcome, kube::Error> {
        match &self.kind {
            ActionKind::MarkForDrain(pod, mark) => {
                annotate(client, pod, DRAIN_ANNOTATION, mark.text().into()).await
            }
            ActionKind::RecordStreams(pod, streams) => {
                annotate(client, pod, STREAMS_ANNOTATION, streams.clone()).await
            }
            ActionKind::SetDeletionCost(pod, cost) => {
                annotate(client, pod, DELETION_COST_ANNOTATION, cost.to_string()).await
            }
            ActionKind::SetBusyLabel(pod, busy) => {
                let done = pods.mark_busy(pod, *busy).await?;
                Ok(if done { ActionOutcome::Done(None) } else { ActionOutcome::Outdated })
            }
            ActionKind::DeletePod(pod) => {
                let this = Preconditions { uid: Some(pod.uid.clone()), ..Default::default() };
                let params = DeleteParams { preconditions: Some(this), ..Default::default() };
                api(client, &pod.pod).delete(&pod.pod.name, &params).await?;
                Ok(ActionOutcome::Done(None))
            }
            ActionKind::Apply(body) => self.apply_body(client, body).await,
        }
    }

    async fn apply_body(
        &self,
        client: &Client,
        body: &Value,
    ) -> Result<ActionOutcome, kube::Error> {
        let ObjectRef::Object { kind, namespace, name } = &self.target else {
            return Ok(ActionOutcome::Outdated);
        };
        let version = body["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let object = api.patch(name, &params, &Patch::Apply(body)).await?;
        Ok(ActionOutcome::Done(object.metadata.generation))
    }
}

impl fmt::Display for ObjectRef {
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
) -> Result<ActionOutcome, kube::Error> {
    // The API server refuses a patch that would change the UID: it is another pod then.
    let metadata = json!({ "uid": pod.uid, "annotations": { annotation: value } });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    api(client, &pod.pod).patch_metadata(&pod.pod.name, &params, &patch).await?;
    Ok(ActionOutcome::Done(None))
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
        let action = Action::on_pod(&pod, ActionKind::SetBusyLabel(Arc::clone(&pod), true));
        for (code, done) in [
            (500, ActionOutcome::Failed("it says no".into(), false)),
            (403, ActionOutcome::Failed("it says no".into(), true)),
            (404, ActionOutcome::Outdated),
        ] {
            let (client, pods) = answered(code);
            assert_eq!(action.execute(&client, &pods).await, done, "{code}");
        }
    }
}
