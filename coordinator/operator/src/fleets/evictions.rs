//! Protection of busy pods from evictions: the label, by which the webhook knows them (see
//! `platform_kube::webhook`). The label is set before the first grant (see `platform_kube::pods`),
//! stays while jobs run, and is removed after a while without jobs. Streams alone do not keep it:
//! they move to other workers.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use leasehold_kube_api::names::{CLUSTER_LABEL, disruption_budget};
use leasehold_manifest::manifest::API_VERSION;
use leasehold_types::Moment;

use super::action::Action;
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
    pub(super) fn label_change(&mut self, worker: &WorkerPod, now: Moment) -> Option<bool> {
        let uid = &worker.pod.uid;
        let is_busy = worker.is_busy() && !worker.is_released;
        if !worker.pod.is_active() || is_busy || !worker.pod.busy {
            self.0.remove(uid);
            return (worker.pod.is_active() && is_busy && !worker.pod.busy).then_some(true);
        }
        let since = *self.0.entry(uid.clone()).or_insert(now);
        // A drained worker gets no new jobs, so its label is removed at once.
        (worker.is_drained() || now.since(since) >= IDLE_AFTER).then_some(false)
    }

    /// When a labelled pod without jobs counts as idle.
    pub(super) fn due(&self, uid: &str) -> Option<Moment> {
        self.0.get(uid).map(|since| *since + IDLE_AFTER)
    }

    /// Forgets a pod that no longer exists.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

/// The facts of a PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BudgetFacts {
    uid: String,
    /// The fleet in its labels.
    created_for: Option<String>,
    /// The kind and the API version of its controller.
    controller: Option<(String, String)>,
}

impl BudgetFacts {
    /// The facts of a budget.
    pub(super) fn new(budget: &PodDisruptionBudget) -> Option<Self> {
        let controller =
            budget.owner_references().iter().find(|owner| owner.controller == Some(true));
        Some(Self {
            uid: budget.uid()?,
            created_for: budget.labels().get(CLUSTER_LABEL).cloned(),
            controller: controller.map(|owner| (owner.kind.clone(), owner.api_version.clone())),
        })
    }
}

/// The action that deletes the budget by which earlier versions protected busy pods: the API server
/// evicts no pod that is under another budget as well. `budget` has the name and the label of one
/// of ours; it is left alone if the fleet is not its controller.
pub(super) fn delete_earlier_budget(fleet: &Fleet, budget: &BudgetFacts) -> Option<Action> {
    let name = fleet.name();
    let controller = (fleet.kind().to_owned(), API_VERSION.to_owned());
    let is_ours =
        budget.created_for.as_deref() == Some(name) && budget.controller == Some(controller);
    let uid = budget.uid.clone();
    is_ours.then(|| Action::delete_budget(fleet.namespace(), disruption_budget(name), uid))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleets::fixtures;

    #[test]
    fn deletes_only_a_budget_that_the_fleet_controls() {
        let fleet = fixtures::cluster(json!({ "maxJobs": 1, "maxJobsPerWorker": 1 }));
        let owner = |kind: &str| {
            json!([{
                "apiVersion": API_VERSION, "kind": kind, "name": "ci", "uid": "u",
                "controller": true,
            }])
        };
        for (cluster, owners, deleted) in [
            ("ci", owner("WorkerCluster"), true),
            ("ci", owner("WorkerClass"), false),
            ("ci", json!([]), false),
            ("other", owner("WorkerCluster"), false),
        ] {
            let budget = json!({ "metadata": {
                "name": "ci-busy", "uid": "b", "labels": { CLUSTER_LABEL: cluster },
                "ownerReferences": owners,
            } });
            let budget = serde_json::from_value(budget).unwrap();
            let facts = BudgetFacts::new(&budget).unwrap();
            let action = delete_earlier_budget(&fleet, &facts);
            let wanted = Action::delete_budget("ns", "ci-busy".into(), "b".into());
            assert_eq!(action, deleted.then_some(wanted), "{budget:?}");
        }
    }
}
