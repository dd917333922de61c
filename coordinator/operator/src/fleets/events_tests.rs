//! The events of orders, drains and lost workers.

use leasehold_types::{ClusterName, WorkerName};

use super::*;

/// Every pod exists. The operator drains pods whose name starts with "marked".
struct FakeLookup;

fn reference(kind: &str, name: &str) -> ObjectReference {
    let (kind, name) = (Some(kind.to_owned()), Some(name.to_owned()));
    ObjectReference { kind, name, ..ObjectReference::default() }
}

impl Lookup for FakeLookup {
    fn pod(&self, key: &WorkerKey) -> Option<(ObjectReference, bool)> {
        let name = key.worker.as_str();
        Some((reference("Pod", name), name.starts_with("marked")))
    }

    fn fleet(&self, key: &WorkerKey) -> Option<(ObjectReference, Duration)> {
        Some((reference("WorkerCluster", key.cluster.as_str()), Duration::from_secs(60)))
    }
}

fn key(worker: &str) -> WorkerKey {
    let cluster = ClusterName::in_namespace("fleet", "builds").expect("a name");
    WorkerKey { cluster, worker: WorkerName::new(worker).expect("a name") }
}

fn at(seconds: u64) -> Moment {
    Moment(seconds * 1_000_000_000)
}

/// The reason and the kind of the object of each event.
fn words(events: &[NewEvent]) -> Vec<(EventReason, &str)> {
    let word = |event| {
        let NewEvent { reason, regarding, .. }: &NewEvent = event;
        (*reason, regarding.kind.as_deref().unwrap_or_default())
    };
    events.iter().map(word).collect()
}

fn both(reason: EventReason) -> Vec<(EventReason, &'static str)> {
    vec![(reason, "Pod"), (reason, "WorkerCluster")]
}

#[test]
fn records_every_step_of_a_drain_that_the_operator_did_not_order() {
    let mut worker_events = WorkerEvents::default();
    let started = Notice::DrainStarted(key("a"));
    let events = worker_events.events_for(&started, &FakeLookup, at(0));
    assert_eq!(words(&events), both(EventReason::DrainStarted));
    assert_eq!(
        events[0].related.as_ref().and_then(|reference| reference.kind.as_deref()),
        Some("WorkerCluster")
    );
    assert_eq!(worker_events.events_for(&started, &FakeLookup, at(1)), []);
    assert_eq!(worker_events.overdue(&FakeLookup, at(59)), []);
    let events = worker_events.overdue(&FakeLookup, at(60));
    assert_eq!(words(&events), both(EventReason::DrainDeadlineExceeded));
    assert_eq!(worker_events.overdue(&FakeLookup, at(90)), []);
    let events = worker_events.events_for(&Notice::Gone(key("a")), &FakeLookup, at(99));
    assert_eq!(words(&events), both(EventReason::DrainCompleted));
    assert_eq!(worker_events.events_for(&Notice::Gone(key("a")), &FakeLookup, at(99)), []);
}

#[test]
fn records_the_orders_of_people_with_their_names() {
    let order = |kind, by| WorkerOrder { kind, worker: key("a"), by };
    let ada = || Caller::User("ada".into());
    for (kind, reason) in [
        (OrderKind::Drain, EventReason::DrainOrdered),
        (OrderKind::Undrain, EventReason::DrainTakenBack),
        (OrderKind::DeclareGone, EventReason::WorkerDeclaredGone),
    ] {
        let events = events_for_order(&order(kind, ada()), &FakeLookup);
        assert_eq!(words(&events), both(reason));
        assert!(events[0].note.starts_with("ada ordered worker a "), "{}", events[0].note);
        let own = events_for_order(&order(kind, Caller::Operator), &FakeLookup);
        assert_eq!(own, []);
    }
}

#[test]
fn leaves_drains_of_the_operator_to_its_own_events() {
    let mut worker_events = WorkerEvents::default();
    assert_eq!(
        worker_events.events_for(&Notice::DrainStarted(key("marked-a")), &FakeLookup, at(0)),
        []
    );
    assert_eq!(worker_events.overdue(&FakeLookup, at(600)), []);
    assert_eq!(worker_events.events_for(&Notice::Gone(key("marked-a")), &FakeLookup, at(601)), []);
}

#[test]
fn records_lost_and_found_workers_but_not_ordinary_joins() {
    let mut worker_events = WorkerEvents::default();
    let joined = Notice::Joined(key("a"));
    assert_eq!(worker_events.events_for(&joined, &FakeLookup, at(0)), []);
    let events = worker_events.events_for(&Notice::Lost(key("a")), &FakeLookup, at(1));
    assert_eq!(words(&events), both(EventReason::WorkerLost));
    assert_eq!(
        words(&worker_events.events_for(&joined, &FakeLookup, at(2))),
        both(EventReason::WorkerFound)
    );
    assert_eq!(worker_events.events_for(&joined, &FakeLookup, at(3)), []);
    let notice = Notice::GivenUp { worker: key("a"), after: Duration::from_secs(3600) };
    let events = worker_events.events_for(&notice, &FakeLookup, at(9));
    assert_eq!(words(&events), both(EventReason::WorkerGivenUp));
    assert!(events[0].note.contains("lost for 1h,"), "{}", events[0].note);
}
