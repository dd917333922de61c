//! What a StreamSet's status says, as a function of the facts. A plan's version grows by one with
//! each plan that differs from the one before, whoever leads.

use k8s_openapi::jiff::Timestamp;
use leasehold_coordinator_core::view::SetView;
use leasehold_kube_api::status::{AssignedWorkers, StreamCounts, StreamSetStatus};

use crate::conditions::{
    Aspect, CONVERGED, DEGRADED, PROGRESSING, READY, STALLED, Why, conditions, outline, refused,
    still_in_force,
};

/// What is known of a set.
#[derive(Clone, Debug, Default)]
pub(super) struct SetFacts {
    /// The generation of the newest spec.
    pub(super) generation: Option<i64>,
    /// The generation of the spec in force; none where only the last status can tell.
    pub(super) in_force: Option<i64>,
    /// What is wrong with the newest spec.
    pub(super) problem: Option<String>,
    /// What the core says of it; none where it is not in force.
    pub(super) view: Option<SetView>,
}

/// How far a set is from what is wanted.
enum Stands {
    /// It is there.
    Converged,
    /// It gets there by itself.
    OnItsWay,
    /// Somebody has to see to it.
    Short,
}

/// The status, where `before` is the one that was written last.
pub(super) fn status(
    facts: &SetFacts,
    before: &StreamSetStatus,
    now: Timestamp,
) -> StreamSetStatus {
    let in_force = still_in_force(facts.in_force, facts.view.is_some(), before.observed_generation);
    let (stands, why) = stands(facts.view.as_ref());
    let converged = matches!(stands, Stands::Converged);
    let problem = facts.problem.as_ref().map(|problem| refused(problem, in_force));
    let ready = match &problem {
        Some(problem) => Aspect::new(READY, false, problem.clone()),
        None => Aspect::new(READY, converged, why.clone()),
    };
    let degraded = match (&problem, &stands) {
        (Some(problem), _) => Aspect::new(DEGRADED, true, problem.clone()),
        (None, Stands::Short) => Aspect::new(DEGRADED, true, why.clone()),
        (None, _) => Aspect::new(DEGRADED, false, Why::new("AsExpected", "nothing is wrong")),
    };
    let progressing = Aspect::new(PROGRESSING, matches!(stands, Stands::OnItsWay), why.clone());
    let mut aspects = vec![ready, Aspect::new(CONVERGED, converged, why), progressing, degraded];
    aspects.extend(problem.map(|problem| Aspect::new(STALLED, true, problem)));
    let mut status = StreamSetStatus {
        observed_generation: in_force,
        conditions: conditions(aspects, &before.conditions, facts.generation, now),
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
    // A new leader has no plan of its own before it knows who owns what.
    let digest = format!("{:016x}", view.digest);
    if !view.held && digest != before.plan_digest {
        status.plan_version = before.plan_version + 1;
        status.plan_digest = digest;
    }
    status
}

fn stands(view: Option<&SetView>) -> (Stands, Why) {
    let Some(view) = view else {
        let message = "the coordinator has not taken this object up yet";
        return (Stands::OnItsWay, Why::new("NotInForce", message));
    };
    let SetView { streams, owned, moving, unplaced, workers, workers_current, .. } = view;
    if view.held {
        let message = format!(
            "the new leader waits until every worker of cluster {} has reported to it, and moves \
             nothing before",
            view.cluster
        );
        return (Stands::OnItsWay, Why::new("LeaderHolds", message));
    }
    if *unplaced > 0 && unplaced == streams {
        let message = format!(
            "cluster {} has no worker that may own streams: see its conditions and its pods",
            view.cluster
        );
        return (Stands::Short, Why::new("NoWorkers", message));
    }
    if *unplaced > 0 {
        let message = format!(
            "{unplaced} of {streams} streams have no worker: dedicated ones each need a worker of \
             their own, and a worker owns only so many; raise maxJobs for more workers"
        );
        return (Stands::Short, Why::new("Unplaced", message));
    }
    if *moving > 0 {
        let message =
            format!("{moving} of {streams} streams are on their way, {owned} have an owner");
        return (Stands::OnItsWay, Why::new("Moving", message));
    }
    if workers_current < workers {
        let message = format!(
            "{workers_current} of {workers} workers have acknowledged the newest assignment"
        );
        return (Stands::OnItsWay, Why::new("WaitingForAcknowledgement", message));
    }
    let message = format!("all {streams} streams are where they are to be, on {workers} workers");
    (Stands::Converged, Why::new("Converged", message))
}

/// The status without the figures and words that change all the time.
pub(super) fn outlined(status: &StreamSetStatus) -> StreamSetStatus {
    StreamSetStatus {
        conditions: outline(&status.conditions),
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
        let word = |it: &leasehold_kube_api::status::Condition| {
            format!("{}={} {}", it.type_, it.status, it.reason)
        };
        status.conditions.iter().map(word).collect()
    }

    #[test]
    fn each_way_of_not_being_there_has_its_reason() {
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
        }
    }

    #[test]
    fn a_refused_spec_leaves_the_last_good_one_in_force_and_says_so() {
        let facts = SetFacts { problem: Some("spec.streams: none".into()), ..facts(view()) };
        let facts = SetFacts { generation: Some(3), ..facts };
        let status = status(&facts, &StreamSetStatus::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(status.observed_generation, Some(2));
        assert_eq!(status.conditions[0].observed_generation, Some(3));
        let message = &status.conditions[0].message;
        assert_eq!(message, "spec.streams: none; generation 2 stays in force until it is mended");
        let words = words(&facts);
        assert_eq!(words[0], "Ready=False InvalidSpec");
        assert_eq!(words[1], "Converged=True Converged");
        assert_eq!(words[3..], ["Degraded=True InvalidSpec", "Stalled=True InvalidSpec"]);
    }

    #[test]
    fn a_spec_that_only_others_make_invalid_leaves_the_generation_that_was_written_last() {
        let facts =
            SetFacts { in_force: None, problem: Some("no cluster".into()), ..facts(view()) };
        let before = StreamSetStatus { observed_generation: Some(1), ..Default::default() };
        let of = |facts| status(&facts, &before, Timestamp::UNIX_EPOCH).observed_generation;
        assert_eq!(of(facts.clone()), Some(1));
        assert_eq!(of(SetFacts { view: None, ..facts }), None);
    }

    #[test]
    fn the_plan_s_version_grows_with_each_new_plan_also_over_leaders() {
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
