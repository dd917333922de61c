//! The model as a test: the small scopes hold, and rules that are switched off are missed at once.
//! Bounded by states alone; `make model` goes further.

use leasehold_model::{Limits, Scope, explore, hunt};
use leasehold_types::mutation::Mutation;

/// More than any exploration here needs.
const LIMITS: Limits = Limits { states: 60_000 };

/// Rules that one fault at most shows the lack of, and a property that is broken then.
const MUTATIONS: [(Mutation, &str); 10] = [
    (Mutation::FreeOnSend, "S2"),
    (Mutation::GrowOverBudget, "S1"),
    (Mutation::GrantBeforeRelease, "S3"),
    (Mutation::FreeWithoutMargin, "S4"),
    (Mutation::SkipHold, "S8"),
    (Mutation::AdoptAtHello, "S2"),
    (Mutation::NewIncarnationFrees, "S10"),
    (Mutation::UseUnwritten, "S11"),
    (Mutation::CountFromReceive, "S5"),
    (Mutation::KeepAfterExpiry, "S3"),
];

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
fn a_stream_has_one_owner_whatever_one_fault_does() {
    for name in ["expiring", "pinned"] {
        holds(Scope::named(name).expect("a scope").with_faults(1));
    }
}

#[test]
fn a_rule_that_is_switched_off_is_missed() {
    for (mutation, property) in MUTATIONS {
        let found = hunt(mutation, 1, LIMITS, &mut |_| ());
        let (_, found) = found.unwrap_or_else(|| panic!("{mutation:?} was not found"));
        assert_eq!(found.violation.property, property, "{mutation:?}: {:#?}", found.trace);
        assert!(found.trace.len() > found.steps, "every step is told of");
    }
}
