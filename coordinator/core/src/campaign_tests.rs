//! How a leader uses its two stores: renewals, batches, answers that come late or not at all.

use leasehold_types::{ClusterName, TermId, WorkerName};

use super::*;
use crate::exposure::{AccountId, Exposure};

const SETTINGS: LeadSettings = LeadSettings {
    leadership: Duration::from_secs(10),
    renew_every: Duration::from_secs(1),
    batch_max: 2,
    batches_max: 1,
};

fn key(worker: usize) -> WorkerKey {
    let cluster = ClusterName::new("ci/builds").unwrap();
    WorkerKey { cluster, worker: WorkerName::new(&format!("w-{worker}")).unwrap() }
}

fn enter(worker: usize, account_id: u64) -> (WorkerKey, AccountId, Exposure) {
    (key(worker), AccountId(account_id), Exposure { jobs_max: 1, ..Exposure::default() })
}

fn seconds(seconds: u64) -> Moment {
    Moment(0) + Duration::from_secs(seconds)
}

fn requests(lead: &mut Lead) -> Vec<StoreRequest> {
    std::iter::from_fn(|| lead.poll_request()).collect()
}

fn attempts(lead: &mut Lead) -> Vec<EntryAttempt> {
    let writes = requests(lead).into_iter().find_map(|request| match request {
        StoreRequest::Write(attempts) => Some(attempts),
        StoreRequest::Renew | StoreRequest::List(_) => None,
    });
    writes.unwrap_or_default()
}

fn batch(lead: &mut Lead) -> Vec<EntryChange> {
    attempts(lead).into_iter().map(|attempt| attempt.change).collect()
}

fn done(changes: Vec<EntryChange>, written: EntryOutcome) -> Vec<(EntryChange, EntryOutcome)> {
    changes.into_iter().map(|change| (change, written)).collect()
}

fn registered(lead: &mut Lead) -> Vec<(WorkerKey, AccountId, Exposure)> {
    let events = std::iter::from_fn(|| lead.poll_event());
    let said = events.filter_map(|event| match event {
        Event::Registered(said) => Some(said),
        _ => None,
    });
    said.flatten().collect()
}

/// The third term, taken after a second.
fn taken() -> TermTaken {
    TermTaken {
        epoch: Epoch(3),
        term: TermId(7),
        cell: None,
        sent_at: seconds(1),
        predecessor_end: seconds(1),
    }
}

/// A leader whose core knows of its term.
fn leader() -> Lead {
    let mut lead = Lead::new(SETTINGS, taken(), seconds(1));
    assert_eq!(requests(&mut lead), [StoreRequest::List(Namespaces::All)]);
    assert!(lead.poll_event().is_none(), "the core leads only once the list is read");
    lead.listed(Some(Listing::default()), seconds(1));
    assert!(matches!(lead.poll_event(), Some(Event::Elected(_))));
    lead
}

/// During one long turn a driver may lose a term and take the next. The core's orders for the
/// former term arrive after the later term has adopted the entries.
#[test]
fn an_order_of_another_term_is_ignored() {
    let mut lead = leader();
    let (former, later) = (Epoch(2), Epoch(4));
    for epoch in [former, later] {
        lead.order(epoch, Order::Unregister(vec![key(0)]), seconds(2));
        lead.order(epoch, Order::Register(vec![enter(1, 1)]), seconds(2));
        lead.order(epoch, Order::StepDown { above: None }, seconds(2));
        lead.order(epoch, Order::Confirm, seconds(2));
    }
    assert_eq!(requests(&mut lead), []);
    assert_eq!(lead.over(), None);
    lead.order(lead.epoch(), Order::Unregister(vec![key(0)]), seconds(2));
    assert_eq!(batch(&mut lead), [EntryChange::Unregister(key(0))]);
    lead.order(lead.epoch(), Order::StepDown { above: Some(Epoch(9)) }, seconds(2));
    assert_eq!(lead.over(), Some(TermEnd::GivenUp { above: Some(Epoch(9)) }));

    if !mutation::BUILT_IN {
        return;
    }
    let mut mutant = leader();
    mutation::set(Some(Mutation::OrderOfAnotherTerm));
    mutant.order(former, Order::Unregister(vec![key(0)]), seconds(2));
    mutation::set(None);
    assert_eq!(batch(&mut mutant), [EntryChange::Unregister(key(0))], "the fault shows here");
}

#[test]
fn a_registration_is_answered_after_a_renewal_that_was_sent_after_it() {
    let mut lead = leader();
    lead.order(lead.epoch(), Order::Confirm, seconds(2));
    lead.order(lead.epoch(), Order::Register(vec![enter(0, 1)]), seconds(2));
    let changes = batch(&mut lead);
    lead.wrote(done(changes, EntryOutcome::Done), seconds(3));
    lead.renewed(RenewalOutcome::Leads, seconds(2), seconds(3));
    assert_eq!(registered(&mut lead), [], "a successor may have listed between the two");
    assert_eq!(requests(&mut lead), [StoreRequest::Renew]);
    lead.renewed(RenewalOutcome::Leads, seconds(3), seconds(4));
    assert_eq!(registered(&mut lead), [enter(0, 1)]);
}

