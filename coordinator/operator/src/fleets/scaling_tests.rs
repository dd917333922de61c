//! How many workers a class has, as its load and its limits change.

use leasehold_types::{ClusterName, Load};
use serde_json::{Value, json};

use super::*;
use crate::fleets::fixtures;

const MINUTE: u64 = 60;

/// A class of capacity 15 that may have up to 5 workers, and this.
fn spec(more: &Value) -> WorkerClassSpec {
    let mut spec = json!({ "capacity": 15, "maxReplicas": 5 });
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
    fixtures::class(spec).spec.0.clone()
}

/// The core's view: the requested load, and the workers needed and wanted.
fn view(request: u64, needed: u32, wanted: u32) -> ClassView {
    ClassView {
        name: ClusterName::in_namespace("ns", "green").expect("a name"),
        capacity: Load::per_second(15).expect("a load"),
        request: Load::per_second(request).expect("a load"),
        placed: Load::ZERO,
        workers: 0,
        workers_needed: needed,
        workers_wanted: wanted,
        workers_min: 0,
        workers_max: 10,
        waiting: 0,
        short: 0,
    }
}

fn at(seconds: u64) -> Moment {
    Moment((1_000 + seconds) * 1_000_000_000)
}

fn demand(view: ClassView) -> ClassDemand {
    ClassDemand { view, away: 0, marked: 0, leaving: 0 }
}

fn decided(more: &Value, view: ClassView, current: Option<u32>) -> DesiredScale {
    decide(&spec(more), &demand(view), current, &mut StabilizationWindow::default(), at(0))
}

#[test]
fn scales_by_load_and_explains_the_calculation() {
    let scale = decided(&json!({}), view(30, 2, 3), Some(2));
    assert_eq!((scale.replicas, scale.limited), (3, None));
    assert_eq!(scale.why.as_deref(), Some("request 30, capacity 15, target 70%: 3 workers"));
    let packed = decided(&json!({}), view(30, 4, 4), None);
    assert_eq!(packed.replicas, 4);
    assert!(packed.why.expect("why").ends_with("3 workers; its pipelines need at least 4"));
}

#[test]
fn only_the_upper_limit_is_reported_as_a_limit() {
    let most = decided(&json!({}), view(90, 6, 5), Some(5));
    let (reason, text) = most.limited.expect("a limit");
    assert_eq!((most.replicas, reason), (5, "TooManyReplicas"));
    assert!(text.ends_with("target 70%: 9 workers; maxReplicas is 5"), "{text}");
    let least = decided(&json!({ "minReplicas": 2 }), view(0, 0, 2), Some(2));
    assert_eq!((least.replicas, least.limited), (2, None));
    assert!(least.why.expect("why").ends_with("0 workers; minReplicas is 2"));
}

#[test]
fn spec_replicas_applies_within_the_limits() {
    for (given, replicas, reason) in
        [(4, 4, None), (12, 5, Some("TooManyReplicas")), (0, 1, Some("TooFewReplicas"))]
    {
        let scale = decided(&json!({ "replicas": given }), view(30, 2, 3), Some(2));
        assert_eq!((scale.replicas, scale.limited.map(|limit| limit.0)), (replicas, reason));
    }
    let text = decided(&json!({ "replicas": 12 }), view(30, 2, 3), Some(2)).limited;
    assert_eq!(text.expect("a limit").1, "spec.replicas is 12; maxReplicas is 5");
}

/// One class as time goes by: each step is a time, what is wanted, what there is, and what is
/// decided.
fn check_steps(more: &Value, steps: &[(u64, u32, u32, u32)]) {
    let (spec, mut window) = (spec(more), StabilizationWindow::default());
    for (seconds, wanted, current, decided) in steps {
        let demand = demand(view(0, *wanted, *wanted));
        let scale = decide(&spec, &demand, Some(*current), &mut window, at(*seconds));
        assert_eq!(scale.replicas, *decided, "after {seconds} s");
    }
}

#[test]
fn scales_out_at_once_and_in_after_a_full_window() {
    check_steps(
        &json!({}),
        &[
            (0, 2, 2, 2),
            (1, 4, 2, 4),
            (2, 2, 4, 4),
            (4 * MINUTE, 3, 4, 4),
            // The four was recommended 300 s ago: the three holds for another while.
            (5 * MINUTE, 2, 4, 4),
            (5 * MINUTE + 1, 2, 4, 3),
            (9 * MINUTE - 1, 2, 3, 3),
            (9 * MINUTE, 2, 3, 2),
        ],
    );
}

#[test]
fn is_due_when_the_highest_recommendation_leaves_the_window() {
    let (spec, mut window) = (spec(&json!({})), StabilizationWindow::default());
    let mut due = |wanted, seconds| {
        let demand = demand(view(0, wanted, wanted));
        decide(&spec, &demand, Some(4), &mut window, at(seconds)).due
    };
    assert_eq!(due(4, 1), None, "there is no lower one");
    assert_eq!(due(2, 2), Some(at(301)));
    assert_eq!(due(3, 4 * MINUTE), Some(at(301)));
    assert_eq!(due(2, 301), Some(at(9 * MINUTE)));
}

