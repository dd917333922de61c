//! The calls that fleets make: each may be made twice. A call for a pod is bound to its UID, so it
//! never affects a later pod of that name.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{ApiResource, GroupVersionKind};
use leasehold_kube_api::names::{DELETION_COST_ANNOTATION, DRAIN_ANNOTATION, STREAMS_ANNOTATION};
use leasehold_platform_kube::pods::{PodFacts, PodName, Pods};
use serde_json::{Value, json};

use super::worker_pod::{DRAINED_POD_COST, DrainReason};
use crate::applier::{Applier, ApplyError};
use crate::events::EventReason;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Action {
    /// To this object.
    pub(super) target: ObjectRef,
    /// This.
    pub(super) kind: ActionKind,
    /// The event to record on success.
    pub(super) event: Option<(EventReason, String)>,
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ObjectRef {
    Pod(PodName),
    Object { kind: String, namespace: String, name: String },
}

/// The kind of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ActionKind {
    /// Mark a pod for a drain.
    MarkForDrain(Arc<PodFacts>, DrainReason),
    /// Remove the mark: the pod stays.
    Unmark(Arc<PodFacts>),
    /// Remove what a deleted fleet has left on a pod, besides the mark of a busy one.
    RemoveMarks(Arc<PodFacts>),
    /// Annotate a pod with the digest of its streams.
    RecordStreams(Arc<PodFacts>, String),
    /// Set a pod's deletion cost.
    SetDeletionCost(Arc<PodFacts>, i32),
    /// Set or remove the label of busy pods.
    SetBusyLabel(Arc<PodFacts>, bool),
    /// Delete a pod that holds nothing, so that its controller replaces it.
    DeletePod(Arc<PodFacts>),
    /// Evict a pod that holds nothing, as far as its disruption budget allows.
    EvictPod(Arc<PodFacts>),
    /// Delete the PodDisruptionBudget with this UID.
    DeleteBudget(String),
    /// Server-side apply.
    Apply(Value),
}

/// How an action went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionOutcome {
    /// It is done; the object's generation after an apply.
    Done(Option<i64>),
    /// The object has changed or was deleted: the next reconciliation decides again.
    Outdated,
    /// It failed, for this reason.
    Failed(String, Failure),
}

/// What a failure says about the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The API server refuses it.
    Refused,
    /// The API server has failed on it: it refuses it, too, if it fails again and again.
    Internal,
    /// Nothing.
    Passing,
}

impl Action {
    /// Something done to a pod.
    pub(super) fn on_pod(pod: &PodFacts, kind: ActionKind) -> Self {
        Self { target: ObjectRef::Pod(pod.pod.clone()), kind, event: None }
    }

