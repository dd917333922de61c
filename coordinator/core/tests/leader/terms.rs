//! How a term begins.

use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::{Effect, Notice, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, KnownLeader, Renewed};
use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_coordinator_core::view::Leadership;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{CoordinatorMessage, RefusalReason};
use leasehold_types::{Epoch, Incarnation, Moment, TermId};

use super::fixture::{TTL, desired, hello, worker};

const SLICE: u32 = 64;
const STREAMS: usize = 5_000;
const WORKERS: usize = 2_000;
const TERM: Duration = Duration::from_secs(15);
const INCARNATION: Incarnation = Incarnation(7);

/// A new leader has a large manifest to read and many registered workers: it reads them in slices,
/// and does not lose events that arrive meanwhile.
#[test]
fn a_term_begins_once_the_manifest_is_read_and_events_before_that_count() {
    let mut core = Core::new(Config { slice: SLICE, ..Config::default() });
    let mut now = Moment(1_000_000_000);
    let worker = worker(7);
    core.handle(Event::Desired(Arc::new(desired(STREAMS))), now);
    core.handle(Event::Elected(elected(now)), now);
    assert!(core.take_cost() <= SLICE * 2);
    let later = Renewed { epoch: Epoch(4), sent_at: now, until: now + TERM * 2 };
    core.handle(Event::Renewed(later), now);
    core.handle(Event::Gone(vec![worker.clone()]), now);
    core.handle(Event::Hello(ConnId(1), hello(worker.clone(), INCARNATION), None), now);

    let mut effects = Vec::new();
    let mut turns = 0;
    while core.has_more() {
        assert_eq!(core.leadership(), Leadership::Standby(None), "turn {turns}");
        core.settle(now, now);
        turns += 1;
        effects.extend(std::iter::from_fn(|| core.poll_effect()));
        assert!(core.take_cost() <= SLICE * 2, "turn {turns} is long");
        if matches!(core.leadership(), Leadership::Leader(_)) {
            break;
        }
    }
    assert!(turns > (STREAMS + WORKERS) / SLICE as usize, "it began in {turns} turns");
    assert_eq!(core.leadership(), Leadership::Leader(Epoch(4)));
    let refused = effects.iter().find_map(|effect| match effect {
        Effect::Send { message: CoordinatorMessage::Refusal(refusal), .. } => Some(refusal),
        _ => None,
    });
    assert_eq!(refused.expect("a message to the agent").reason, RefusalReason::NotLeader(None));

    now = now + TERM;
    while core.has_more() {
        core.settle(now, now);
    }
    core.settle(now, now);
    assert_eq!(core.leadership(), Leadership::Leader(Epoch(4)), "it was renewed");
    effects.extend(std::iter::from_fn(|| core.poll_effect()));
    assert!(effects.contains(&Effect::Notice(Notice::Gone(worker.clone()))));
    let struck = Effect::Order { epoch: Epoch(4), order: Order::Unregister(vec![worker]) };
    assert!(effects.contains(&struck));
}

#[test]
fn a_term_that_is_lost_before_it_begins_never_does() {
    let mut core = Core::new(Config { slice: SLICE, ..Config::default() });
    let now = Moment(1_000_000_000);
    core.handle(Event::Desired(Arc::new(desired(STREAMS))), now);
    core.handle(Event::Elected(elected(now)), now);
    core.settle(now, now);
    let leader = KnownLeader { address: "b:7400".into(), epoch: Some(Epoch(5)) };
    core.handle(Event::Deposed { leader: Some(leader.clone()) }, now);
    while core.has_more() {
        core.settle(now, now);
    }
    assert_eq!(core.leadership(), Leadership::Standby(Some(leader)));
    assert_eq!(core.poll_effect(), None, "no notice says that it leads");
}

/// Registered workers are entered under the manifest that is in force when the term begins.
#[test]
fn a_term_begins_under_a_manifest_that_came_while_workers_were_entered() {
    let mut core = Core::new(Config { slice: SLICE, ..Config::default() });
    let now = Moment(1_000_000_000);
    core.handle(Event::Elected(elected(now)), now);
    (0..3).for_each(|_| core.settle(now, now));
    assert_eq!(core.leadership(), Leadership::Standby(None), "workers are being entered");
    core.handle(Event::Desired(Arc::new(desired(STREAMS))), now);
    while core.has_more() {
        core.settle(now, now);
    }
    assert_eq!(core.leadership(), Leadership::Leader(Epoch(4)));
    let clusters = core.clusters(now);
    let held = clusters
        .iter()
        .map(|cluster| (cluster.unreported, cluster.held.is_some()))
        .collect::<Vec<_>>();
    assert_eq!(held, [(WORKERS, true)], "the cluster waits for all that are stored");
}

/// An election with many registered workers.
fn elected(now: Moment) -> Elected {
    let entry = Entry {
        epoch: Epoch(3),
        exposure: Exposure { incarnation: INCARNATION, ttl: TTL, ..Exposure::default() },
    };
    Elected {
        epoch: Epoch(4),
        term: TermId(0),
        cell: None,
        until: now + TERM,
        predecessor_end: now,
        exposed: (0..WORKERS).map(|number| (worker(number), entry.clone())).collect(),
        unreadable: Default::default(),
    }
}
