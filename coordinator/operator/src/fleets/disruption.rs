//! The budget of disruptions that keeps a fleet's busy pods from evictions: none of them may be
//! evicted, and idle ones, which it does not select, may.

use leasehold_kube_api::names::{
    BUSY_LABEL, CLUSTER_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL, TRUE, disruption_budget,
};
use serde_json::{Value, json};

use super::fleet::Fleet;

/// The PodDisruptionBudget of a fleet, as the body of a server-side apply.
pub(super) fn body(fleet: &Fleet) -> Value {
    let name = fleet.name();
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": disruption_budget(name),
            "namespace": fleet.namespace(),
            "labels": { CLUSTER_LABEL: name, MANAGED_BY_LABEL: FIELD_MANAGER },
            "ownerReferences": [fleet.owner()],
        },
        "spec": {
            "maxUnavailable": 0,
            "selector": { "matchLabels": { CLUSTER_LABEL: name, BUSY_LABEL: TRUE } },
        },
    })
}
