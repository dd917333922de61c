//! The statuses of a Pipeline and of its bindings, as functions of the facts.

use k8s_openapi::jiff::Timestamp;
use leasehold_coordinator_core::view::{
    BindingPhase, BindingView, PipelinePhase, PipelineView, ShareView,
};
use leasehold_kube_api::status::{
    BindingCounts, PipelineBindingStatus, PipelineStatus, SHARES_LISTED_MAX, ShareStatus, WaitsFor,
};

use crate::conditions::{
    ConditionReason, DEGRADED, DesiredCondition, PROGRESSING, READY, conditions,
    in_force_generation, invalid_spec, stalled_or_reconciling,
};

/// The facts of a pipeline.
#[derive(Clone, Debug, Default)]
pub(super) struct PipelineFacts {
    /// The generation of the newest spec.
    pub(super) generation: Option<i64>,
    /// The generation of the spec in force; `None` if only the last status has it.
    pub(super) in_force: Option<i64>,
    /// The problem of the newest spec.
    pub(super) problem: Option<String>,
    /// The core's view; none if the object is not in force.
    pub(super) view: Option<PipelineView>,
    /// The error of one of its objects.
    pub(super) blocked: Option<ConditionReason>,
}

/// How far a pipeline is from its spec.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PipelineProgress {
    /// It is there.
    Ready,
    /// It gets there by itself.
    Progressing,
    /// Something is wrong; it may get there by itself.
    Broken,
    /// A user has to act.
    NeedsAction,
}

/// A pipeline's status, where `before` is the one that was written last.
pub(super) fn of_pipeline(
    facts: &PipelineFacts,
    before: &PipelineStatus,
    now: Timestamp,
) -> PipelineStatus {
    let in_force =
        in_force_generation(facts.in_force, facts.view.is_some(), before.in_force_generation);
    let (progress, why) = progress(facts.view.as_ref());
    let problem = facts.problem.as_ref().map(|problem| invalid_spec(problem, in_force));
    let stalled = problem.or_else(|| facts.blocked.clone());
    let ready = match &stalled {
        Some(stalled) => DesiredCondition::new(READY, false, stalled.clone()),
        None => DesiredCondition::new(READY, progress == PipelineProgress::Ready, why.clone()),
    };
    let degraded = match (&stalled, progress) {
        (Some(stalled), _) => DesiredCondition::new(DEGRADED, true, stalled.clone()),
        (None, PipelineProgress::Broken | PipelineProgress::NeedsAction) => {
            DesiredCondition::new(DEGRADED, true, why.clone())
        }
        (None, PipelineProgress::Ready | PipelineProgress::Progressing) => DesiredCondition::new(
            DEGRADED,
            false,
            ConditionReason::new("AsExpected", "nothing is wrong"),
        ),
    };
    let is_moving = matches!(progress, PipelineProgress::Progressing | PipelineProgress::Broken);
    let progressing = DesiredCondition::new(PROGRESSING, is_moving, why.clone());
    let mut desired = vec![ready, progressing, degraded];
    desired.extend(stalled_or_reconciling(stalled, is_moving.then_some(why)));
    let mut status = PipelineStatus {
        observed_generation: facts.generation,
        in_force_generation: in_force,
        conditions: conditions(desired, &before.conditions, facts.generation, now),
        ..PipelineStatus::default()
    };
    let Some(view) = &facts.view else { return status };
    let ready = view.bindings.iter().filter(|binding| binding.phase == BindingPhase::Ready);
    status.phase = view.phase.to_string();
    status.bindings =
        BindingCounts { total: count(view.bindings.len()), ready: count(ready.count()) };
    let waits = view
        .waits
        .iter()
        .map(|(class, workers)| WaitsFor { class: class.parts().1.to_owned(), workers: *workers });
    status.waits_for = waits.collect();
    status
}

