//! One cluster with one set of streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, Stream, StreamSet,
};
use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::{Elected, Event, Renewed};
use leasehold_types::message::Hello;
use leasehold_types::{
    ClusterName, Epoch, Incarnation, Moment, SetName, StreamName, TermId, WorkerKey, WorkerName,
};

/// How long a leader leads unless it renews that.
pub(crate) const TERM: Duration = Duration::from_secs(1_000);
/// The time to live of its leases.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// The cluster, and a set of this many streams.
pub(crate) fn desired(streams: usize) -> Desired {
    let spec = Cluster {
        jobs_max: 0,
        jobs_per_worker_max: 1,
        drain_deadline: TTL,
        ttl: TTL,
        ..Cluster::example()
    };
    let stream = |number| Stream {
        name: StreamName::new(&format!("x{number}")).expect("a name"),
        weight: 1,
        dedicated: false,
    };
    let moves =
        Moves { per_round_max: 1_000, cooldown: Duration::ZERO, settle: Duration::from_millis(1) };
    let set = StreamSet {
        cluster: cluster(),
        streams: Arc::new((0..streams).map(stream).collect()),
        policy: Policy::Sticky,
        mode: Mode::Expiring,
        handover_deadline: TTL,
        moves,
    };
    Desired {
        clusters: [(cluster(), Arc::new(spec))].into(),
        sets: [(SetName::new("s").expect("a name"), Arc::new(set))].into(),
        ..Desired::default()
    }
}

/// A worker of the cluster.
pub(crate) fn worker(number: usize) -> WorkerKey {
    let worker = WorkerName::new(&format!("w{number}")).expect("a name");
    WorkerKey { cluster: cluster(), worker }
}

/// The first hello of its agent.
pub(crate) fn hello(worker: WorkerKey, incarnation: Incarnation) -> Hello {
    Hello { incarnation, ..Hello::example(worker) }
}

/// Term 1 begins, without a worker of a predecessor.
pub(crate) fn elected(now: Moment) -> Event {
    Event::Elected(Elected {
        epoch: Epoch(1),
        term: TermId(0),
        cell: None,
        until: now + TERM,
        predecessor_end: now,
        exposed: BTreeMap::new(),
        unreadable: Default::default(),
    })
}

/// What the platform answers at once to an order of term 1: nothing to those that need no answer.
pub(crate) fn answer(order: Order, now: Moment) -> Option<Event> {
    match order {
        Order::Register(entries) => Some(Event::Registered(entries)),
        Order::Confirm => {
            let (sent_at, until) = (now, now + TERM);
            Some(Event::Renewed(Renewed { epoch: Epoch(1), sent_at, until }))
        }
        _ => None,
    }
}

fn cluster() -> ClusterName {
    ClusterName::new("k").expect("a name")
}
