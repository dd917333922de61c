//! The status of a StreamSet, as a function of the facts. A plan's version grows by one with each
//! different plan, also across leaders.

use k8s_openapi::jiff::Timestamp;
use leasehold_coordinator_core::view::SetView;
use leasehold_kube_api::status::{AssignedWorkers, StreamCounts, StreamSetStatus};

use crate::conditions::{
    CONVERGED, ConditionReason, DEGRADED, DesiredCondition, PROGRESSING, READY, conditions,
    in_force_generation, invalid_spec, stalled_or_reconciling, without_messages,
};

/// The facts of a set.
#[derive(Clone, Debug, Default)]
pub(super) struct SetFacts {
    /// The generation of the newest spec.
    pub(super) generation: Option<i64>,
    /// The generation of the spec in force; `None` if only the last status has it.
    pub(super) in_force: Option<i64>,
    /// The problem of the newest spec.
    pub(super) problem: Option<String>,
    /// The core's view; none if the object is not in force.
    pub(super) view: Option<SetView>,
}

/// How far a set is from its plan.
enum SetProgress {
    /// It is there.
    Converged,
    /// It gets there by itself.
    Progressing,
    /// A user has to act.
    NeedsAction,
}

/// The status, where `before` is the one that was written last.
pub(super) fn status(
    facts: &SetFacts,
    before: &StreamSetStatus,
    now: Timestamp,
) -> StreamSetStatus {
    let in_force =
        in_force_generation(facts.in_force, facts.view.is_some(), before.in_force_generation);
    let (progress, why) = progress(facts.view.as_ref());
    let converged = matches!(progress, SetProgress::Converged);
    let problem = facts.problem.as_ref().map(|problem| invalid_spec(problem, in_force));
    let ready = match &problem {
        Some(problem) => DesiredCondition::new(READY, false, problem.clone()),
        None => DesiredCondition::new(READY, converged, why.clone()),
    };
    let degraded = match (&problem, &progress) {
        (Some(problem), _) => DesiredCondition::new(DEGRADED, true, problem.clone()),
        (None, SetProgress::NeedsAction) => DesiredCondition::new(DEGRADED, true, why.clone()),
        (None, _) => DesiredCondition::new(
            DEGRADED,
            false,
            ConditionReason::new("AsExpected", "nothing is wrong"),
        ),
    };
    let is_progressing = matches!(progress, SetProgress::Progressing);
    let reconciling = is_progressing.then(|| why.clone());
    let progressing = DesiredCondition::new(PROGRESSING, is_progressing, why.clone());
    let mut desired =
        vec![ready, DesiredCondition::new(CONVERGED, converged, why), progressing, degraded];
    desired.extend(stalled_or_reconciling(problem, reconciling));
    let mut status = StreamSetStatus {
        observed_generation: facts.generation,
        in_force_generation: in_force,
        conditions: conditions(desired, &before.conditions, facts.generation, now),
        plan_version: before.plan_version,
        plan_digest: before.plan_digest.clone(),
        ..StreamSetStatus::default()
    };
    let Some(view) = &facts.view else { return status };
    status.streams = StreamCounts {
        total: view.streams as u64,
        owned: view.owned as u64,
        moving: view.moving as u64,
        unplaced: view.unplaced as u64,
    };
    status.workers = AssignedWorkers {
        total: u32::try_from(view.workers).unwrap_or(u32::MAX),
        current: u32::try_from(view.workers_current).unwrap_or(u32::MAX),
    };
    // A new leader has no plan before it knows the owners of the streams.
    let digest = format!("{:016x}", view.digest);
    if !view.held && digest != before.plan_digest {
        status.plan_version = before.plan_version + 1;
        status.plan_digest = digest;
    }
    status
}

fn progress(view: Option<&SetView>) -> (SetProgress, ConditionReason) {
    let Some(view) = view else {
        let message = "the coordinator has not read this object yet";
        return (SetProgress::Progressing, ConditionReason::new("NotInForce", message));
    };
    let SetView { streams, owned, moving, unplaced, workers, workers_current, .. } = view;
    if view.held {
        let message = format!(
            "the new leader moves no stream until every worker of cluster {} has reported to it",
            view.cluster
        );
        return (SetProgress::Progressing, ConditionReason::new("LeaderHolds", message));
    }
    if *unplaced > 0 && unplaced == streams {
        let message = format!(
            "cluster {} has no worker that may own streams: check its conditions and its pods",
            view.cluster
        );
        return (SetProgress::NeedsAction, ConditionReason::new("NoWorkers", message));
    }
    if *unplaced > 0 {
        let message = format!(
            "{unplaced} of {streams} streams have no worker: each dedicated one needs a worker of \
             its own, and a worker owns only a limited number; raise maxJobs for more workers"
        );
        return (SetProgress::NeedsAction, ConditionReason::new("Unplaced", message));
    }
    if *moving > 0 {
        let message = format!("{moving} of {streams} streams are moving, {owned} have an owner");
        return (SetProgress::Progressing, ConditionReason::new("Moving", message));
    }
    if workers_current < workers {
        let message = format!(
            "{workers_current} of {workers} workers have acknowledged the newest assignment"
        );
        return (
            SetProgress::Progressing,
            ConditionReason::new("WaitingForAcknowledgement", message),
        );
    }
    let message = format!("all {streams} streams are in place on {workers} workers");
    (SetProgress::Converged, ConditionReason::new("Converged", message))
}

