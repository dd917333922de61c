//! Records what plans and calls have come to.

use leasehold_driver::clock;
use leasehold_platform_kube::pods::{PodFacts, PodName};
use leasehold_types::ClusterName;

use super::super::action::{Action, ActionKind, ActionOutcome, Failure};
use super::super::calls::Call;
use super::super::fleet::Fleet;
use super::super::plan::FleetPlan;
use super::super::worker_pod::DrainReason;
use super::FleetReconciler;
use crate::workqueue::REPEATED;

impl FleetReconciler {
    /// Records the events of a plan.
    pub(super) fn record_plan(&mut self, name: &ClusterName, fleet: &Fleet, plan: &FleetPlan) {
        for (worker_pod, progress) in &plan.drain_progress {
            self.events.drain_progress(fleet, &worker_pod.pod, *progress);
        }
        if let Some(note) = &plan.scale_in_started {
            self.events.scale_in_started(fleet, note);
        }
        self.events.rollout_blocked(&mut self.state, name, fleet, plan.blocked.clone());
        if let Some(why) = &plan.refused {
            self.report_rejection(name, fleet, why.clone());
        }
    }

    /// A call is done: after the last one of its fleet, the fleet is planned again.
    pub(super) fn finish_call(&mut self, call: Call, outcome: ActionOutcome) {
        let Call { name, fleet, action } = call;
        self.record_outcome(&name, fleet.as_ref(), action, outcome);
        if self.calls.are_done(&name) {
            self.queue.done(&name);
            self.enqueue([&name]);
        }
    }

    /// Records the outcome of an action and its event. `fleet` is `None` for a pod whose fleet was
    /// deleted.
    fn record_outcome(
        &mut self,
        name: &ClusterName,
        fleet: Option<&Fleet>,
        action: Action,
        outcome: ActionOutcome,
    ) {
        let now = clock::now();
        let is_workload = action.is_workload();
        match outcome {
            ActionOutcome::Outdated => self.state.recent.note(action.target, now),
            ActionOutcome::Failed(why, failure) => {
                if self.state.failures.failed(action.target.clone(), why.clone(), now) {
                    tracing::warn!(object = %action.target, why, "cannot write the object: \
                                                                  retrying");
                }
                let is_repeated = self.state.failures.times(&action.target) == REPEATED;
                if let (Some(fleet), ActionKind::EvictPod(pod)) = (fleet, &action.kind)
                    && is_repeated
                {
                    self.events.eviction_refused(fleet, pod, &why);
                }
                let is_refused = match failure {
                    Failure::Refused => true,
                    Failure::Internal => self.state.failures.times(&action.target) >= REPEATED,
                    Failure::Passing => false,
                };
                if let Some(fleet) = fleet.filter(|_| is_refused && is_workload) {
                    self.report_rejection(name, fleet, why);
                }
            }
            ActionOutcome::Done(generation) => {
                self.state.failures.succeeded(&action.target);
                self.state.recent.note(action.target.clone(), now);
                if let Some(fleet) = fleet {
                    if is_workload {
                        self.state.refusals.remove(name);
                    }
                    self.events.action_done(fleet, &action);
                }
                match action.kind {
                    ActionKind::MarkForDrain(pod, mark) => self.record_mark(&pod, Some(mark)),
                    ActionKind::Unmark(pod) | ActionKind::RemoveMarks(pod) => {
                        self.record_mark(&pod, None);
                    }
                    ActionKind::Apply(body) => {
                        self.state.applied.note(action.target, body, generation, now);
                    }
                    ActionKind::RecordStreams(..)
                    | ActionKind::SetDeletionCost(..)
                    | ActionKind::SetBusyLabel(..)
                    | ActionKind::DeletePod(_)
                    | ActionKind::EvictPod(_)
                    | ActionKind::DeleteBudget(_) => {}
                }
            }
        }
    }

    /// Stores a mark that was written or removed, until the watch shows it.
    fn record_mark(&mut self, pod: &PodFacts, mark: Option<DrainReason>) {
        let PodName { namespace, name } = &pod.pod;
        let found = self.context.pods.find(namespace, name);
        if found.is_some_and(|found| found.uid == pod.uid) {
            self.state.drain_marks.insert(pod.uid.clone(), mark);
        }
    }

    fn report_rejection(&mut self, name: &ClusterName, fleet: &Fleet, why: String) {
        if self.state.refusal(name) != Some(&why) {
            self.events.workload_rejected(fleet, &why);
            self.state.refusals.insert(name.clone(), why);
        }
    }
}
