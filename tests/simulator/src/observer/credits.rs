//! Many agents at once (L8): a leader takes reports by credit, one that makes progress is not
//! deposed, and a fleet is served again after a failover within a time that grows linearly with it.
//!
//! Invariant: a welcome counts until its report is taken, its connection ends or it is old.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::effect::Effect;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::view::Presence;
use leasehold_types::message::CoordinatorMessage;
use leasehold_types::{Epoch, StreamKey};

use crate::observer::Checks;
use crate::system::clock::{MS, Real};

/// A welcome counts for at least this long.
const CREDIT_MIN: Real = 500 * MS;

/// Turns and messages that one agent costs until it is served.
const STEPS_EACH: Real = 8;

/// What leaders have welcomed, and which term must go on.
#[derive(Debug, Default)]
pub(crate) struct ReportCredits {
    /// The welcomes of each replica that have led to no report, by connection.
    out: BTreeMap<(usize, ConnId), Real>,
    /// How many hellos came on each connection. A second one is refused as if it were another
    /// connection; no session of the product's has two.
    hellos: BTreeMap<ConnId, u32>,
    /// Connections that are over for their replica.
    ended: BTreeSet<ConnId>,
    /// The term in which the system converged.
    settled: Option<Epoch>,
}

impl Checks<'_> {
    /// A replica's core takes an event: a report or an end gives a credit back.
    pub(crate) fn note_core_event(&mut self, replica: usize, event: &Event) {
        match event {
            Event::Report(conn, _) => self.end_credit(replica, *conn),
            Event::Closed(conn) => self.end_conn(replica, *conn),
            Event::Hello(conn, ..) => {
                *self.observer.credits.hellos.entry(*conn).or_default() += 1;
                // It stands for all earlier ones of this agent.
                let links = &self.view.network.links;
                let pod = |conn: ConnId| links.get(conn.0 as usize).map(|line| line.pod);
                let out = &mut self.observer.credits.out;
                out.retain(|(at, old), _| *at != replica || pod(*old) != pod(*conn));
            }
            Event::Elected(_) | Event::Deposed { .. } => {
                self.observer.credits.out.retain(|(at, _), _| *at != replica);
            }
            _ => {}
        }
    }

    /// Nothing more is said on a connection.
    fn end_conn(&mut self, replica: usize, conn: ConnId) {
        self.end_credit(replica, conn);
        self.observer.credits.ended.insert(conn);
    }

    /// A credit is free again.
    fn end_credit(&mut self, replica: usize, conn: ConnId) {
        self.observer.credits.out.remove(&(replica, conn));
    }

    /// A leader never welcomes more agents at once than may report. It counts from its decision,
    /// however long the turn is that follows. A welcome or a grant on a connection that is over
    /// is lost, and takes the place of one that would arrive (S10).
    pub(crate) fn check_credits(&mut self, replica: usize, effect: &Effect) {
        if let Effect::Send { conn, message } = effect
            && !matches!(message, CoordinatorMessage::Refusal(_))
            && self.observer.credits.ended.contains(conn)
            && self.observer.credits.hellos.get(conn) == Some(&1)
        {
            return self
                .fail("S10", || format!("c{replica} serves {conn:?}, which is over: {message:?}"));
        }
        let conn = match effect {
            Effect::Send { conn, message } => match message {
                CoordinatorMessage::Welcome(_) => *conn,
                CoordinatorMessage::Grant(_) => return,
                CoordinatorMessage::Refusal(_) => return self.end_credit(replica, *conn),
            },
            Effect::Close(conn) => return self.end_conn(replica, *conn),
            _ => return,
        };
        let (now, max) = (self.view.t, self.view.profile.small_reports_max());
        let credits = &mut self.observer.credits.out;
        credits.insert((replica, conn), now);
        credits.retain(|_, since| now - *since < CREDIT_MIN);
        let out = credits.keys().filter(|(at, _)| *at == replica).count();
        if out > max {
            self.fail("L8", || format!("c{replica} has welcomed {out} at once, {max} may report"));
        }
    }

    /// The system is unchanged: from now on the leader continues as long as it makes progress. By
    /// then no renewal waits for an answer that a fault lost.
    pub(crate) fn expect_leader(&mut self) {
        let leadership = self.view.profile.leadership.as_nanos() as Real;
        if self.view.t >= self.view.profile.safety + leadership {
            self.observer.credits.settled = Some(self.view.store.epoch);
        }
    }

    /// A leader that is expected to go on does.
    pub(crate) fn check_deposed(&mut self) {
        let epoch = self.view.store.epoch;
        if let Some(settled) = self.observer.credits.settled.filter(|settled| *settled != epoch) {
            self.fail("L8", || format!("the leader of {settled} was deposed without a reason"));
        }
    }

    /// L5: once the system is unchanged, the lease of an agent whose link lives is renewed, however
    /// much its leader has to send to others, as long as the leader's turns are short. An answer
    /// takes several turns: its beat waits for the end of one and is answered at the end of the
    /// next, and before that the message ahead of it must have been written. So a leader is excused
    /// that spent more than half of the lease in long turns.
    pub(crate) fn check_renewed(&mut self, pod: usize, stream: &StreamKey) {
        let ttl = self.view.profile.ttl_real();
        if self.view.t < self.view.profile.safety + 2 * ttl || self.view.was_stopped_lately(pod) {
            return;
        }
        let link = self.view.pods[pod].agent.as_ref().and_then(|agent| agent.link);
        let driver =
            link.map(|link| &self.view.replicas[self.view.network.links[link].replica].driver);
        let in_turns =
            driver.map_or(0, |driver| driver.time_in_turns(self.view.t - ttl, self.view.t));
        if in_turns > ttl / 2 {
            return;
        }
        let now = self.view.local_of_pod(pod);
        let node = &self.view.pods[pod];
        let over = node.disk.borrow().memory.renewed_until <= now;
        let lives = node.agent.as_ref().is_some_and(|agent| agent.holder.peek(now).connected);
        if over && lives {
            let detail = format!("p{pod} lost {stream:?}: no beat was answered for a lease");
            self.fail("L5", || detail);
        }
    }

    /// Another replica is about to take over: the leader may change.
    pub(crate) fn expect_failover(&mut self) {
        self.observer.credits.settled = None;
    }

    /// A fleet is served again within a bounded time after a failover.
    pub(crate) fn check_served_again(&mut self, waited: Real) {
        let fleet = self.view.living();
        let turn = self.view.profile.turns.longest() + self.view.profile.delay + MS;
        let each = turn * STEPS_EACH * fleet.len() as Real;
        // Its leader must be missed first, and its agents must find the next one.
        let leadership = self.view.profile.leadership.as_nanos() as Real;
        if waited < leadership * 2 + self.view.profile.ttl_real() * 4 + each {
            return;
        }
        let Some((leader, _)) = self.view.true_leader() else {
            return self.fail("L8", || "no replica leads".into());
        };
        let now = self.view.local_of_replica(leader);
        let core = self.view.replicas[leader].core.as_ref();
        let missing = fleet.into_iter().find(|pod| {
            let node = &self.view.pods[*pod];
            let view = core.and_then(|core| core.worker(&node.key, now));
            !node.leaving && view.is_none_or(|view| view.presence != Presence::Connected)
        });
        if let Some(pod) = missing {
            self.fail("L8", || format!("p{pod} is not served {waited} after a failover"));
        }
    }
}