/// The status without the figures and words that change all the time.
pub(super) fn without_figures(status: &StreamSetStatus) -> StreamSetStatus {
    StreamSetStatus {
        conditions: without_messages(&status.conditions),
        streams: StreamCounts { total: status.streams.total, ..StreamCounts::default() },
        workers: AssignedWorkers::default(),
        ..status.clone()
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, SetName};

    use super::*;

    fn view() -> SetView {
        SetView {
            name: SetName::new("cars").expect("a name"),
            cluster: ClusterName::new("builds").expect("a name"),
            streams: 27,
            owned: 27,
            moving: 0,
            unplaced: 0,
            workers: 3,
            workers_current: 3,
            digest: 7,
            held: false,
        }
    }

    fn facts(view: SetView) -> SetFacts {
        SetFacts { generation: Some(2), in_force: Some(2), problem: None, view: Some(view) }
    }

    /// Every condition in a word: the reason, with a mark where it does not hold.
    fn words(facts: &SetFacts) -> Vec<String> {
        let status = status(facts, &StreamSetStatus::default(), Timestamp::UNIX_EPOCH);
        let word = |condition: &leasehold_kube_api::status::Condition| {
            format!("{}={} {}", condition.type_, condition.status, condition.reason)
        };
        status.conditions.iter().map(word).collect()
    }

    #[test]
    fn each_incomplete_state_has_its_reason() {
        let converged = words(&facts(view()));
        assert_eq!(converged[0], "Ready=True Converged");
        assert_eq!(converged[1], "Converged=True Converged");
        assert_eq!(converged[2..], ["Progressing=False Converged", "Degraded=False AsExpected"]);
        for (changed, reason, degraded) in [
            (SetView { moving: 1, unplaced: 1, held: true, ..view() }, "LeaderHolds", false),
            (SetView { unplaced: 27, moving: 27, workers: 0, ..view() }, "NoWorkers", true),
            (SetView { unplaced: 2, ..view() }, "Unplaced", true),
            (SetView { moving: 2, workers_current: 1, ..view() }, "Moving", false),
            (SetView { workers_current: 2, ..view() }, "WaitingForAcknowledgement", false),
        ] {
            let words = words(&facts(changed));
            assert_eq!(words[0], format!("Ready=False {reason}"));
            assert_eq!(words[1], format!("Converged=False {reason}"));
            let progressing = if degraded { "False" } else { "True" };
            assert_eq!(words[2], format!("Progressing={progressing} {reason}"));
            assert_eq!(words[3].starts_with("Degraded=True"), degraded);
            let reconciling = (!degraded).then(|| format!("Reconciling=True {reason}"));
            assert_eq!(words.get(4), reconciling.as_ref());
        }
    }

    #[test]
    fn an_invalid_spec_keeps_the_last_valid_one_in_force() {
        let facts = SetFacts { problem: Some("spec.streams: none".into()), ..facts(view()) };
        let facts = SetFacts { generation: Some(3), ..facts };
        let status = status(&facts, &StreamSetStatus::default(), Timestamp::UNIX_EPOCH);
        let generations = (status.observed_generation, status.in_force_generation);
        assert_eq!(generations, (Some(3), Some(2)));
        assert_eq!(status.conditions[0].observed_generation, Some(3));
        let message = &status.conditions[0].message;
        assert_eq!(
            message,
            "spec.streams: none; generation 2 stays in force until the spec is corrected"
        );
        let words = words(&facts);
        assert_eq!(words[0], "Ready=False InvalidSpec");
        assert_eq!(words[1], "Converged=True Converged");
        assert_eq!(words[3..], ["Degraded=True InvalidSpec", "Stalled=True InvalidSpec"]);
    }

    #[test]
    fn a_spec_invalidated_by_other_objects_keeps_the_written_generation() {
        let facts =
            SetFacts { in_force: None, problem: Some("no cluster".into()), ..facts(view()) };
        let before = StreamSetStatus { in_force_generation: Some(1), ..Default::default() };
        let of = |facts| status(&facts, &before, Timestamp::UNIX_EPOCH).in_force_generation;
        assert_eq!(of(facts.clone()), Some(1));
        assert_eq!(of(SetFacts { view: None, ..facts }), None);
    }

    #[test]
    fn the_plan_version_grows_with_each_plan_across_leaders() {
        let now = Timestamp::UNIX_EPOCH;
        let first = status(&facts(view()), &StreamSetStatus::default(), now);
        assert_eq!(first.plan_version, 1);
        let moved = SetView { moving: 3, workers_current: 0, ..view() };
        assert_eq!(status(&facts(moved), &first, now).plan_version, 1);
        let holds = SetView { digest: 0, held: true, ..view() };
        let held = status(&facts(holds), &first, now);
        assert_eq!((held.plan_version, &held.plan_digest), (1, &first.plan_digest));
        let second = status(&facts(SetView { digest: 8, ..view() }), &held, now);
        assert_eq!(second.plan_version, 2);
        let gone = SetFacts { view: None, ..SetFacts::default() };
        assert_eq!(status(&gone, &second, now).plan_version, 2);
    }
}
