//! What people are told of the operator's doings, as events of the objects that they concern.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use leasehold_types::ClusterName;

use super::super::pods::PodFacts;
use super::super::resources::WorkerCluster;
use super::action::{Action, What};
use super::drains::Stage;
use super::events::{Happening, Reason, Recorder};
use super::memory::Memory;
use crate::spec::manifest::API_VERSION;

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
    pub(super) fn stage(&self, cluster: &WorkerCluster, pod: &PodFacts, stage: Stage) {
        let name = &pod.pod.name;
        match stage {
            Stage::Completed => {
                let note = format!("worker {name} has drained and holds nothing");
                self.of_both(cluster, pod, Reason::DrainCompleted, &note);
            }
            Stage::Overdue => {
                let deadline = cluster.spec.drain.deadline.0.as_secs();
                let note =
                    format!("worker {name} drains for longer than {deadline} s; nothing is killed");
                self.of_both(cluster, pod, Reason::DrainDeadlineExceeded, &note);
            }
        }
    }

    /// What blocks a cluster's rollout or scale-in, once.
    pub(super) fn blocked(
        &self,
        memory: &mut Memory,
        name: &ClusterName,
        cluster: &WorkerCluster,
        blocked: Option<String>,
    ) {
        let Some(why) = blocked else {
            memory.blocked.remove(name);
            return;
        };
        if memory.blocked.get(name) != Some(&why) {
            self.of_cluster(cluster, None, Reason::RolloutBlocked, &why);
            memory.blocked.insert(name.clone(), why);
        }
    }

    /// Why a cluster's workload is refused.
    pub(super) fn refused(&self, cluster: &WorkerCluster, why: &str) {
        self.of_cluster(cluster, None, Reason::WorkloadRejected, why);
    }

    /// What was done.
    pub(super) fn done(&self, cluster: &WorkerCluster, action: &Action) {
        if let Some((reason, note)) = &action.news {
            self.of_cluster(cluster, None, *reason, note);
        }
        match &action.what {
            What::Mark(pod, mark) => {
                let note = format!("worker {} drains: {}", pod.pod.name, mark.why());
                self.of_both(cluster, pod, Reason::DrainStarted, &note);
            }
            What::Replace(pod) => {
                let note = format!("pod {} has drained and is replaced", pod.pod.name);
                self.of_both(cluster, pod, Reason::PodReplaced, &note);
            }
            What::Apply(_) if action.is_workload() => {
                tracing::info!(workload = %action.target, "workload applied");
            }
            What::Apply(_) | What::Began(..) | What::Cost(..) | What::Busy(..) => {}
        }
    }

    /// That a scale-in begins.
    pub(super) fn scales_in(&self, cluster: &WorkerCluster, note: &str) {
        self.of_cluster(cluster, None, Reason::ScaleInStarted, note);
    }

    fn of_both(&self, cluster: &WorkerCluster, pod: &PodFacts, reason: Reason, note: &str) {
        let regarding = pod_reference(pod);
        let related = Some(cluster_reference(cluster));
        let note_owned = note.to_owned();
        self.events.record(Happening { regarding, related, reason, note: note_owned });
        self.of_cluster(cluster, Some(pod_reference(pod)), reason, note);
    }

    fn of_cluster(
        &self,
        cluster: &WorkerCluster,
        related: Option<ObjectReference>,
        reason: Reason,
        note: &str,
    ) {
        let regarding = cluster_reference(cluster);
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

/// A WorkerCluster, as events name it.
pub(super) fn cluster_reference(cluster: &WorkerCluster) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.into()),
        kind: Some(WorkerCluster::KIND.into()),
        namespace: cluster.namespace(),
        name: Some(cluster.name_any()),
        uid: cluster.uid(),
        ..ObjectReference::default()
    }
}
