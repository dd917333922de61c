//! Which pods bear the label of busy ones. It is there before the first grant (see
//! [`super::super::pods`]), stays while jobs run, and goes when none has run for a while: streams
//! alone are handed over, and keep nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Moment;

use leasehold_kube_api::names::{
    BUSY_LABEL, CLUSTER_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL, TRUE, disruption_budget,
};
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::worker_pod::WorkerPod;

/// A worker that has run no job for so long is idle: jobs that follow each other closely do not
/// have the label written again and again.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// Since when pods that bear the label have been without jobs, by UID.
#[derive(Debug, Default)]
pub(super) struct IdleTracker(BTreeMap<String, Moment>);

impl IdleTracker {
    /// Whether the pod's label is to be written, and how.
    pub(super) fn label_change(&mut self, it: &WorkerPod, now: Moment) -> Option<bool> {
        let uid = &it.pod.uid;
        if !it.pod.is_active() || it.is_busy() || !it.pod.busy {
            self.0.remove(uid);
            return (it.pod.is_active() && it.is_busy() && !it.pod.busy).then_some(true);
        }
        let since = *self.0.entry(uid.clone()).or_insert(now);
        // What has drained gets nothing any more: nobody has to wait for it.
        (it.is_drained() || now.since(since) >= IDLE_AFTER).then_some(false)
    }

    /// Forgets pods that are there no more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_there(uid));
    }
}

/// The PodDisruptionBudget of a fleet, as the body of a server-side apply.
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
