//! One admission request of the API server (`admission.k8s.io/v1`) and its response.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use json_patch::jsonptr::{PointerBuf, Token};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use kube::core::Status;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND, Operation,
};
use kube::core::dynamic::DynamicObject;
use leasehold_injection::{Edit, EditOperation, Step};
use leasehold_kube_api::names::GROUP;
use leasehold_kube_api::resources::{Pipeline, WorkerClass};
use serde_json::json;

use super::injector::{Clusters, InjectionDecision, Injector};
use super::review_log::{ReviewLog, log_review};

/// Bytes of a warning; the API server cuts longer ones.
const WARNING_BYTES_MAX: usize = 255;
/// Warnings of one response.
const WARNINGS_MAX: usize = 8;

/// The request about a class or a pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValidationRequest<'a> {
    /// It is created or updated.
    Stored {
        /// Its kind.
        kind: &'static str,
        /// Its namespace.
        namespace: &'a str,
        /// The new object.
        object: &'a DynamicObject,
        /// The object before an update.
        old: Option<&'a DynamicObject>,
    },
    /// A class is deleted.
    ClassDeleted {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// The user who asks.
        by: &'a str,
    },
    /// Any other request.
    Other,
}

/// The request to evict a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionRequest<'a> {
    /// The pod's namespace.
    pub(super) namespace: &'a str,
    /// The pod's name.
    pub(super) pod: &'a str,
    /// The user who asks.
    pub(super) by: &'a str,
    /// Whether nothing may come of it.
    pub(super) is_dry_run: bool,
}

/// The decision on a request.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Changes to the object.
    pub(super) edits: Vec<Edit>,
    /// Messages for the user.
    pub(super) warnings: Vec<String>,
    /// Why the object is denied.
    pub(super) denial: Option<Denial>,
}

/// Why an object is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    /// The HTTP status.
    pub(super) code: u16,
    /// The reason of a Kubernetes Status.
    pub(super) reason: &'static str,
    /// The message for the user.
    pub(super) message: String,
}

/// A decoded request.
#[derive(Debug)]
pub(super) struct Admission {
    request: AdmissionRequest<DynamicObject>,
    peer: Option<IpAddr>,
    log: Arc<ReviewLog>,
}

impl Admission {
    /// Decodes an AdmissionReview from this address; `log` has which lines are written about it.
    ///
    /// # Errors
    /// Says what is wrong with the body.
    pub(super) fn read(
        body: &[u8],
        peer: Option<IpAddr>,
        log: Arc<ReviewLog>,
    ) -> Result<Self, String> {
        let review: AdmissionReview<DynamicObject> = serde_json::from_slice(body)
            .map_err(|error| format!("invalid {META_KIND}: {error}"))?;
        let (kind, api_version) = (&review.types.kind, &review.types.api_version);
        if kind != META_KIND || api_version != META_API_VERSION_V1 {
            return Err(format!(
                "invalid request: expected {META_KIND} of {META_API_VERSION_V1}, got {kind} of \
                 {api_version}"
            ));
        }
        let request: AdmissionRequest<DynamicObject> =
            review.try_into().map_err(|_| format!("{META_KIND} without a request"))?;
        let is_stored = matches!(request.operation, Operation::Create | Operation::Update);
        if is_stored && request.object.is_none() {
            Err(format!("{META_KIND} without the object that is stored"))
        } else {
            Ok(Self { request, peer, log })
        }
    }

