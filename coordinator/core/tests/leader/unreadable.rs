//! A leader that could not read what the workers of a namespace may hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Elected, Event, NamespacesRead};
use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{CoordinatorMessage, Hello, Refusal, RefusalReason};
use leasehold_types::{ClusterName, Epoch, Incarnation, LinkNumber, Moment, TermId, WorkerKey};

use super::fixture::{TTL, desired, hello, worker};

const EPOCH: Epoch = Epoch(4);

/// A leader of clusters `ci/builds` and `cd/builds` that could not read namespace `cd`.
struct Leader {
    core: Core,
    now: Moment,
    dials: u64,
}

fn cluster(namespace: &str) -> ClusterName {
    ClusterName::in_namespace(namespace, "builds").expect("a name")
}

fn key(namespace: &str, number: usize) -> WorkerKey {
    WorkerKey { cluster: cluster(namespace), ..worker(number) }
}

/// The entry of a worker that may run three jobs.
fn entry() -> Entry {
    let exposure =
        Exposure { incarnation: Incarnation(1), ttl: TTL, jobs_max: 3, ..Exposure::default() };
    Entry { epoch: Epoch(3), exposure }
}

impl Leader {
    fn new(exposed: BTreeMap<WorkerKey, Entry>) -> Self {
        let (mut core, now) = (Core::new(Config::default()), Moment(1_000_000_000_000));
        let mut both = desired(0);
        let spec = both.clusters.values().next().expect("a cluster").clone();
        both.clusters = ["ci", "cd"].map(|name| (cluster(name), spec.clone())).into();
        both.sets.clear();
        core.handle(Event::Desired(Arc::new(both)), now);
        let elected = Elected {
            epoch: EPOCH,
            term: TermId(0),
            cell: None,
            until: now + Duration::from_secs(600),
            predecessor_end: now,
            exposed,
            unreadable: ["cd".to_owned()].into(),
        };
        core.handle(Event::Elected(elected), now);
        Self { core, now, dials: 0 }
    }

    fn read(&mut self, epoch: Epoch, exposed: BTreeMap<WorkerKey, Entry>) {
        let namespaces = BTreeSet::from(["cd".to_owned()]);
        let read = NamespacesRead { epoch, namespaces, exposed };
        self.core.handle(Event::NamespacesRead(read), self.now);
        self.core.settle(self.now, self.now);
    }

    /// Why the agent of a worker is refused, if it is.
    fn refusal(&mut self, namespace: &str) -> Option<(RefusalReason, String)> {
        self.dials += 1;
        let hello = hello(key(namespace, 0), Incarnation(2));
        let hello = Hello { link: LinkNumber(self.dials), ..hello };
        self.core.handle(Event::Hello(ConnId(self.dials), hello, None), self.now);
        self.core.settle(self.now, self.now);
        let effects: Vec<_> = std::iter::from_fn(|| self.core.poll_effect()).collect();
        effects.into_iter().find_map(|effect| match effect {
            Effect::Send { message: CoordinatorMessage::Refusal(refusal), .. } => {
                let Refusal { reason, message, .. } = refusal;
                Some((reason, message))
            }
            _ => None,
        })
    }

    /// How many workers of a cluster have not reported.
    fn unreported(&self, namespace: &str) -> usize {
        let views = self.core.clusters(self.now);
        views.iter().find(|view| view.name == cluster(namespace)).expect("a cluster").unreported
    }
}

#[test]
fn its_agents_are_refused_until_it_is_read_and_those_of_others_are_not() {
    let mut leader = Leader::new([(key("ci", 1), entry())].into());
    let (reason, message) = leader.refusal("cd").expect("a refusal");
    assert_eq!(reason, RefusalReason::GoAway);
    assert!(message.contains("may not list the pods of namespace cd"), "{message}");
    assert_eq!(leader.refusal("ci"), None);

    leader.read(Epoch(3), [(key("cd", 1), entry())].into());
    assert!(leader.refusal("cd").is_some(), "what another term has read says nothing");
    leader.read(EPOCH, [(key("cd", 1), entry()), (key("cd", 2), entry())].into());
    assert_eq!((leader.unreported("ci"), leader.unreported("cd")), (1, 2));
    assert_eq!(leader.refusal("cd"), None);
}

#[test]
fn a_namespace_that_is_read_while_the_term_begins_is_entered_with_all_others() {
    let workers = 0..20_000;
    let exposed = workers.map(|number| (key("ci", number), entry())).collect();
    let mut leader = Leader::new(exposed);
    assert_eq!(
        leader.refusal("cd").map(|(reason, _)| reason),
        Some(RefusalReason::NotLeader(None))
    );
    leader.read(EPOCH, [(key("cd", 1), entry())].into());
    while leader.core.has_more() {
        leader.core.settle(leader.now, leader.now);
    }
    assert_eq!((leader.unreported("ci"), leader.unreported("cd")), (20_000, 1));
    assert_eq!(leader.refusal("cd"), None);
}
