//! The QoS class of a pod: a kubelet computes it from all containers, so the agent's counts too.

use leasehold_types::Quantity;
use serde_json::Value;

use crate::draft::{keys, list_at};
use crate::refusal::Refusal;

/// Whether the pod is of the class `Guaranteed`: each container may use just as much CPU and
/// memory as it asks for.
pub(crate) fn is_guaranteed(pod: &Value) -> Result<bool, Refusal> {
    let first = list_at(pod, &keys(&["spec", "initContainers"]))?;
    let others = list_at(pod, &keys(&["spec", "containers"]))?;
    Ok(!others.is_empty() && first.iter().chain(others).all(is_bounded))
}

/// Whether requests and limits of a container are equal. A limit alone is also its request.
fn is_bounded(container: &Value) -> bool {
    ["cpu", "memory"].iter().all(|kind| {
        let amount = |of: &str| match container["resources"][of].get(kind) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => text.parse::<Quantity>().map(Some),
            Some(other) => other.to_string().parse().map(Some),
        };
        match (amount("requests"), amount("limits")) {
            (Ok(None), Ok(Some(limit))) => !limit.is_zero(),
            (Ok(Some(request)), Ok(Some(limit))) => {
                !limit.is_zero() && !request.is_above(&limit) && !limit.is_above(&request)
            }
            _ => false,
        }
    })
}