fn progress(view: Option<&PipelineView>) -> (PipelineProgress, ConditionReason) {
    let Some(view) = view else {
        let message = "the coordinator has not read this object yet";
        return (PipelineProgress::Progressing, ConditionReason::new("NotInForce", message));
    };
    let waits = || waits(view);
    match view.phase {
        // Until then the running shares serve the earlier load.
        PipelinePhase::Ready if !view.waits.is_empty() || !view.reason.is_empty() => {
            (PipelineProgress::Progressing, ConditionReason::new("ChangeWaits", waits()))
        }
        PipelinePhase::Ready => {
            let message = format!("all {} bindings are ready", view.bindings.len());
            (PipelineProgress::Ready, ConditionReason::new("Ready", message))
        }
        PipelinePhase::Plotted => {
            let message = or(&view.reason, "its workers are chosen, but not all serve it yet");
            (PipelineProgress::Progressing, ConditionReason::new("WaitsForAgents", message))
        }
        PipelinePhase::Broken => {
            let message = or(&view.reason, "one of its workers was lost");
            (PipelineProgress::Broken, ConditionReason::new("Broken", message))
        }
        PipelinePhase::Pending if view.waits.iter().any(|(_, workers)| *workers == 0) => {
            (PipelineProgress::NeedsAction, ConditionReason::new("ClassMissing", waits()))
        }
        PipelinePhase::Pending if !view.waits.is_empty() => {
            (PipelineProgress::Progressing, ConditionReason::new("WaitsForWorkers", waits()))
        }
        PipelinePhase::Pending => {
            let message = or(&view.reason, "its workers are not chosen yet");
            (PipelineProgress::Progressing, ConditionReason::new("NotPlotted", message))
        }
    }
}

/// The text of a message about what a pipeline waits for.
fn waits(view: &PipelineView) -> String {
    let each = view.waits.iter().map(|(class, workers)| match workers {
        0 => format!("for WorkerClass {}, which does not exist", class.parts().1),
        1 => format!("for one more worker of class {}", class.parts().1),
        more => format!("for {more} more workers of class {}", class.parts().1),
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() {
        view.reason.clone()
    } else {
        or(&view.reason, &format!("it waits {}", each.join(" and ")))
    }
}

/// A binding's status, where `before` is the one that was written last; `trouble` is what keeps its
/// objects from being as they should be.
pub(super) fn of_binding(
    view: &BindingView,
    generation: Option<i64>,
    trouble: Option<&ConditionReason>,
    before: &PipelineBindingStatus,
    now: Timestamp,
) -> PipelineBindingStatus {
    let why = match view.phase {
        BindingPhase::Ready => ConditionReason::new("Ready", "all its workers serve it"),
        BindingPhase::Pending => ConditionReason::new(
            "WaitsForAgents",
            "its workers are chosen, but not all serve it yet",
        ),
        BindingPhase::DeadEnd => ConditionReason::new("WorkerLost", "one of its workers was lost"),
        BindingPhase::Unset => ConditionReason::new("Unset", "no workers are chosen for it"),
    };
    let is_ready = view.phase == BindingPhase::Ready && trouble.is_none();
    let ready = DesiredCondition::new(READY, is_ready, trouble.cloned().unwrap_or(why));
    let listed = view.shares.iter().take(SHARES_LISTED_MAX);
    PipelineBindingStatus {
        observed_generation: generation,
        phase: view.phase.to_string(),
        conditions: conditions(vec![ready], &before.conditions, generation, now),
        workers: count(view.shares.len()),
        worker_list: listed.map(share).collect(),
    }
}

fn share(share: &ShareView) -> ShareStatus {
    let phase = match (share.draining, share.applied) {
        (true, _) => "Draining",
        (false, true) => "Ready",
        (false, false) => "Pending",
    };
    ShareStatus {
        name: share.worker.to_string(),
        documents_per_second: share.load.to_string(),
        phase: phase.into(),
    }
}

fn or(text: &str, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text.to_owned() }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
