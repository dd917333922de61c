//! The budget of disruptions that keeps a cluster's busy pods from evictions: none of them may be
//! evicted, and idle ones, which it does not select, may.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::names::{
    BUSY_LABEL, CLUSTER_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL, TRUE, disruption_budget,
};
use super::super::resources::WorkerCluster;
use super::template::owner;

/// The PodDisruptionBudget of a cluster, as the body of a server-side apply.
pub(super) fn body(cluster: &WorkerCluster) -> Value {
    let name = cluster.name_any();
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": disruption_budget(&name),
            "namespace": cluster.namespace(),
            "labels": { CLUSTER_LABEL: name, MANAGED_BY_LABEL: FIELD_MANAGER },
            "ownerReferences": [owner(cluster)],
        },
        "spec": {
            "maxUnavailable": 0,
            "selector": { "matchLabels": { CLUSTER_LABEL: name, BUSY_LABEL: TRUE } },
        },
    })
}
