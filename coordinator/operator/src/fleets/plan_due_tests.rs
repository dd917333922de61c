//! When a fleet is planned again although nothing changes.

use std::time::Duration;

use leasehold_manifest::manifest::WorkloadKind;
use serde_json::json;

use super::tests::{START, applied, plan_at, plan_for, spec};
use super::*;
use crate::fleets::fixtures::{self, facts};

/// When a cluster whose drains may take a minute is due, with these pods and no workload.
fn due(pods: &[&str], now: Moment, state: &mut ReconcilerState) -> Option<Moment> {
    let cluster = fixtures::cluster(json!({
        "maxJobs": 2, "maxJobsPerWorker": 2, "drain": { "deadline": "60s" },
    }));
    plan_at(&cluster, None, pods, now, state).due
}

fn after(millis: u64) -> Moment {
    START + Duration::from_millis(millis)
}

#[test]
fn a_fleet_without_deadlines_is_not_due() {
    let mut state = ReconcilerState::default();
    assert_eq!(due(&["a jobs=1 labelled", "b"], START, &mut state), None);
}

#[test]
fn is_due_when_a_drain_passes_its_deadline() {
    let mut state = ReconcilerState::default();
    let pods = ["a jobs=1 labelled node drains"];
    assert_eq!(due(&pods, START, &mut state), Some(after(60_000)));
    assert_eq!(due(&pods, after(59_999), &mut state), Some(after(60_000)));
    assert_eq!(due(&pods, after(60_000), &mut state), None, "it is overdue");
    let drained = due(&["b node absent"], START, &mut state);
    assert_eq!(drained, None, "a drained worker has no deadline");
}

#[test]
fn is_due_when_a_pod_counts_as_idle() {
    let mut state = ReconcilerState::default();
    assert_eq!(due(&["a labelled", "b jobs=1 labelled"], START, &mut state), Some(after(10_000)));
    assert_eq!(due(&["a labelled jobs=1"], after(9_000), &mut state), None);
    let again = due(&["a labelled", "b node drains jobs=1"], after(9_500), &mut state);
    assert_eq!(again, Some(after(19_500)), "the earliest of two");
}

#[test]
fn is_due_when_an_applied_workload_is_repaired_or_was_not_seen() {
    let mut state = ReconcilerState::default();
    let made = plan_for(8, None, &[], &mut state).actions.remove(0);
    let ActionKind::Apply(body) = made.kind else { panic!("{made:?}") };
    state.applied.note(made.target, body, Some(1), START);
    let at = |workload, now, state: &mut ReconcilerState| {
        plan_at(&fixtures::cluster(spec(8)), workload, &[], now, state).due
    };
    assert_eq!(at(None, after(1), &mut state), Some(after(500)), "the watch does not show it");
    let seen = Some(applied(8, 4));
    assert_eq!(at(seen.clone(), after(1), &mut state), Some(after(600_000)));
    assert_eq!(at(seen, after(600_000), &mut state), None, "the plan applies it");
}

#[test]
fn is_due_when_a_recommendation_leaves_the_window() {
    let cluster = fixtures::cluster(spec(8));
    let workload = Some(Arc::new(facts(WorkloadKind::Deployment, 4)));
    let scale = DesiredScale { due: Some(after(7)), ..DesiredScale::of(4) };
    let input = FleetInput {
        fleet: &cluster,
        name: &fixtures::name(),
        worker_pods: Vec::new(),
        workload,
        scale,
        ownership: None,
        nodes: &ClosedNodes::default(),
        now: START,
    };
    assert_eq!(plan(input, &mut ReconcilerState::default()).due, Some(after(7)));
}
