//! Judges by a node whether the containers of a pod that was removed from it by force have ended.
//! The pod's object is gone, so its kubelet cannot report their end. A kubelet that reaches the API
//! server sees the removal, and kills the containers when their grace period is over.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;

/// How long an agent may run beside a later pod of its name, after its grace period. A user who
/// deletes a StatefulSet's pod by force promises that it has stopped. A running node notices the
/// deletion within seconds, and then gives the containers the pod's full grace period.
pub(super) const REPLACED_WITHIN: Duration = Duration::from_secs(30);
/// How often the API server is asked again about a tombstone's pod or node.
pub(super) const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// For how long a node may be Ready without a word of its kubelet, with a margin: the node
/// controller waits for 50 s (`--node-monitor-grace-period`).
const READY_SILENT: Duration = Duration::from_secs(60);
/// A taint that an administrator sets on a node that is shut down: Kubernetes itself then detaches
/// the volumes of its pods.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What a node says of the end of a pod that was removed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeAnswer {
    /// No container of it runs any more.
    Ended,
    /// Its containers may run.
    MayRun,
    /// This coordinator may not read nodes.
    NotReadable,
}

/// A pod that was removed by force.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemovedPod {
    /// For how long it has been gone.
    pub(super) since: Duration,
    /// Its grace period.
    pub(super) grace: Duration,
}

impl RemovedPod {
    /// The end of the pod by its node as it is at `now`; `None` if there is no such node.
    pub(super) fn judged_by(self, node: Option<&Node>, now: Timestamp) -> NodeAnswer {
        let Some(node) = node else { return NodeAnswer::Ended };
        let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if taints.any(|taint| taint.key == OUT_OF_SERVICE) {
            return NodeAnswer::Ended;
        }
        // A kubelet that was away sees the removal when it is back.
        let seen = self.since.min(ready_for(node, now).unwrap_or_default());
        if seen >= self.grace + REPLACED_WITHIN + READY_SILENT {
            NodeAnswer::Ended
        } else {
            NodeAnswer::MayRun
        }
    }
}

/// For how long the node has been Ready; `None` if it is not.
fn ready_for(node: &Node, now: Timestamp) -> Option<Duration> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    let since = ready.last_transition_time.as_ref()?.0;
    Some(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn judge(since_secs: u64, node: Value) -> NodeAnswer {
        let node: Option<Node> = serde_json::from_value(node).expect("a node");
        let pod =
            RemovedPod { since: Duration::from_secs(since_secs), grace: Duration::from_secs(30) };
        pod.judged_by(node.as_ref(), NOW.parse().expect("a moment"))
    }

    fn node(ready: &str, since: &str) -> Value {
        let ready = json!({ "type": "Ready", "status": ready, "lastTransitionTime": since });
        json!({ "metadata": { "name": "n" }, "status": { "conditions": [ready] } })
    }

    #[test]
    fn a_ready_node_has_ended_the_pod_after_its_grace_period_and_a_margin() {
        let ready = || node("True", "2026-01-01T00:00:00Z");
        assert_eq!(judge(119, ready()), NodeAnswer::MayRun);
        assert_eq!(judge(120, ready()), NodeAnswer::Ended);
    }

    #[test]
    fn a_node_that_was_away_gets_the_same_time_after_its_return() {
        assert_eq!(judge(3_000, node("True", "2026-01-01T00:58:01Z")), NodeAnswer::MayRun);
        assert_eq!(judge(3_000, node("True", "2026-01-01T00:58:00Z")), NodeAnswer::Ended);
        // Its clock is ahead of this one.
        assert_eq!(judge(3_000, node("True", "2026-01-01T01:00:01Z")), NodeAnswer::MayRun);
    }

    #[test]
    fn a_node_that_is_not_ready_proves_nothing() {
        for ready in ["False", "Unknown"] {
            assert_eq!(judge(100_000, node(ready, "2026-01-01T00:00:00Z")), NodeAnswer::MayRun);
        }
        assert_eq!(judge(100_000, json!({ "metadata": { "name": "n" } })), NodeAnswer::MayRun);
    }

    #[test]
    fn a_node_that_is_gone_or_out_of_service_runs_nothing() {
        assert_eq!(judge(0, Value::Null), NodeAnswer::Ended);
        let mut shut_down = node("Unknown", "2026-01-01T00:00:00Z");
        let taint = json!({ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" });
        shut_down["spec"] = json!({ "taints": [taint] });
        assert_eq!(judge(0, shut_down), NodeAnswer::Ended);
    }
}
