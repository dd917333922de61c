//! What people are told of the operator's doings, as events of the objects that they concern.

use k8s_openapi::api::core::v1::ObjectReference;
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::ClusterName;

use super::action::{Action, What};
use super::drains::Stage;
use super::fleet::Fleet;
use super::memory::Memory;
use crate::events::{Happening, Reason, Recorder};

/// Tells people.
#[derive(Debug)]
pub(super) struct Tell {
    events: Recorder,
}

impl Tell {
    pub(super) fn new(events: Recorder) -> Self {
        Self { events }
    }

    /// How far a drain has come.
    pub(super) fn stage(&self, fleet: &Fleet, pod: &PodFacts, stage: Stage) {
        let name = &pod.pod.name;
        match stage {
            Stage::Completed => {
                let note = format!("worker {name} has drained and holds nothing");
                self.of_both(fleet, pod, Reason::DrainCompleted, &note);
            }
            Stage::Overdue => {
                let deadline = fleet.drain_deadline().as_secs();
                let note =
                    format!("worker {name} drains for longer than {deadline} s; nothing is killed");
                self.of_both(fleet, pod, Reason::DrainDeadlineExceeded, &note);
            }
        }
    }

    /// What blocks a fleet's rollout or scale-in, once.
    pub(super) fn blocked(
        &self,
        memory: &mut Memory,
        name: &ClusterName,
        fleet: &Fleet,
        blocked: Option<String>,
    ) {
        let Some(why) = blocked else {
            memory.blocked.remove(name);
            return;
        };
        if memory.blocked.get(name) != Some(&why) {
            self.of_fleet(fleet, None, Reason::RolloutBlocked, &why);
            memory.blocked.insert(name.clone(), why);
        }
    }

    /// Why a fleet's workload is refused.
    pub(super) fn refused(&self, fleet: &Fleet, why: &str) {
        self.of_fleet(fleet, None, Reason::WorkloadRejected, why);
    }

    /// What was done.
    pub(super) fn done(&self, fleet: &Fleet, action: &Action) {
        if let Some((reason, note)) = &action.news {
            self.of_fleet(fleet, None, *reason, note);
        }
        match &action.what {
            What::Mark(pod, mark) => {
                let note = format!("worker {} drains: {}", pod.pod.name, mark.why());
                self.of_both(fleet, pod, Reason::DrainStarted, &note);
            }
            What::Replace(pod) => {
                let note = format!("pod {} has drained and is replaced", pod.pod.name);
                self.of_both(fleet, pod, Reason::PodReplaced, &note);
            }
            What::Apply(_) if action.is_workload() => {
                tracing::info!(workload = %action.target, "workload applied");
            }
            What::Apply(_) | What::Began(..) | What::Cost(..) | What::Busy(..) => {}
        }
    }

    /// That a scale-in begins.
    pub(super) fn scales_in(&self, fleet: &Fleet, note: &str) {
        self.of_fleet(fleet, None, Reason::ScaleInStarted, note);
    }

    fn of_both(&self, fleet: &Fleet, pod: &PodFacts, reason: Reason, note: &str) {
        let regarding = pod_reference(pod);
        let related = Some(fleet.reference());
        let note_owned = note.to_owned();
        self.events.record(Happening { regarding, related, reason, note: note_owned });
        self.of_fleet(fleet, Some(pod_reference(pod)), reason, note);
    }

    fn of_fleet(
        &self,
        fleet: &Fleet,
        related: Option<ObjectReference>,
        reason: Reason,
        note: &str,
    ) {
        let regarding = fleet.reference();
        self.events.record(Happening { regarding, related, reason, note: note.to_owned() });
    }
}

/// A pod, as events name it.
pub(super) fn pod_reference(pod: &PodFacts) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.pod.namespace.clone()),
        name: Some(pod.pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}