#[test]
fn a_strike_cancels_a_pending_answer() {
    let run = || {
        let mut lead = leader();
        let both = vec![enter(0, 1), enter(1, 2)];
        lead.order(lead.epoch(), Order::Register(both), seconds(2));
        let changes = batch(&mut lead);
        // One worker is removed while its registration is in flight, one after it is written.
        lead.order(lead.epoch(), Order::Unregister(vec![key(0)]), seconds(2));
        lead.wrote(done(changes, EntryOutcome::Done), seconds(3));
        lead.order(lead.epoch(), Order::Unregister(vec![key(1)]), seconds(3));
        lead.renewed(RenewalOutcome::Leads, seconds(3), seconds(4));
        (registered(&mut lead), batch(&mut lead))
    };
    assert_eq!(run(), (vec![], vec![EntryChange::Unregister(key(0))]));
    if !mutation::BUILT_IN {
        return;
    }
    mutation::set(Some(Mutation::RegisteredOfAnotherAccount));
    let (said, _) = run();
    mutation::set(None);
    assert_eq!(said, [enter(0, 1), enter(1, 2)], "the fault shows here");
}

fn unregistered(lead: &mut Lead) -> Vec<WorkerKey> {
    let events = std::iter::from_fn(|| lead.poll_event());
    let said = events.filter_map(|event| match event {
        Event::Unregistered(said) => Some(said),
        _ => None,
    });
    said.flatten().collect()
}

/// A worker is told that it has left once no successor can have read its entry.
#[test]
fn a_removal_is_answered_after_a_renewal_that_was_sent_after_it() {
    let mut lead = leader();
    lead.order(lead.epoch(), Order::Confirm, seconds(2));
    lead.order(lead.epoch(), Order::Unregister(vec![key(0), key(1)]), seconds(2));
    let changes = batch(&mut lead);
    lead.wrote(done(changes, EntryOutcome::Done), seconds(3));
    lead.renewed(RenewalOutcome::Leads, seconds(2), seconds(3));
    assert_eq!(unregistered(&mut lead), [], "a successor may have listed between the two");
    assert_eq!(requests(&mut lead), [StoreRequest::Renew]);
    // The next agent of the name is registered instead: its answer stands for both.
    lead.order(lead.epoch(), Order::Register(vec![enter(1, 2)]), seconds(3));
    lead.renewed(RenewalOutcome::Leads, seconds(3), seconds(4));
    assert_eq!(unregistered(&mut lead), [key(0)]);
}

#[test]
fn writes_that_take_long_delay_no_renewal() {
    let mut lead = leader();
    lead.order(lead.epoch(), Order::Unregister((0..100).map(key).collect()), seconds(2));
    assert_eq!(batch(&mut lead).len(), 2, "one request, never answered");
    for second in 3..9 {
        lead.tick(true, seconds(second));
        assert_eq!(requests(&mut lead), [StoreRequest::Renew]);
        lead.renewed(RenewalOutcome::Leads, seconds(second), seconds(second));
    }
    assert_eq!((lead.over(), lead.until()), (None, seconds(18)));
}

#[test]
fn an_entry_waits_neither_for_strikes_nor_for_failed_writes() {
    let mut lead = leader();
    lead.order(lead.epoch(), Order::Unregister((0..3).map(key).collect()), seconds(2));
    let strikes = batch(&mut lead);
    lead.order(lead.epoch(), Order::Register(vec![enter(7, 7)]), seconds(2));
    lead.wrote(done(strikes, EntryOutcome::Failed), seconds(2));
    let (entered, account_id, exposure) = enter(7, 7);
    let changes = batch(&mut lead);
    assert_eq!(
        changes,
        [EntryChange::Register(entered, account_id, exposure), EntryChange::Unregister(key(2))]
    );
    lead.wrote(done(changes, EntryOutcome::Done), seconds(2));
    assert_eq!(batch(&mut lead), [], "what failed waits for the next beat");
    lead.tick(true, seconds(3));
    assert_eq!(batch(&mut lead).len(), 2);
}

#[test]
fn a_driver_that_makes_no_progress_stops_renewing() {
    let mut lead = leader();
    lead.tick(false, seconds(3));
    assert_eq!(requests(&mut lead), []);
    lead.tick(false, seconds(11));
    assert_eq!(lead.over(), Some(TermEnd::Expired));
}