    /// The deletion of a PodDisruptionBudget.
    pub(super) fn delete_budget(namespace: &str, name: String, uid: String) -> Self {
        let (kind, namespace) = ("PodDisruptionBudget".to_owned(), namespace.to_owned());
        let target = ObjectRef::Object { kind, namespace, name };
        Self { target, kind: ActionKind::DeleteBudget(uid), event: None }
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

    /// Records this event on success.
    pub(super) fn with_event(self, event: (EventReason, String)) -> Self {
        Self { event: Some(event), ..self }
    }

    /// The lowest first: labels that prevent evictions are set first and removed last.
    pub(super) fn rank(&self) -> u8 {
        match self.kind {
            ActionKind::SetBusyLabel(_, true) => 0,
            ActionKind::MarkForDrain(..)
            | ActionKind::Unmark(_)
            | ActionKind::RemoveMarks(_)
            | ActionKind::SetDeletionCost(..)
            | ActionKind::RecordStreams(..)
            | ActionKind::DeletePod(_)
            | ActionKind::EvictPod(_)
            | ActionKind::DeleteBudget(_)
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

    /// Makes the call.
    pub(super) async fn execute(&self, applier: &Applier, pods: &Pods) -> ActionOutcome {
        match self.call(applier, pods).await {
            Ok(outcome) => outcome,
            // The namespace is being deleted, or the kind is not defined.
            Err(ApplyError::Gone(why)) if matches!(self.kind, ActionKind::Apply(_)) => {
                ActionOutcome::Failed(why, Failure::Refused)
            }
            Err(ApplyError::Gone(why) | ApplyError::Conflict(why)) => {
                tracing::debug!(object = %self.target, why, "outdated");
                ActionOutcome::Outdated
            }
            Err(ApplyError::Refused(why)) => ActionOutcome::Failed(why, Failure::Refused),
            Err(ApplyError::Internal(why)) => ActionOutcome::Failed(why, Failure::Internal),
            Err(ApplyError::Retry(why)) => ActionOutcome::Failed(why, Failure::Passing),
        }
    }

    async fn call(&self, applier: &Applier, pods: &Pods) -> Result<ActionOutcome, ApplyError> {
        match &self.kind {
            ActionKind::MarkForDrain(pod, reason) => {
                annotate(applier, pod, json!({ DRAIN_ANNOTATION: reason.text() })).await
            }
            // A merge patch removes what is null.
            ActionKind::Unmark(pod) => {
                annotate(applier, pod, json!({ DRAIN_ANNOTATION: null })).await
            }
            ActionKind::RemoveMarks(pod) => {
                let mut marks = json!({ DRAIN_ANNOTATION: null, STREAMS_ANNOTATION: null });
                // Any other cost is the user's.
                if pod.deletion_cost == Some(DRAINED_POD_COST) {
                    marks[DELETION_COST_ANNOTATION] = Value::Null;
                }
                annotate(applier, pod, marks).await
            }
            ActionKind::RecordStreams(pod, streams) => {
                annotate(applier, pod, json!({ STREAMS_ANNOTATION: streams })).await
            }
            ActionKind::SetDeletionCost(pod, cost) => {
                annotate(applier, pod, json!({ DELETION_COST_ANNOTATION: cost.to_string() })).await
            }
            ActionKind::SetBusyLabel(pod, busy) => {
                let is_written = pods.mark_busy(pod, *busy).await?;
                Ok(if is_written { ActionOutcome::Done(None) } else { ActionOutcome::Outdated })
            }
            ActionKind::DeletePod(pod) => {
                let api = applier.api::<Pod>(&pod.pod.namespace);
                applier.delete(&api, &pod.pod.name, &pod.uid).await?;
                Ok(ActionOutcome::Done(None))
            }
            ActionKind::EvictPod(pod) => {
                let api = applier.api::<Pod>(&pod.pod.namespace);
                applier.evict(&api, &pod.pod.name, &pod.uid).await?;
                Ok(ActionOutcome::Done(None))
            }
            ActionKind::DeleteBudget(uid) => self.delete_earlier_budget(applier, uid).await,
            ActionKind::Apply(body) => self.apply_body(applier, body).await,
        }
    }

    async fn delete_earlier_budget(
        &self,
        applier: &Applier,
        uid: &str,
    ) -> Result<ActionOutcome, ApplyError> {
        let ObjectRef::Object { namespace, name, .. } = &self.target else {
            return Ok(ActionOutcome::Outdated);
        };
        let api = applier.api::<PodDisruptionBudget>(namespace);
        applier.delete(&api, name, uid).await?;
        Ok(ActionOutcome::Done(None))
    }

    async fn apply_body(
        &self,
        applier: &Applier,
        body: &Value,
    ) -> Result<ActionOutcome, ApplyError> {
        let ObjectRef::Object { kind, namespace, name } = &self.target else {
            return Ok(ActionOutcome::Outdated);
        };
        let version = body["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = applier.dynamic_api(namespace, &resource);
        let object = applier.apply(&api, name, body).await?;
        Ok(ActionOutcome::Done(object.metadata.generation))
    }
}

impl ObjectRef {
    /// The object's namespace.
    pub(super) fn namespace(&self) -> &str {
        match self {
            Self::Pod(PodName { namespace, .. }) | Self::Object { namespace, .. } => namespace,
        }
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
    applier: &Applier,
    pod: &PodFacts,
    annotations: Value,
) -> Result<ActionOutcome, ApplyError> {
    // The API server refuses a patch that would change the UID: it is another pod then.
    let metadata = json!({ "uid": pod.uid, "annotations": annotations });
    let api = applier.api::<Pod>(&pod.pod.namespace);
    applier.merge_metadata(&api, &pod.pod.name, &metadata).await?;
    Ok(ActionOutcome::Done(None))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::Client;
    use kube::client::Body;
    use leasehold_types::TimeBounds;
    use tokio::sync::{mpsc, watch};
    use tonic::codegen::http::{Request, Response};

    use super::*;
    use crate::fleets::fixtures;
    use leasehold_platform_kube::pods::PodsSettings;

    /// Pods of an API server that answers everything with this code.
    fn answered(code: u16) -> (Applier, Pods) {
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
        (Applier::new(client), Pods::start(settings, mpsc::channel(1).0))
    }

    #[tokio::test]
    async fn a_rejected_busy_label_is_a_failure() {
        let pod = fixtures::pod("a jobs=1").pod;
        let action = Action::on_pod(&pod, ActionKind::SetBusyLabel(Arc::clone(&pod), true));
        for (code, done) in [
            (503, ActionOutcome::Failed("it says no (503)".into(), Failure::Passing)),
            (500, ActionOutcome::Failed("it says no (500)".into(), Failure::Internal)),
            (403, ActionOutcome::Failed("it says no (403)".into(), Failure::Refused)),
            (404, ActionOutcome::Outdated),
        ] {
            let (applier, pods) = answered(code);
            assert_eq!(action.execute(&applier, &pods).await, done, "{code}");
        }
    }
}
