//! A slot that becomes free goes to a worker that waits for one at once, and not with a later beat.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{
    Beat, CoordinatorMessage, Grant, HeldPool, Jobs, PoolGrant, Report,
};
use leasehold_types::{GrantNumber, Incarnation, Moment, Nonce};

use super::fixture::{answer, desired, elected, hello, worker};

/// An agent that applies every grant at once. It beats when the test says so.
#[derive(Default)]
struct Agent {
    nonce: Nonce,
    applied: GrantNumber,
    pool: Option<PoolGrant>,
    running: u32,
}

/// A leader of a cluster of 10 jobs, 4 for each worker. The connection of a worker has its number.
struct Fleet {
    core: Core,
    now: Moment,
    agents: BTreeMap<ConnId, Agent>,
}

impl Fleet {
    fn new() -> Self {
        let now = Moment(1_000_000_000);
        let mut fleet = Self { core: Core::new(Config::default()), now, agents: BTreeMap::new() };
        fleet.take(Event::Desired(Arc::new(budget())));
        fleet.take(elected(now));
        fleet.settle();
        fleet
    }

    fn take(&mut self, event: Event) {
        self.core.handle(event, self.now);
    }

    /// Lets the core act and the others answer, until nothing follows. No time passes.
    fn settle(&mut self) {
        loop {
            self.core.settle(self.now, self.now);
            let mut answered = false;
            while let Some(effect) = self.core.poll_effect() {
                answered |= self.answer(effect);
            }
            if !answered && !self.core.has_more() {
                return;
            }
        }
    }

    /// Answers an effect; returns whether it has an answer.
    fn answer(&mut self, effect: Effect) -> bool {
        match effect {
            Effect::Send { conn, message } => self.reach(conn, message),
            Effect::Order { order, .. } => match answer(order, self.now) {
                Some(event) => self.take(event),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    fn reach(&mut self, conn: ConnId, message: CoordinatorMessage) {
        let agent = self.agents.entry(conn).or_default();
        match message {
            CoordinatorMessage::Welcome(_) => {
                agent.nonce = Nonce(1);
                self.take(Event::Report(conn, Report::example()));
            }
            CoordinatorMessage::Grant(Grant { number, pool, .. }) => {
                agent.applied = number;
                agent.pool = pool.or(agent.pool);
            }
            CoordinatorMessage::Refusal(refusal) => panic!("{conn:?}: {refusal:?}"),
        }
        self.take(Event::Sent(conn));
    }

    /// A worker starts, and runs as many jobs as it may.
    fn join(&mut self, number: u64) {
        let hello = hello(worker(number as usize), Incarnation(1));
        self.take(Event::Hello(ConnId(number), hello, None));
        self.settle();
        self.beat(number, self.size(number));
    }

    /// A worker says what it has applied, and that so many jobs run.
    fn beat(&mut self, number: u64, running: u32) {
        let agent = self.agents.get_mut(&ConnId(number)).expect("a worker that has joined");
        (agent.nonce, agent.running) = (agent.nonce.next(), running);
        let held =
            |PoolGrant { token, size, floor }| HeldPool { token, size, granted: size, floor };
        let beat = Beat {
            nonce: agent.nonce,
            applied: agent.applied,
            pool: agent.pool.map(held),
            jobs: Jobs::Running(running),
            ..Beat::example()
        };
        self.take(Event::Beat(ConnId(number), beat));
        self.settle();
    }

    /// All workers say that their jobs go on.
    fn beat_all(&mut self) {
        let running: Vec<_> =
            self.agents.iter().map(|(conn, agent)| (conn.0, agent.running)).collect();
        running.into_iter().for_each(|(number, running)| self.beat(number, running));
    }

    /// The size of a worker's pool.
    fn size(&self, number: u64) -> u32 {
        let pool = self.agents.get(&ConnId(number)).and_then(|agent| agent.pool);
        pool.map_or(0, |pool| pool.size)
    }

    fn sizes(&self) -> Vec<u32> {
        self.agents.keys().map(|conn| self.size(conn.0)).collect()
    }
}

fn budget() -> Desired {
    let mut desired = desired(0);
    for cluster in desired.clusters.values_mut() {
        let cluster = Arc::make_mut(cluster);
        (cluster.jobs_max, cluster.jobs_per_worker_max) = (10, 4);
    }
    desired
}

/// Worker 2 gets two slots of three. When worker 3 joins, two are its share, and it lacks none.
#[test]
fn a_worker_that_lacks_nothing_by_now_uses_up_no_free_slot() {
    let mut fleet = Fleet::new();
    (0..3).for_each(|number| fleet.join(number));
    fleet.beat_all();
    assert_eq!(fleet.sizes(), [4, 3, 2], "worker 2 waits for a third one");
    fleet.join(3);
    fleet.beat_all();
    assert_eq!(fleet.sizes(), [3, 3, 2, 0], "all slots are in use");
    fleet.beat(0, 3);
    assert_eq!(fleet.sizes(), [3, 3, 2, 1], "worker 3 gets the slot of the job that has ended");
}