    /// The decision on a pod.
    pub(super) fn inject(&self, injector: &Injector, clusters: &Clusters) -> InjectionDecision {
        let Self { request, .. } = self;
        let (group, resource) = (&request.resource.group, &request.resource.resource);
        let is_pod = group.is_empty() && resource == "pods" && self.is_whole();
        let (Some(object), Operation::Create, true) = (&request.object, &request.operation, is_pod)
        else {
            let operation = &request.operation;
            log_review!(self, warn, group, resource, ?operation, "not a new pod: left unchanged");
            return InjectionDecision::Unchanged;
        };
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let decision = match serde_json::to_value(object) {
            Ok(value) => injector.decide(clusters, namespace, &value),
            Err(error) => InjectionDecision::Denied(format!("cannot encode the pod: {error}")),
        };
        let pod = pod_name(object);
        match &decision {
            InjectionDecision::Unchanged => tracing::debug!(namespace, pod, "left unchanged"),
            InjectionDecision::Injected { edits, warnings } if edits.is_empty() => {
                tracing::debug!(namespace, pod, ?warnings, "has its agent already");
            }
            InjectionDecision::Injected { warnings, .. } => {
                log_review!(self, info, namespace, pod, ?warnings, "injected");
            }
            InjectionDecision::Denied(why) => {
                log_review!(self, warn, namespace, pod, why, "denied");
            }
        }
        decision
    }

    /// The request about a class or a pipeline.
    pub(super) fn validation(&self) -> ValidationRequest<'_> {
        let Self { request, .. } = self;
        let (group, resource) = (&request.resource.group, &request.resource.resource);
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let kind = match resource.as_str() {
            "pipelines" if group == GROUP && self.is_whole() => Some(Pipeline::KIND),
            "workerclasses" if group == GROUP && self.is_whole() => Some(WorkerClass::KIND),
            _ => None,
        };
        let old = request.old_object.as_ref();
        match (kind, &request.operation, &request.object) {
            (Some(kind), Operation::Create | Operation::Update, Some(object)) => {
                ValidationRequest::Stored { kind, namespace, object, old }
            }
            (Some(WorkerClass::KIND), Operation::Delete, _) => {
                let name = old.and_then(|old| old.metadata.name.as_deref());
                let name = name.unwrap_or(&request.name);
                let by = request.user_info.username.as_deref().unwrap_or_default();
                ValidationRequest::ClassDeleted { namespace, name, by }
            }
            (_, operation, _) => {
                log_review!(self, warn, group, resource, ?operation, "unexpected object: allowed");
                ValidationRequest::Other
            }
        }
    }

    /// The request to evict a pod; `None` for any other request.
    pub(super) fn eviction(&self) -> Option<EvictionRequest<'_>> {
        let Self { request, .. } = self;
        let (group, resource) = (&request.resource.group, &request.resource.resource);
        let subresource = request.sub_resource.as_deref().unwrap_or_default();
        let is_eviction = group.is_empty() && resource == "pods" && subresource == "eviction";
        let (Operation::Create, Some(eviction), true) =
            (&request.operation, &request.object, is_eviction)
        else {
            let operation = &request.operation;
            log_review!(
                self,
                warn,
                group,
                resource,
                subresource,
                ?operation,
                "not an eviction: allowed"
            );
            return None;
        };
        // `kubectl drain --dry-run=server` asks for it in the body alone, not in the request.
        let in_body = &eviction.data["deleteOptions"]["dryRun"];
        Some(EvictionRequest {
            namespace: request.namespace.as_deref().unwrap_or_default(),
            pod: &request.name,
            by: request.user_info.username.as_deref().unwrap_or_default(),
            is_dry_run: request.dry_run
                || in_body.as_array().is_some_and(|modes| !modes.is_empty()),
        })
    }

    /// Whether the request is about the object and not about a subresource.
    fn is_whole(&self) -> bool {
        self.request.sub_resource.as_deref().unwrap_or_default().is_empty()
    }

    /// The response to a request about a pod, as JSON.
    pub(super) fn pod_response(&self, decision: InjectionDecision) -> String {
        self.response(match decision {
            InjectionDecision::Unchanged => Decision::default(),
            InjectionDecision::Injected { edits, warnings } => {
                Decision { edits, warnings, denial: None }
            }
            InjectionDecision::Denied(why) => {
                let name = self.request.object.as_ref().map(pod_name).unwrap_or_default();
                let message = format!("pod {name}: {why}");
                let denial = Some(Denial { code: 400, reason: "BadRequest", message });
                Decision { denial, ..Decision::default() }
            }
        })
    }

    /// The response, as JSON.
    pub(super) fn response(&self, decision: Decision) -> String {
        let Decision { edits, warnings, denial } = decision;
        let mut response = AdmissionResponse::from(&self.request);
        if !edits.is_empty() {
            response = response.with_patch(patch(&edits)).expect("a patch is JSON");
        }
        let warnings = warnings.iter().take(WARNINGS_MAX);
        let warnings: Vec<String> = warnings.map(|text| cut(one_line(text))).collect();
        response.warnings = (!warnings.is_empty()).then_some(warnings);
        if let Some(Denial { code, reason, message }) = denial {
            response.allowed = false;
            response.result = Status::failure(&one_line(&message), reason).with_code(code);
        }
        // The API says base64. kube would write an array of numbers, several times as long.
        let patch = response.patch.take().map(|patch| STANDARD.encode(patch));
        let mut review = json!(response.into_review());
        if let Some(patch) = patch {
            review["response"]["patch"] = json!(patch);
        }
        review.to_string()
    }
}

