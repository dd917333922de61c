//! Pods that are to be replaced although neither scale nor node asks for it: somebody has ordered
//! their drain. An agent that has drained leaves; in a pod its container would be started again,
//! and what was drained would work on.

use super::standing::Standing;

/// Whether a pod is to be marked because its worker's drain was ordered through the admin API.
pub(super) fn is_asked_for(it: &Standing) -> bool {
    // Drains of marked pods are ordered by the operator itself.
    let ordered = it.view.as_ref().is_some_and(|view| view.drain_ordered);
    ordered && it.mark.is_none() && it.pod.is_active() && it.is_replaced()
}
