//! Workers on cordoned nodes: they are drained, so that `kubectl drain` gets through as soon as
//! their jobs have ended.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;

use super::standing::Standing;

/// Whether nothing new may be placed on a node. Cordoned ones alone are kept in mind.
pub(super) fn cordoned(node: &Node) -> Option<()> {
    node.spec.as_ref()?.unschedulable.unwrap_or(false).then_some(())
}

/// Whether a pod is to be drained because of its node. A DaemonSet's is not: the next one would
/// come to the same node.
pub(super) fn has_to_leave(it: &Standing, cordoned: &BTreeSet<String>) -> bool {
    let on_cordoned = it.pod.node.as_ref().is_some_and(|node| cordoned.contains(node));
    let is_daemon = it.pod.owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet");
    it.mark.is_none() && it.pod.is_active() && on_cordoned && !is_daemon
}
