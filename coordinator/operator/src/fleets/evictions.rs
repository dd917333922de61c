//! Protection of busy pods from evictions: the label, and the PodDisruptionBudget that selects it.
//! The label is set before the first grant (see `platform_kube::pods`), stays while jobs run, and
//! is removed after a while without jobs. Streams alone do not keep it: they move to other workers.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Moment;

use leasehold_kube_api::names::{
    BUSY_LABEL, CLUSTER_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL, TRUE, disruption_budget,
};
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::worker_pod::WorkerPod;

/// A worker is idle after this time without jobs, so that jobs in quick succession do not cause a
/// write each.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// Since when each labelled pod has had no jobs, by UID.
#[derive(Debug, Default)]
pub(super) struct IdleTracker(BTreeMap<String, Moment>);

impl IdleTracker {
    /// The label to write, if it has to change.
    pub(super) fn label_change(&mut self, it: &WorkerPod, now: Moment) -> Option<bool> {
        let uid = &it.pod.uid;
        if !it.pod.is_active() || it.is_busy() || !it.pod.busy {
            self.0.remove(uid);
            return (it.pod.is_active() && it.is_busy() && !it.pod.busy).then_some(true);
        }
        let since = *self.0.entry(uid.clone()).or_insert(now);
        // A drained worker gets no new jobs, so its label is removed at once.
        (it.is_drained() || now.since(since) >= IDLE_AFTER).then_some(false)
    }

    /// Forgets pods that no longer exist.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_there(uid));
    }
}

/// The PodDisruptionBudget of a fleet, as the body of a server-side apply: no busy pod may be
/// evicted; idle ones, which it does not select, may.
pub(super) fn disruption_budget_body(fleet: &Fleet) -> Value {
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