#[test]
fn a_later_leaders_entry_is_left_alone() {
    let entry = |epoch| Entry { epoch: Epoch(epoch), exposure: Exposure::default() };
    let (key, account_id, exposure) = enter(0, 1);
    let (strike, enter) =
        (EntryChange::Unregister(key.clone()), EntryChange::Register(key, account_id, exposure));
    let resolve = |found: Option<&Entry>, change: &EntryChange, epoch| {
        let attempt = EntryAttempt { change: change.clone(), confirmed: EntryVersion(0) };
        resolve(found, EntryVersion(7), &attempt, epoch)
    };
    assert_eq!(resolve(Some(&entry(3)), &strike, Epoch(3)), EntryWrite::Put(None));
    assert_eq!(resolve(Some(&entry(4)), &strike, Epoch(3)), EntryWrite::Superseded);
    assert_eq!(resolve(Some(&entry(4)), &enter, Epoch(3)), EntryWrite::Superseded);
    assert_eq!(resolve(None, &strike, Epoch(3)), EntryWrite::Nothing);
    let adopted = resolve(Some(&entry(2)), &enter, Epoch(3));
    assert!(matches!(adopted, EntryWrite::Put(Some(Entry { epoch: Epoch(3), .. }))));
    let mut lead = leader();
    lead.order(lead.epoch(), Order::Unregister(vec![strike.key().clone()]), seconds(2));
    let changes = batch(&mut lead);
    lead.wrote(done(changes, EntryOutcome::Superseded), seconds(2));
    assert_eq!(requests(&mut lead), [StoreRequest::Renew], "whether it is deposed, the store says");
}

#[test]
fn an_entry_that_cannot_be_read_is_replaced_after_a_renewal_that_was_sent_after_it_was_read() {
    let mut lead = leader();
    lead.order(lead.epoch(), Order::Confirm, seconds(2));
    lead.order(lead.epoch(), Order::Register(vec![enter(0, 1)]), seconds(2));
    let tried = attempts(&mut lead).remove(0);
    let found = Entry::unreadable();
    assert_eq!(resolve(Some(&found), EntryVersion(7), &tried, Epoch(3)), EntryWrite::Unreadable);
    let outcome = |attempt: &EntryAttempt| {
        (attempt.change.clone(), EntryOutcome::Unreadable(EntryVersion(7)))
    };
    lead.wrote(vec![outcome(&tried)], seconds(3));
    lead.renewed(RenewalOutcome::Leads, seconds(2), seconds(4));
    assert_eq!(
        requests(&mut lead),
        [StoreRequest::Renew],
        "a later leader may have written it since"
    );
    // A change that is added meanwhile waits, too.
    lead.order(lead.epoch(), Order::Unregister(vec![key(0)]), seconds(4));
    lead.renewed(RenewalOutcome::Unknown, seconds(4), seconds(5));
    assert_eq!(batch(&mut lead), []);
    lead.tick(true, seconds(6));
    lead.renewed(RenewalOutcome::Leads, seconds(6), seconds(6));
    let again = attempts(&mut lead).remove(0);
    let confirmed = EntryVersion(7);
    assert_eq!(again, EntryAttempt { change: EntryChange::Unregister(key(0)), confirmed });
    assert_eq!(resolve(Some(&found), EntryVersion(7), &again, Epoch(3)), EntryWrite::Put(None));
    let later = resolve(Some(&found), EntryVersion(8), &again, Epoch(3));
    assert_eq!(later, EntryWrite::Unreadable, "another leader may have written since");
}

#[test]
fn namespaces_that_could_not_be_read_are_read_again_until_they_can_be() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let entry = Entry { epoch: Epoch(2), exposure: Exposure::default() };
    let listing = |exposed: &[usize], unreadable: &[&str]| Listing {
        exposed: exposed.iter().map(|worker| (key(*worker), entry.clone())).collect(),
        unreadable: names(unreadable),
    };
    let mut lead = Lead::new(SETTINGS, taken(), seconds(1));
    requests(&mut lead);
    lead.listed(Some(listing(&[0], &["a", "b"])), seconds(1));
    let Some(Event::Elected(elected)) = lead.poll_event() else { panic!("it leads") };
    assert_eq!(elected.unreadable, names(&["a", "b"]));
    assert_eq!(requests(&mut lead), [], "not at once");

    let again = |lead: &mut Lead, at: u64| {
        lead.tick(false, seconds(at));
        requests(lead).into_iter().find(|request| matches!(request, StoreRequest::List(_)))
    };
    let both = Some(StoreRequest::List(Namespaces::Only(names(&["a", "b"]))));
    assert_eq!(again(&mut lead, 2), both);
    lead.listed(None, seconds(2));
    assert_eq!(again(&mut lead, 3), both, "no answer: once more");
    lead.listed(Some(listing(&[1], &["b"])), seconds(3));
    let Some(Event::NamespacesRead(read)) = lead.poll_event() else { panic!("it was read") };
    assert_eq!((read.namespaces, read.epoch), (names(&["a"]), Epoch(3)));
    assert_eq!(read.exposed.keys().collect::<Vec<_>>(), [&key(1)]);
    assert_eq!(again(&mut lead, 4), Some(StoreRequest::List(Namespaces::Only(names(&["b"])))));
    lead.listed(Some(listing(&[], &[])), seconds(4));
    assert!(matches!(lead.poll_event(), Some(Event::NamespacesRead(_))));
    assert_eq!(again(&mut lead, 9), None, "all is read");
}
