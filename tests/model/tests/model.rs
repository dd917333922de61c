//! The model as a test: the small scopes hold, and rules that are switched off are missed at once.
//! Bounded by states alone; `make model` goes further.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use leasehold_model::{CASES, Case, Limits, Scope, explore};
use leasehold_simulator::is_in_shard;

/// More than any exploration here needs.
const LIMITS: Limits = Limits { states: 600_000 };

fn holds(scope: Scope) {
    let outcome = explore(&scope, None, LIMITS, &mut |_| ());
    if let Some(found) = outcome.found {
        panic!("{}: {}\n{}", scope.name, found.violation, found.trace.join("\n"));
    }
    assert!(outcome.complete, "{}: {} states", scope.name, outcome.states);
    assert!(outcome.states > 1, "{}: nothing was explored", scope.name);
}

#[test]
fn every_scope_holds_without_faults() {
    Scope::all().into_iter().map(|scope| scope.with_faults(0)).for_each(holds);
}

#[test]
fn a_stream_has_one_owner_after_any_single_fault() {
    for name in ["expiring", "pinned"] {
        holds(Scope::named(name).expect("a scope").with_faults(1));
    }
}

/// On two threads: one alone takes as long as all other tests of the cores.
#[test]
fn detects_every_rule_that_is_switched_off() {
    let in_shard = CASES.iter().enumerate().filter(|(number, _)| is_in_shard(*number));
    let cases: Vec<_> = in_shard.map(|(_, case)| case).collect();
    assert!(!cases.is_empty(), "there are fewer rules than shards");
    let next = AtomicUsize::new(0);
    let detect_next = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            detect(case);
        }
    };
    thread::scope(|scope| {
        scope.spawn(detect_next);
        scope.spawn(detect_next);
    });
}

fn detect(case: &Case) {
    let mutation = case.mutation;
    let found = case.find_violation(LIMITS, &mut |_| ());
    let found = found.unwrap_or_else(|| panic!("{mutation:?} was not found"));
    assert_eq!(found.violation.property, case.property, "{mutation:?}: {:#?}", found.trace);
    assert!(found.trace.len() > found.steps, "every step is described");
}