#[test]
fn a_recommendation_lasts_until_it_changes() {
    let (spec, mut window) = (spec(&json!({})), StabilizationWindow::default());
    let demand = |wanted| demand(view(0, wanted, wanted));
    let replicas = |wanted, window: &mut StabilizationWindow, seconds| {
        decide(&spec, &demand(wanted), Some(4), window, at(seconds)).replicas
    };
    assert_eq!(replicas(4, &mut window, 0), 4);
    window.renew(at(100));
    assert_eq!(replicas(2, &mut window, 101), 4);
    window.renew(at(300));
    assert_eq!(replicas(2, &mut window, 399), 4, "four were wanted for 100 s");
    assert_eq!(replicas(2, &mut window, 400), 2);
}

#[test]
fn a_new_leader_waits_a_full_window_before_scale_in() {
    check_steps(&json!({}), &[(0, 1, 3, 3), (299, 1, 3, 3), (300, 1, 3, 1)]);
    check_steps(&json!({ "scaling": { "stabilization": "0s" } }), &[(0, 1, 3, 1)]);
}

#[test]
fn an_old_recommendation_does_not_scale_out() {
    check_steps(&json!({}), &[(0, 5, 5, 5), (1, 2, 3, 3)]);
}

#[test]
fn returning_to_built_in_scaling_starts_a_new_window() {
    let mut window = StabilizationWindow::default();
    let built_in = spec(&json!({}));
    let given = spec(&json!({ "replicas": 4 }));
    let demand = demand(view(15, 1, 2));
    let mut at = |spec, current, seconds| {
        decide(spec, &demand, Some(current), &mut window, at(seconds)).replicas
    };
    assert_eq!(at(&built_in, 2, 0), 2);
    assert_eq!(at(&given, 2, 10), 4);
    assert_eq!(at(&built_in, 4, 400), 4);
    assert_eq!(at(&built_in, 4, 699), 4);
    assert_eq!(at(&built_in, 4, 700), 2);
}

#[test]
fn a_window_drops_recommendations_that_cannot_decide() {
    let mut window = StabilizationWindow::default();
    for second in 0..10_000 {
        let wanted = u32::try_from(second % 7).expect("a number");
        window.highest(wanted, 0, Duration::from_secs(300), at(second));
    }
    assert!(window.0.len() <= 7, "{window:?}");
}

#[test]
fn adds_a_worker_for_a_pipeline_that_fits_on_none() {
    let waits = ClassDemand {
        view: ClassView { workers: 2, waiting: 1, short: 1, ..view(15, 2, 2) },
        away: 0,
        marked: 0,
        leaving: 0,
    };
    let scale =
        decide(&spec(&json!({})), &waits, Some(2), &mut StabilizationWindow::default(), at(0));
    assert_eq!(scale.replicas, 3);
    let why = scale.why.expect("why");
    assert!(why.ends_with("2 workers; a pipeline waits for 1 more than the present 2"), "{why}");
}

#[test]
fn adds_workers_to_take_over_from_draining_ones() {
    let of = |current, away, leaving| {
        let demand = ClassDemand { away, marked: leaving, leaving, ..demand(view(30, 2, 3)) };
        decide(
            &spec(&json!({})),
            &demand,
            Some(current),
            &mut StabilizationWindow::default(),
            at(0),
        )
        .replicas
    };
    // One is on a cordoned node; the surplus worker goes when that is replaced.
    assert_eq!((of(3, 1, 0), of(4, 1, 0), of(4, 0, 0)), (4, 4, 4));
    // A scale-in has begun, and its victim is wanted again.
    assert_eq!((of(3, 0, 1), of(4, 0, 1)), (4, 3));
    // Never beyond the most.
    assert_eq!(of(3, 4, 0), 5);
}

#[test]
fn workers_marked_for_scale_in_do_not_cause_a_scale_out() {
    // Also of a new leader, which knows of the scale-in by the marks alone.
    let demand = ClassDemand { marked: 1, leaving: 1, ..demand(view(15, 1, 2)) };
    let scale =
        decide(&spec(&json!({})), &demand, Some(3), &mut StabilizationWindow::default(), at(0));
    assert_eq!(scale.replicas, 2);
}

#[test]
fn counts_unavailable_pods_by_marks_and_shares() {
    let words = [
        "a load=5 node drains",
        "b load=5 restart",
        "c load=5 scale-in drains",
        "d absent scale-in",
        "e load=0 node drains jobs=0",
        "f load=5 lost unready",
        "g load=5 lost",
        "h load=5",
        "i load=5 node going",
    ];
    let worker_pods: Vec<_> = words.iter().map(|words| fixtures::pod(words)).collect();
    let demand = ClassDemand::of(view(0, 0, 0), &worker_pods);
    assert_eq!((demand.away, demand.marked, demand.leaving), (3, 2, 1));
}
