//! The events of a Pipeline and its bindings.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ObjectMeta;
use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_kube_api::resources::{Pipeline, PipelineBinding};
use leasehold_manifest::manifest::API_VERSION;

use super::managed_kind::ManagedKind;
use super::object_writer::ObjectError;
use crate::conditions::ConditionReason;
use crate::events::{EventReason, EventRecorder, NewEvent};
use crate::workqueue::REPEATED;

/// Records the events of pipelines.
#[derive(Clone, Debug)]
pub(super) struct PipelineEvents {
    events: EventRecorder,
}

impl PipelineEvents {
    pub(super) fn new(events: EventRecorder) -> Self {
        Self { events }
    }

    /// Records a change of a pipeline's phase. A pipeline that a new leader finds Ready causes no
    /// event.
    pub(super) fn phase_changed(
        &self,
        pipeline: &Pipeline,
        from: Option<PipelinePhase>,
        to: PipelinePhase,
        why: &str,
    ) {
        let (reason, otherwise) = match to {
            PipelinePhase::Ready if from.is_none() => return,
            PipelinePhase::Ready if from == Some(to) && why.is_empty() => return,
            PipelinePhase::Ready if from == Some(to) => (EventReason::PipelineChangeWaits, ""),
            PipelinePhase::Pending => {
                (EventReason::PipelinePending, "the pipeline waits for workers")
            }
            PipelinePhase::Plotted => {
                (EventReason::PipelinePlotted, "the workers of the pipeline are chosen")
            }
            PipelinePhase::Ready => {
                (EventReason::PipelineReady, "all bindings of the pipeline are ready")
            }
            PipelinePhase::Broken => {
                (EventReason::PipelineBroken, "a worker of the pipeline was lost")
            }
        };
        let note = if why.is_empty() { otherwise } else { why };
        self.events.record(NewEvent {
            regarding: reference(Pipeline::KIND, &pipeline.metadata),
            related: None,
            reason,
            note: note.to_owned(),
        });
    }

    /// Records that an object of a pipeline cannot be written.
    pub(super) fn object_error(
        &self,
        pipeline: &Pipeline,
        binding: Option<ObjectReference>,
        why: &ConditionReason,
        is_taken: bool,
    ) {
        let reason = if is_taken { EventReason::NameTaken } else { EventReason::ObjectRejected };
        let regarding = reference(Pipeline::KIND, &pipeline.metadata);
        let note = why.message.clone();
        if let Some(binding) = &binding {
            let related = Some(regarding.clone());
            let note = note.clone();
            self.events.record(NewEvent { regarding: binding.clone(), related, reason, note });
        }
        self.events.record(NewEvent { regarding, related: binding, reason, note });
    }
}

/// The reason of a condition for an object that cannot be written, and has failed so often with
/// this error; `None` if a retry may succeed.
pub(super) fn why(
    kind: ManagedKind,
    name: &str,
    error: &ObjectError,
    times: u32,
) -> Option<ConditionReason> {
    let kind = kind.name();
    match error {
        ObjectError::NameTaken => Some(ConditionReason::new(
            "NameTaken",
            format!(
                "{kind} {name} exists and does not belong to this pipeline: it is not changed; \
                 delete it, or rename the pipeline or its node"
            ),
        )),
        ObjectError::Rejected(why) => Some(ConditionReason::new(
            "ObjectRejected",
            format!("the API server rejects {kind} {name}: {why}; correct the Pipeline or RBAC"),
        )),
        ObjectError::Internal(why) if times >= REPEATED => Some(ConditionReason::new(
            "ObjectRejected",
            format!("the API server fails on {kind} {name}: {why}; it is tried again"),
        )),
        ObjectError::Internal(_) | ObjectError::Retry(_) => None,
    }
}

/// The reason of a condition for a kind of objects that the coordinator may not read.
pub(super) fn forbidden(kind: ManagedKind, why: &str) -> ConditionReason {
    ConditionReason::new(
        "RightsMissing",
        format!(
            "the coordinator may not manage objects of kind {}, so no Service of this pipeline is \
             made or kept current: add components/pipelines to the installation ({why})",
            kind.name()
        ),
    )
}

/// A PipelineBinding, as events name it.
pub(super) fn binding(namespace: Option<String>, name: &str, uid: &str) -> ObjectReference {
    let metadata = ObjectMeta {
        namespace,
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    reference(PipelineBinding::KIND, &metadata)
}

fn reference(kind: &str, metadata: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.into()),
        kind: Some(kind.into()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_on_which_the_api_server_fails_again_and_again_is_said() {
        let said = |error: &ObjectError, times: u32| {
            let why = why(ManagedKind::Service, "mine-in", error, times);
            why.map(|why| (why.reason, why.message))
        };
        let webhook = "failed calling webhook \"services.example.com\"";
        let fails = ObjectError::Internal(webhook.into());
        assert_eq!((said(&fails, 0), said(&fails, REPEATED - 1)), (None, None));
        let (reason, message) = said(&fails, REPEATED).expect("it is said");
        assert_eq!(reason, "ObjectRejected");
        assert!(message.contains("Service mine-in") && message.contains(webhook), "{message}");
        assert_eq!(said(&ObjectError::Retry("away".into()), REPEATED), None);
        assert!(said(&ObjectError::Rejected("invalid".into()), 0).is_some());
    }
}
