//! What of a file's manifest has no effect although its author may count on it.

use super::{Origin, ValidSpec};
use crate::problem::Problem;
use crate::tree::{Node, Value};

/// The fields that only a coordinator on Kubernetes uses, each with the value that asks for
/// nothing.
const KUBERNETES_ONLY: [(&str, Option<&str>); 10] = [
    ("spec.agent", None),
    ("spec.drain.afterDeadline", Some("Wait")),
    ("spec.onCordon", Some("Ignore")),
    ("spec.port", None),
    ("spec.refresh", Some("None")),
    ("spec.replicas", None),
    ("spec.scaling.stabilization", None),
    ("spec.template", None),
    ("spec.workload", None),
    ("spec.workloadRef", None),
];

/// The fields of a document that have no effect in a file. `body` is what it defines, if it is
/// valid: other documents have unknown fields.
pub(super) fn ignored(
    file: &str,
    home: Origin<'_>,
    node: &Node,
    body: Option<&ValidSpec>,
) -> Vec<Problem> {
    if home != Origin::File {
        return Vec::new();
    }
    let mut notices: Vec<Problem> = namespace(file, node).into_iter().collect();
    if body.is_some() {
        let fields = KUBERNETES_ONLY.into_iter();
        notices.extend(fields.filter_map(|(path, idle)| kubernetes_only(file, node, path, idle)));
        notices.extend(floor(file, node));
    }
    notices
}

fn namespace(file: &str, node: &Node) -> Option<Problem> {
    let namespace = at_path(node, "metadata.namespace")?;
    let name = namespace.text()?;
    let message = format!(
        "is {name:?}, and is ignored: an object of a file is known by its kind and metadata.name \
         alone"
    );
    Some(Problem::new(file, namespace.at, "metadata.namespace", message))
}

fn kubernetes_only(file: &str, node: &Node, path: &str, idle: Option<&str>) -> Option<Problem> {
    let given = at_path(node, path).filter(|given| !matches!(given.value, Value::Null))?;
    if idle.is_some() && given.text() == idle {
        return None;
    }
    let message = "has no effect here: only a coordinator on Kubernetes uses it";
    Some(Problem::new(file, given.at, path, message))
}

/// The floor of a cluster whose workers run no jobs.
fn floor(file: &str, node: &Node) -> Option<Problem> {
    let floor = at_path(node, "spec.lease.floor")?;
    let is_zero = matches!(floor.value, Value::Unsigned(0));
    if is_zero || at_path(node, "spec.maxJobs").is_some() {
        return None;
    }
    let message = "has no effect without maxJobs, since no job runs: remove it, or add maxJobs and \
                   maxJobsPerWorker";
    Some(Problem::new(file, floor.at, "spec.lease.floor", message))
}

/// The value at a path, as in `spec.drain.deadline`.
fn at_path<'n>(node: &'n Node, path: &str) -> Option<&'n Node> {
    path.split('.').try_fold(node, |node, key| node.get(key))
}
