//! Whether a class or a pipeline is right, before it is stored: by the very rules by which it would
//! come into force, held against what is in force here. What somebody has changed a moment ago may
//! not be seen here yet, so that a complaint is looked at once more before it is made.

use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_driver::metrics::Validation;
use leasehold_manifest::admission::{opinion, users};
use leasehold_manifest::collection::Collection;
use leasehold_types::ClusterName;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::review::{Answer, Change, Refusal};

/// How long a change that others have just made may take to be seen here.
const SEEN_WITHIN: Duration = Duration::from_millis(500);
/// Pipelines that a message names.
const NAMED_MAX: usize = 5;
/// Problems that a message names.
const PROBLEMS_MAX: usize = 10;
/// Who deletes what is in a namespace that is being deleted.
const NAMESPACE_DELETERS: [&str; 2] =
    ["system:serviceaccount:kube-system:namespace-controller", "system:kube-controller-manager"];

/// Decides which classes and pipelines are stored.
#[derive(Clone, Debug)]
pub struct Validator {
    /// The namespaces that are served; all where it is empty.
    pub served: Vec<String>,
    /// What is in force; none before it was read once.
    pub in_force: watch::Receiver<Option<Arc<Desired>>>,
}

/// What becomes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It is stored, and people are told this.
    Allowed(Vec<String>),
    /// It is not.
    Refused(Refusal),
}

impl Validator {
    /// What becomes of an object; none before what is in force was read once.
    pub(super) async fn judge(&self, change: Change<'_>) -> Option<Judgement> {
        let mut in_force = self.in_force.clone();
        if let Change::Stored { namespace, .. } = change
            && self.is_foreign(namespace)
        {
            let served = self.served.join(", ");
            return Some(Judgement::Allowed(vec![format!(
                "the coordinator serves {served} and not namespace {namespace}: nobody looks at \
                 this object"
            )]));
        }
        let deadline = Instant::now() + SEEN_WITHIN;
        loop {
            let seen = in_force.borrow_and_update().clone()?;
            let judgement = judge_by(&seen, change);
            if judgement == Judgement::plain() {
                return Some(judgement);
            }
            match timeout_at(deadline, in_force.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Some(judgement),
            }
        }
    }

    fn is_foreign(&self, namespace: &str) -> bool {
        !self.served.is_empty() && !self.served.iter().any(|served| served == namespace)
    }
}

impl Judgement {
    /// There is nothing to say.
    fn plain() -> Self {
        Self::Allowed(Vec::new())
    }

    fn refused(code: u16, reason: &'static str, message: String) -> Self {
        Self::Refused(Refusal { code, reason, message })
    }

    /// How it is counted.
    pub(super) fn kind(&self) -> Validation {
        match self {
            Self::Allowed(warnings) if warnings.is_empty() => Validation::Allowed,
            Self::Allowed(_) => Validation::Warned,
            Self::Refused(_) => Validation::Refused,
        }
    }
}

impl From<Judgement> for Answer {
    fn from(judgement: Judgement) -> Self {
        match judgement {
            Judgement::Allowed(warnings) => Self { warnings, ..Self::default() },
            Judgement::Refused(refusal) => Self { refusal: Some(refusal), ..Self::default() },
        }
    }
}

fn judge_by(in_force: &Desired, change: Change<'_>) -> Judgement {
    match change {
        Change::Stored { kind, namespace, object, old } => {
            // What is about to go, or stays as it is, was looked at when it came.
            let goes = object["metadata"]["deletionTimestamp"].is_string();
            if goes || (!old.is_null() && object["spec"] == old["spec"]) {
                return Judgement::plain();
            }
            stored(in_force, kind, namespace, object)
        }
        Change::ClassDeleted { by, .. } if NAMESPACE_DELETERS.contains(&by) => Judgement::plain(),
        Change::ClassDeleted { namespace, name, .. } => deleted(in_force, namespace, name),
        Change::Other => Judgement::plain(),
    }
}

fn stored(in_force: &Desired, kind: &'static str, namespace: &str, object: &Value) -> Judgement {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let Some(id) = Collection::id(kind, namespace, name) else {
        let message = format!("{kind} {name:?}: metadata.name is no DNS label: choose another");
        return Judgement::refused(422, "Invalid", message);
    };
    let opinion = opinion(in_force, &id, object["spec"].clone());
    if opinion.problems.is_empty() {
        return Judgement::Allowed(opinion.warnings);
    }
    let shown = opinion.problems.iter().take(PROBLEMS_MAX);
    let mut told: Vec<String> =
        shown.map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
    if let more @ 1.. = opinion.problems.len().saturating_sub(PROBLEMS_MAX) {
        told.push(format!("{more} more problems"));
    }
    let message = format!("{kind} {name}: {}", told.join("; "));
    Judgement::refused(422, "Invalid", message)
}

fn deleted(in_force: &Desired, namespace: &str, name: &str) -> Judgement {
    let Ok(class) = ClusterName::in_namespace(namespace, name) else { return Judgement::plain() };
    let users: Vec<&str> = users(in_force, &class).map(|pipeline| pipeline.parts().1).collect();
    if users.is_empty() {
        return Judgement::plain();
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
    Judgement::refused(403, "Forbidden", message)
}

#[cfg(test)]
#[path = "validator_tests.rs"]
mod tests;
