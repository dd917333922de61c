//! Which of several waiting agents are welcomed.

use std::sync::Arc;

use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{CoordinatorMessage, Hello, RefusalReason};
use leasehold_types::{ClusterName, Incarnation, LinkNumber, Moment, WorkerKey};

use super::fixture::{desired, elected, hello, worker};

/// A leader that expects one report at a time, and the present time.
struct Leader {
    core: Core,
    now: Moment,
}

impl Leader {
    fn new() -> Self {
        let config = Config { reports_max: 1, small_reports_max: 1, ..Config::default() };
        let (mut core, now) = (Core::new(config), Moment(1_000_000_000));
        core.handle(Event::Desired(Arc::new(desired(10))), now);
        core.handle(elected(now), now);
        let mut leader = Self { core, now };
        leader.welcomed();
        leader
    }

    fn hello(&mut self, conn: u64, number: usize, incarnation: u64) {
        let hello = hello(worker(number), Incarnation(incarnation));
        self.core.handle(Event::Hello(ConnId(conn), hello, None), self.now);
    }

    /// The connections that are welcomed next.
    fn welcomed(&mut self) -> Vec<ConnId> {
        self.core.settle(self.now, self.now);
        let effects = std::iter::from_fn(|| self.core.poll_effect());
        effects
            .filter_map(|effect| match effect {
                Effect::Send { conn, message: CoordinatorMessage::Welcome(_) } => Some(conn),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn one_namespace_leaves_places_for_the_workers_of_others() {
    let config = Config { workers_per_namespace_max: 2, ..Config::default() };
    let (mut core, now) = (Core::new(config), Moment(1_000_000_000));
    let names = ["ci/builds", "ci/others", "cd/builds", "builds"];
    let names = names.map(|name| ClusterName::new(name).expect("a name"));
    let mut all = desired(10);
    let spec = all.clusters.values().next().expect("a cluster").clone();
    all.clusters = names.iter().map(|name| (name.clone(), spec.clone())).collect();
    all.sets.clear();
    core.handle(Event::Desired(Arc::new(all)), now);
    core.handle(elected(now), now);
    let mut conn = 0;
    let mut refusal = |name: &ClusterName, number: usize| {
        conn += 1;
        let key = WorkerKey { cluster: name.clone(), ..worker(number) };
        let hello = Hello { link: LinkNumber(conn), ..hello(key, Incarnation(1)) };
        core.handle(Event::Hello(ConnId(conn), hello, None), now);
        core.settle(now, now);
        let effects: Vec<_> = std::iter::from_fn(|| core.poll_effect()).collect();
        effects.into_iter().find_map(|effect| match effect {
            Effect::Send { conn: to, message: CoordinatorMessage::Refusal(refusal) } => {
                (to == ConnId(conn)).then_some(refusal)
            }
            _ => None,
        })
    };
    let [builds, others, of_another, without] = &names;
    assert_eq!(refusal(builds, 1), None);
    assert_eq!(refusal(others, 2), None);
    let refused = refusal(builds, 3).expect("one too many of the namespace");
    assert_eq!(refused.reason, RefusalReason::Limit);
    assert!(refused.message.contains("namespace ci has 2 workers"), "{}", refused.message);
    assert_eq!(refusal(builds, 1), None, "a worker that is there may connect again");
    for number in 1..4 {
        assert_eq!(refusal(without, number), None, "it has no namespace");
    }
    assert_eq!(refusal(of_another, 1), None);
}

#[test]
fn a_worker_that_is_gone_or_replaced_while_it_waits_is_not_welcomed() {
    let mut leader = Leader::new();
    leader.hello(1, 1, 7);
    assert_eq!(leader.welcomed(), [ConnId(1)]);
    leader.hello(2, 2, 7);
    leader.hello(3, 3, 7);
    leader.hello(4, 4, 7);
    assert_eq!(leader.welcomed(), [], "one report is on its way");
    leader.core.handle(Event::Gone(vec![worker(2)]), leader.now);
    leader.hello(5, 3, 8);
    assert_eq!(leader.welcomed(), []);
    leader.core.handle(Event::Closed(ConnId(1)), leader.now);
    assert_eq!(leader.welcomed(), [ConnId(4)]);
    leader.core.handle(Event::Closed(ConnId(4)), leader.now);
    assert_eq!(leader.welcomed(), [ConnId(5)]);
}
