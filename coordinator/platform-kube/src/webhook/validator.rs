//! Validates a class or a pipeline before it is stored: by the rules of the manifests, against the
//! state in force. This replica may not have seen a recent change yet, so it repeats the check of a
//! denied object after a short wait.

use std::sync::Arc;
use std::time::Duration;

use kube::core::dynamic::DynamicObject;
use leasehold_coordinator_core::desired::Desired;
use leasehold_driver::metrics::ValidationResult;
use leasehold_manifest::admission::{opinion, users};
use leasehold_manifest::collection::Collection;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::{ClusterName, counted};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::admission::{Decision, Denial, ValidationRequest};

/// How long a recent change may take to reach this replica.
const SEEN_WITHIN: Duration = Duration::from_millis(500);
/// The most pipelines that a message names.
const NAMED_MAX: usize = 5;
/// The most problems that a message names.
const PROBLEMS_MAX: usize = 10;
/// The users that delete the objects of a namespace that is being deleted.
const NAMESPACE_DELETERS: [&str; 2] =
    ["system:serviceaccount:kube-system:namespace-controller", "system:kube-controller-manager"];

/// Decides which classes and pipelines are stored.
#[derive(Clone, Debug)]
pub struct Validator {
    /// The namespaces that are served; empty for all.
    pub served: Vec<String>,
    /// The part of the limits that one namespace may use.
    pub share: NamespaceShare,
    /// The desired state in force; `None` before the first read.
    pub in_force: watch::Receiver<Option<Arc<Desired>>>,
}

/// The decision on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValidationDecision {
    /// It is stored, with these warnings.
    Allowed(Vec<String>),
    /// It is denied.
    Denied(Denial),
}

impl Validator {
    /// The decision on an object; `None` before the state in force was read once.
    pub(super) async fn decide(
        &self,
        request: ValidationRequest<'_>,
    ) -> Option<ValidationDecision> {
        let mut in_force = self.in_force.clone();
        if let ValidationRequest::Stored { namespace, .. } = request
            && self.is_unserved(namespace)
        {
            let served = self.served.join(", ");
            return Some(ValidationDecision::Allowed(vec![format!(
                "the coordinator serves {served} and not namespace {namespace}: it ignores \
                 this object"
            )]));
        }
        let deadline = Instant::now() + SEEN_WITHIN;
        loop {
            let seen = in_force.borrow_and_update().clone()?;
            let decision = decide_by(&seen, self.share, request);
            if decision == ValidationDecision::allowed() {
                return Some(decision);
            }
            match timeout_at(deadline, in_force.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Some(decision),
            }
        }
    }

    fn is_unserved(&self, namespace: &str) -> bool {
        !self.served.is_empty() && !self.served.iter().any(|served| served == namespace)
    }
}

impl ValidationDecision {
    /// Allowed without warnings.
    fn allowed() -> Self {
        Self::Allowed(Vec::new())
    }

    fn denied(code: u16, reason: &'static str, message: String) -> Self {
        Self::Denied(Denial { code, reason, message })
    }

    /// How it is counted.
    pub(super) fn kind(&self) -> ValidationResult {
        match self {
            Self::Allowed(warnings) if warnings.is_empty() => ValidationResult::Allowed,
            Self::Allowed(_) => ValidationResult::Warned,
            Self::Denied(_) => ValidationResult::Refused,
        }
    }
}

impl From<ValidationDecision> for Decision {
    fn from(decision: ValidationDecision) -> Self {
        match decision {
            ValidationDecision::Allowed(warnings) => Self { warnings, ..Self::default() },
            ValidationDecision::Denied(denial) => Self { denial: Some(denial), ..Self::default() },
        }
    }
}

fn decide_by(
    in_force: &Desired,
    share: NamespaceShare,
    request: ValidationRequest<'_>,
) -> ValidationDecision {
    match request {
        ValidationRequest::Stored { kind, namespace, object, old } => {
            // An object that is being deleted, or keeps its spec, was checked when it was created.
            let goes = object.metadata.deletion_timestamp.is_some();
            if goes || old.is_some_and(|old| object.data["spec"] == old.data["spec"]) {
                return ValidationDecision::allowed();
            }
            stored(in_force, share, kind, namespace, object)
        }
        ValidationRequest::ClassDeleted { by, .. } if NAMESPACE_DELETERS.contains(&by) => {
            ValidationDecision::allowed()
        }
        ValidationRequest::ClassDeleted { namespace, name, .. } => {
            deleted(in_force, namespace, name)
        }
        ValidationRequest::Other => ValidationDecision::allowed(),
    }
}

fn stored(
    in_force: &Desired,
    share: NamespaceShare,
    kind: &'static str,
    namespace: &str,
    object: &DynamicObject,
) -> ValidationDecision {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let Some(id) = Collection::id(kind, namespace, name) else {
        let message =
            format!("{kind} {name:?}: metadata.name is not a DNS label: choose another name");
        return ValidationDecision::denied(422, "Invalid", message);
    };
    let opinion = opinion(in_force, share, &id, object.data["spec"].clone());
    if opinion.problems.is_empty() {
        return ValidationDecision::Allowed(opinion.warnings);
    }
    let shown = opinion.problems.iter().take(PROBLEMS_MAX);
    let mut messages: Vec<String> =
        shown.map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
    if let more @ 1.. = opinion.problems.len().saturating_sub(PROBLEMS_MAX) {
        messages.push(counted(more, "more problem"));
    }
    let message = format!("{kind} {name}: {}", messages.join("; "));
    ValidationDecision::denied(422, "Invalid", message)
}

fn deleted(in_force: &Desired, namespace: &str, name: &str) -> ValidationDecision {
    let Ok(class) = ClusterName::in_namespace(namespace, name) else {
        return ValidationDecision::allowed();
    };
    let users: Vec<&str> = users(in_force, &class).map(|pipeline| pipeline.parts().1).collect();
    if users.is_empty() {
        return ValidationDecision::allowed();
    }
    let (named, rest) = users.split_at(users.len().min(NAMED_MAX));
    let more = if rest.is_empty() { "" } else { ", …" };
    let count = match users.len() {
        1 => "1 pipeline names".to_owned(),
        count => format!("{count} pipelines name"),
    };
    let message = format!(
        "WorkerClass {name}: {count} it ({}{more}): delete them first, or let them name another \
         class",
        named.join(", ")
    );
    ValidationDecision::denied(403, "Forbidden", message)
}

#[cfg(test)]
#[path = "validator_tests.rs"]
mod tests;
