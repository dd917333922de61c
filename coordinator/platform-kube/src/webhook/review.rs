//! One review: what the API server asks (`admission.k8s.io/v1`), and the answer that it takes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold_driver::metrics::Injection;
use leasehold_injection::Edit;
use leasehold_kube_api::names::GROUP;
use leasehold_kube_api::resources::{Pipeline, WorkerClass};
use serde::Deserialize;
use serde_json::{Value, json};

use super::injector::{Clusters, Injector, Verdict};
use super::patch::patch;

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
    /// What a deleted object was called, where the object is not told.
    #[serde(default)]
    name: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
    #[serde(default)]
    user_info: User,
}

#[derive(Debug, Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Debug, Deserialize)]
struct Resource {
    #[serde(default)]
    group: String,
    resource: String,
}

/// What is to be done with a class or a pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change<'a> {
    /// It is made, or changed.
    Stored {
        /// Its kind.
        kind: &'static str,
        /// Where it is.
        namespace: &'a str,
        /// It, as it is to be.
        object: &'a Value,
        /// It, as it was; null where it is new.
        old: &'a Value,
    },
    /// A class is to go.
    ClassDeleted {
        /// Where it is.
        namespace: &'a str,
        /// What it is called.
        name: &'a str,
        /// Who wants it.
        by: &'a str,
    },
    /// It is none of this.
    Other,
}

/// What the API server is answered.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Changes to the object.
    pub(super) edits: Vec<Edit>,
    /// What people should know.
    pub(super) warnings: Vec<String>,
    /// Why it is not let in.
    pub(super) refusal: Option<Refusal>,
}

/// Why an object is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// As HTTP counts it.
    pub(super) code: u16,
    /// As Kubernetes names it.
    pub(super) reason: &'static str,
    /// For people.
    pub(super) message: String,
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

    /// What is to be done with a class or a pipeline.
    pub(super) fn change(&self) -> Change<'_> {
        let Self(request) = self;
        let Resource { group, resource } = &request.resource;
        let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let of_group = match group == GROUP && is_whole {
            true => resource.as_str(),
            false => "",
        };
        let (object, old) = (&request.object, &request.old_object);
        match (of_group, request.operation.as_str()) {
            ("pipelines", "CREATE" | "UPDATE") => {
                Change::Stored { kind: Pipeline::KIND, namespace, object, old }
            }
            ("workerclasses", "CREATE" | "UPDATE") => {
                Change::Stored { kind: WorkerClass::KIND, namespace, object, old }
            }
            ("workerclasses", "DELETE") => {
                let name = old["metadata"]["name"].as_str().unwrap_or(&request.name);
                Change::ClassDeleted { namespace, name, by: &request.user_info.username }
            }
            _ => {
                let operation = &request.operation;
                tracing::warn!(
                    group,
                    resource,
                    operation,
                    "asked about something else: let through"
                );
                Change::Other
            }
        }
    }

    /// The answer on a pod, as JSON.
    pub(super) fn answer(&self, verdict: Verdict) -> String {
        let pod = || name(&self.0.object);
        self.write(match verdict {
            Verdict::Unchanged => Answer::default(),
            Verdict::Injected { edits, warnings } => Answer { edits, warnings, refusal: None },
            Verdict::Refused(why) => {
                let message = format!("pod {}: {why}", pod());
                let refusal = Some(Refusal { code: 400, reason: "BadRequest", message });
                Answer { refusal, ..Answer::default() }
            }
        })
    }

    /// The answer, as JSON.
    pub(super) fn write(&self, answer: Answer) -> String {
        let Answer { edits, warnings, refusal } = answer;
        let mut response = json!({ "uid": self.0.uid, "allowed": refusal.is_none() });
        if !edits.is_empty() {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(encoded(&edits));
        }
        let warnings = warnings.iter().take(WARNINGS_MAX);
        let warnings: Vec<String> = warnings.map(|text| cut(one_line(text))).collect();
        if !warnings.is_empty() {
            response["warnings"] = json!(warnings);
        }
        if let Some(Refusal { code, reason, message }) = refusal {
            let message = one_line(&message);
            response["status"] = json!({ "code": code, "reason": reason, "message": message });
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
