//! One review: what the API server asks (`admission.k8s.io/v1`), and the answer that it takes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold_injection::Edit;
use serde::Deserialize;
use serde_json::{Value, json};

use super::injector::{Clusters, Injector, Verdict};
use super::patch::patch;
use crate::metrics::Injection;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Bytes of a warning; the API server cuts longer ones.
const WARNING_BYTES_MAX: usize = 255;
/// Warnings of one answer.
const WARNINGS_MAX: usize = 8;

/// What the API server asks.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    api_version: String,
    kind: String,
    request: Option<Request>,
}

/// One question.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    resource: Resource,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    operation: String,
    #[serde(default)]
    object: Value,
}

#[derive(Debug, Deserialize)]
struct Resource {
    #[serde(default)]
    group: String,
    resource: String,
}

/// A review that is read and not answered yet.
#[derive(Debug)]
pub(super) struct Review(Request);

impl Review {
    /// Reads a review.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let asked: Asked =
            serde_json::from_slice(body).map_err(|error| format!("no {KIND}: {error}"))?;
        if asked.kind != KIND || asked.api_version != API_VERSION {
            let Asked { api_version, kind, .. } = asked;
            return Err(format!("{kind} of {api_version}; {KIND} of {API_VERSION} is wanted"));
        }
        asked.request.map(Self).ok_or_else(|| format!("{KIND} without a request"))
    }

    /// What becomes of the object.
    pub(super) fn judge(&self, injector: &Injector, clusters: &Clusters) -> Verdict {
        let Self(request) = self;
        let Resource { group, resource } = &request.resource;
        let is_pod = group.is_empty() && resource == "pods";
        let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
        if !is_pod || !is_whole || request.operation != "CREATE" {
            tracing::warn!(
                group,
                resource,
                request.operation,
                "asked about something else than a new pod: it is left as it is"
            );
            return Verdict::Unchanged;
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let verdict = injector.judge(clusters, namespace, &request.object);
        let pod = name(&request.object);
        match &verdict {
            Verdict::Unchanged => tracing::debug!(namespace, pod, "left as it is"),
            Verdict::Injected { edits, warnings } if edits.is_empty() => {
                tracing::debug!(namespace, pod, ?warnings, "has its agent already");
            }
            Verdict::Injected { warnings, .. } => {
                tracing::info!(namespace, pod, ?warnings, "injected");
            }
            Verdict::Refused(why) => tracing::warn!(namespace, pod, why, "refused"),
        }
        verdict
    }

    /// The answer, as JSON.
    pub(super) fn answer(&self, verdict: Verdict) -> String {
        let Self(request) = self;
        let mut response = json!({ "uid": request.uid, "allowed": true });
        match verdict {
            Verdict::Unchanged => {}
            Verdict::Injected { edits, warnings } => {
                if !edits.is_empty() {
                    response["patchType"] = json!("JSONPatch");
                    response["patch"] = json!(encoded(&edits));
                }
                let warnings: Vec<String> = warnings
                    .into_iter()
                    .take(WARNINGS_MAX)
                    .map(|text| cut(one_line(&text)))
                    .collect();
                if !warnings.is_empty() {
                    response["warnings"] = json!(warnings);
                }
            }
            Verdict::Refused(why) => {
                response["allowed"] = json!(false);
                let message = format!("pod {}: {}", name(&request.object), one_line(&why));
                response["status"] =
                    json!({ "code": 400, "reason": "BadRequest", "message": message });
            }
        }
        json!({ "apiVersion": API_VERSION, "kind": KIND, "response": response }).to_string()
    }
}

impl Verdict {
    /// How it is counted.
    pub(super) fn kind(&self) -> Injection {
        match self {
            Self::Unchanged => Injection::Unchanged,
            Self::Injected { edits, .. } if edits.is_empty() => Injection::Unchanged,
            Self::Injected { .. } => Injection::Injected,
            Self::Refused(_) => Injection::Refused,
        }
    }
}

fn encoded(edits: &[Edit]) -> String {
    STANDARD.encode(patch(edits).to_string())
}

/// What a pod is called, or is going to be called.
fn name(pod: &Value) -> String {
    let metadata = &pod["metadata"];
    let text = |key: &str| metadata[key].as_str().filter(|text| !text.is_empty());
    match (text("name"), text("generateName")) {
        (Some(name), _) => name.to_owned(),
        (None, Some(prefix)) => format!("{prefix}*"),
        (None, None) => "without a name".to_owned(),
    }
}

/// HTTP headers, in which warnings travel, have no lines.
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
