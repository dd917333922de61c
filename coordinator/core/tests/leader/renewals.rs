//! The beats of all agents are answered, even if some agents are sent many changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{Beat, CoordinatorMessage, Grant, Report, StreamGrant, StreamState};
use leasehold_types::{GrantNumber, Incarnation, Moment, Nonce};

use super::fixture::{TERM, answer, desired, elected, hello, worker};

const AGENTS: usize = 8;
const STREAMS: usize = 320;
/// The units of work of a turn, which grant few of the streams.
const SLICE: u32 = 64;

/// One agent, as a leader sees it.
#[derive(Default)]
struct Agent {
    nonce: Nonce,
    echoed: Nonce,
    applied: GrantNumber,
    /// Streams that were granted, and those that were revoked.
    streams: usize,
    revoked: usize,
}

struct World {
    core: Core,
    now: Moment,
    agents: BTreeMap<ConnId, Agent>,
}

impl World {
    /// A leader whose agents have said hello. Its turns do this many units of work.
    fn with_agents(slice: u32) -> Self {
        let core = Core::new(Config { slice, ..Config::default() });
        let mut world = World { core, now: Moment(1_000_000_000), agents: BTreeMap::new() };
        world.take(Event::Desired(Arc::new(desired(0))));
        world.take(elected(world.now));
        for agent in 0..AGENTS {
            let incarnation = Incarnation(agent as u64 + 1);
            let hello = hello(worker(agent), incarnation);
            world.take(Event::Hello(ConnId(agent as u64), hello, None));
        }
        world
    }

    fn take(&mut self, event: Event) {
        self.core.handle(event, self.now);
    }

    /// One turn, and the agents' answers.
    fn turn(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        self.core.settle(self.now, self.now);
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Send { conn, message } => self.reach(conn, message),
                Effect::Order { order, .. } => {
                    answer(order, self.now).into_iter().for_each(|event| self.take(event));
                }
                _ => {}
            }
        }
    }

    fn reach(&mut self, conn: ConnId, message: CoordinatorMessage) {
        let agent = self.agents.entry(conn).or_default();
        match message {
            CoordinatorMessage::Welcome(_) => {
                agent.nonce = Nonce(1);
                self.take(Event::Report(conn, Report::example()));
            }
            CoordinatorMessage::Grant(Grant { number, nonce, streams, .. }) => {
                (agent.applied, agent.echoed) = (number, nonce);
                let is_revoked =
                    |stream: &&StreamGrant| matches!(stream.state, StreamState::Revoked { .. });
                let revoked = streams.iter().filter(is_revoked).count();
                agent.streams += streams.len() - revoked;
                agent.revoked += revoked;
            }
            CoordinatorMessage::Refusal(refusal) => panic!("{conn:?}: {refusal:?}"),
        }
        self.take(Event::Sent(conn));
    }

    fn beat_all(&mut self) {
        let mut beats = Vec::new();
        for (conn, agent) in &mut self.agents {
            agent.nonce = agent.nonce.next();
            let beat = Beat { nonce: agent.nonce, applied: agent.applied, ..Beat::example() };
            beats.push((*conn, beat));
        }
        beats.into_iter().for_each(|(conn, beat)| self.take(Event::Beat(conn, beat)));
    }
}

#[test]
fn every_beat_is_answered_while_there_is_much_to_grant() {
    let mut world = World::with_agents(SLICE);
    (0..200).for_each(|_| world.turn());
    let live = world.agents.values().filter(|agent| agent.applied > GrantNumber(0)).count();
    assert_eq!(live, AGENTS);

    world.take(Event::Desired(Arc::new(desired(STREAMS))));
    let owned = |world: &World| world.agents.values().map(|agent| agent.streams).sum::<usize>();
    let mut granting = 0;
    for turn in 0..10_000 {
        world.beat_all();
        let before = owned(&world);
        world.turn();
        granting += usize::from(owned(&world) > before);
        for (conn, agent) in &world.agents {
            assert_eq!(agent.echoed, agent.nonce, "{conn:?} waits in turn {turn}");
        }
        if owned(&world) == STREAMS {
            assert!(granting > 4, "it was all granted in {granting} turns: no beat had to wait");
            return;
        }
    }
    panic!("{} of {STREAMS} streams are granted", owned(&world));
}

/// No beat is needed for it, which may be seconds away.
#[test]
fn what_one_message_has_no_room_for_follows_once_that_is_written() {
    /// More for each agent than one message has room for.
    const MANY: usize = AGENTS * 3_000;
    // All of it is decided in one turn.
    let mut world = World::with_agents(u32::MAX);
    (0..200).for_each(|_| world.turn());
    let sums = [|agent: &Agent| agent.streams, |agent: &Agent| agent.revoked];
    for (streams, sum) in [MANY, 0].into_iter().zip(sums) {
        world.take(Event::Desired(Arc::new(desired(streams))));
        let mut turns = 0;
        while world.agents.values().map(sum).sum::<usize>() < MANY {
            world.turn();
            turns += 1;
            assert!(turns < 4_000, "{streams} streams: the rest is not sent");
        }
    }
}

/// The agent has never had the order, so the worker never drained.
#[test]
fn an_order_to_drain_that_was_never_sent_leaves_no_trace() {
    let mut world = World::with_agents(SLICE);
    (0..200).for_each(|_| world.turn());
    world.take(Event::Drain(worker(0)));
    world.take(Event::Undrain(worker(0)));
    world.turn();
    let long_after = world.now + TERM * 1_000;
    let found = world.core.worker(&worker(0), long_after).expect("a worker");
    assert!(!found.drain_ordered && found.drain_overdue.is_none(), "{found:?}");
}