/// The edits as a JSON patch (RFC 6902).
pub(super) fn patch(edits: &[Edit]) -> Patch {
    Patch(edits.iter().map(operation).collect())
}

fn operation(edit: &Edit) -> PatchOperation {
    let tokens = edit.path.iter().map(|step| match step {
        Step::Key(key) => Token::new(key.as_str()),
        Step::Index(index) => Token::from(*index),
    });
    let path = PointerBuf::from_tokens(tokens);
    match edit.change.clone() {
        EditOperation::Insert(value) => PatchOperation::Add(AddOperation { path, value }),
        EditOperation::Replace(value) => PatchOperation::Replace(ReplaceOperation { path, value }),
        EditOperation::Remove => PatchOperation::Remove(RemoveOperation { path }),
    }
}

/// The pod's name, or the prefix that its name is generated from.
fn pod_name(pod: &DynamicObject) -> String {
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    match (text(&pod.metadata.name), text(&pod.metadata.generate_name)) {
        (Some(name), _) => name,
        (None, Some(prefix)) => format!("{prefix}*"),
        (None, None) => "without a name".to_owned(),
    }
}

/// Warnings travel in HTTP headers, which cannot hold line breaks.
fn one_line(text: &str) -> String {
    text.split(char::is_control).collect::<Vec<_>>().join(" ")
}

fn cut(mut text: String) -> String {
    const MORE: &str = "…";
    if text.len() > WARNING_BYTES_MAX {
        text.truncate(text.floor_char_boundary(WARNING_BYTES_MAX - MORE.len()));
        text.push_str(MORE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_slashes_and_tildes_and_places_in_lists_are_found() {
        let at = |path: &[Step], change| Edit { path: path.to_vec(), change };
        let key = |key: &str| Step::Key(key.to_owned());
        let label = [key("metadata"), key("labels"), key("a.dev/x~y")];
        let edits = [
            at(&label, EditOperation::Insert(json!("v"))),
            at(
                &[key("spec"), key("initContainers"), Step::Index(0)],
                EditOperation::Insert(json!({})),
            ),
            at(&label, EditOperation::Replace(json!("w"))),
            at(&label, EditOperation::Remove),
        ];
        let path = "/metadata/labels/a.dev~1x~0y";
        let wanted = json!([
            { "op": "add", "path": path, "value": "v" },
            { "op": "add", "path": "/spec/initContainers/0", "value": {} },
            { "op": "replace", "path": path, "value": "w" },
            { "op": "remove", "path": path },
        ]);
        assert_eq!(serde_json::to_value(patch(&edits)).expect("JSON"), wanted);
    }
}
