//! Who else sets the replicas of a workload, as its `managedFields` say. Two that set them would
//! undo each other's writes for ever, so the coordinator leaves them to a manager that is certain
//! to set them again: one that has applied them (server-side apply), or an autoscaler, which uses
//! the subresource `scale`. Of a manager that has updated them, perhaps only once, it takes them
//! back, unless that manager undoes it repeatedly.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use leasehold_kube_api::names::FIELD_MANAGER;
use leasehold_types::{ClusterName, Moment};

/// `kubectl scale` uses the subresource, too, but a person does not set replicas again and again.
const KUBECTL: &str = "kubectl";
/// The replicas are left to a manager that has undone this many writes.
const UNDONE_MAX: u32 = 2;
/// Writes count as undone repeatedly within this time. After it, the next write is tried.
const WINDOW: Duration = Duration::from_secs(600);

/// Another manager of the replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicasManager {
    /// Its name as a field manager.
    pub(super) name: String,
    /// Whether it is certain to set them again.
    is_lasting: bool,
}

/// Writes of replicas that others have undone, by fleet.
#[derive(Debug, Default)]
pub(super) struct UndoneWrites(BTreeMap<ClusterName, Undone>);

#[derive(Clone, Copy, Debug)]
struct Undone {
    times: u32,
    /// The workload's generation when it was last undone, and when that was seen.
    generation: i64,
    at: Moment,
}

/// The replicas of a workload, and its generation with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplicasAt {
    pub(super) replicas: u64,
    pub(super) generation: i64,
}

impl ReplicasManager {
    /// The one that a workload's metadata names, if there is one besides the coordinator.
    pub(super) fn of(metadata: &ObjectMeta) -> Option<Self> {
        let entries = metadata.managed_fields.iter().flatten().filter(|entry| owns_replicas(entry));
        let managers = entries.filter_map(|entry| {
            let name = entry.manager.clone().unwrap_or_default();
            let is_scale = entry.subresource.as_deref() == Some("scale") && name != KUBECTL;
            let is_applied = entry.operation.as_deref() == Some("Apply");
            (name != FIELD_MANAGER).then_some(Self { name, is_lasting: is_scale || is_applied })
        });
        managers.max_by_key(|manager| manager.is_lasting)
    }
}

impl UndoneWrites {
    /// The manager that the replicas of a workload are left to now: `manager`, which has them, if
    /// it is certain to set them again or keeps undoing what this leader has written.
    pub(super) fn yields_to<'a>(
        &mut self,
        fleet: &ClusterName,
        manager: Option<&'a ReplicasManager>,
        seen: ReplicasAt,
        written: Option<ReplicasAt>,
        now: Moment,
    ) -> Option<&'a ReplicasManager> {
        // Each write of the coordinator takes the replicas from the other manager for a moment.
        let manager = manager?;
        let undone = self.0.get(fleet).copied().filter(|undone| now.since(undone.at) < WINDOW);
        let undone = match written {
            Some(written) if is_new(undone, seen, written) => {
                let times = undone.map_or(0, |undone| undone.times).saturating_add(1);
                let undone = Undone { times, generation: seen.generation, at: now };
                self.0.insert(fleet.clone(), undone);
                Some(undone)
            }
            Some(_) | None => undone,
        };
        let is_repeated = undone.is_some_and(|undone| undone.times >= UNDONE_MAX);
        (manager.is_lasting || is_repeated).then_some(manager)
    }

    /// When the replicas of a fleet's workload are no longer left to a manager that has undone
    /// writes.
    pub(super) fn due(&self, fleet: &ClusterName) -> Option<Moment> {
        let undone = self.0.get(fleet).filter(|undone| undone.times >= UNDONE_MAX)?;
        Some(undone.at + WINDOW)
    }

    /// Forgets a fleet that no longer exists.
    pub(super) fn forget(&mut self, fleet: &ClusterName) {
        self.0.remove(fleet);
    }
}

/// Whether somebody has changed the replicas since they were written, and since that was last seen.
fn is_new(last: Option<Undone>, seen: ReplicasAt, written: ReplicasAt) -> bool {
    let counted =
        last.map_or(written.generation, |undone| undone.generation.max(written.generation));
    seen.replicas != written.replicas && seen.generation > counted
}

fn owns_replicas(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref();
    fields.is_some_and(|fields| !fields.0["f:spec"]["f:replicas"].is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fleets::fixtures;

    fn manager(entries: &[(&str, &str, Option<&str>)]) -> Option<(String, bool)> {
        let entry = |(manager, operation, subresource): &(&str, &str, Option<&str>)| {
            json!({
                "manager": manager, "operation": operation, "subresource": subresource,
                "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:replicas": {} } },
            })
        };
        let entries: Vec<Value> = entries.iter().map(entry).collect();
        let metadata = json!({ "managedFields": entries });
        let found = ReplicasManager::of(&serde_json::from_value(metadata).expect("metadata"))?;
        Some((found.name, found.is_lasting))
    }

    #[test]
    fn an_autoscaler_or_an_applier_is_certain_to_set_replicas_again() {
        let scale = Some("scale");
        let autoscaler = ("kube-controller-manager", "Update", scale);
        let named = |name: &str, is_lasting| Some((name.to_owned(), is_lasting));
        assert_eq!(manager(&[]), None);
        assert_eq!(manager(&[("leasehold", "Apply", None)]), None);
        assert_eq!(manager(&[autoscaler]), named("kube-controller-manager", true));
        assert_eq!(manager(&[("flux", "Apply", None)]), named("flux", true));
        assert_eq!(manager(&[("kubectl", "Update", scale)]), named("kubectl", false));
        let made = ("kubectl-client-side-apply", "Update", None);
        assert_eq!(manager(&[made]), named("kubectl-client-side-apply", false));
        assert_eq!(manager(&[made, autoscaler]), named("kube-controller-manager", true));
    }

    #[test]
    fn yields_to_a_manager_that_undoes_two_writes_and_tries_again_later() {
        let (name, mut undone) = (fixtures::name(), UndoneWrites::default());
        let mut turn = |replicas, generation, written: Option<(u64, i64)>, second: u64| {
            let manager = ReplicasManager { name: "argocd-controller".into(), is_lasting: false };
            let manager = (replicas == 1).then_some(&manager);
            let seen = ReplicasAt { replicas, generation };
            let written = written.map(|(replicas, generation)| ReplicasAt { replicas, generation });
            let now = Moment(second * 1_000_000_000);
            undone.yields_to(&name, manager, seen, written, now).is_some()
        };
        // It made the workload, and the coordinator writes for the first time.
        assert!(!turn(1, 1, None, 1));
        assert!(!turn(3, 2, Some((3, 2)), 2));
        assert!(!turn(1, 3, Some((3, 2)), 3));
        // Seen again before the next write, and after it.
        assert!(!turn(1, 3, Some((3, 2)), 4));
        assert!(!turn(3, 4, Some((3, 4)), 4));
        assert!(turn(1, 5, Some((3, 4)), 5));
        assert!(turn(1, 5, Some((3, 4)), 600));
        assert!(!turn(1, 5, Some((3, 5)), 700));
        let second = |second: u64| Moment(second * 1_000_000_000);
        assert_eq!(undone.due(&name), Some(second(605)), "it was last undone in the fifth second");
    }
}
