//! Takes the events of sessions into the core.

use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::turn::Turn;
use leasehold_types::message::{AgentMessage, DrainPhase};
use leasehold_types::{Moment, WorkerKey};

use super::Driver;
use crate::clock;
use crate::port::{Envelope, SessionEvent, SessionSlot};

impl Driver {
    /// Takes one event of a session. Returns the number of events that the core got.
    pub(super) fn take_envelope(&mut self, envelope: Envelope, turn: &Turn) -> usize {
        let Envelope { conn, arrived, event, permit, bytes } = envelope;
        self.taken.took(arrived);
        let at = turn.stamp(arrived);
        let taken = match event {
            SessionEvent::Opened(slot) => {
                self.sessions.insert(conn, slot);
                0
            }
            SessionEvent::Closed => {
                self.sessions.remove(&conn);
                self.take(Event::Closed(conn), at)
            }
            // The core has closed the session: later events are dropped.
            SessionEvent::Hello(..) | SessionEvent::Agent(_)
                if !self.sessions.contains_key(&conn) =>
            {
                0
            }
            SessionEvent::Hello(..) if self.has_disconnected(conn) => self.close(conn, at),
            SessionEvent::Agent(message) if self.will_be_resent(conn, &message) => {
                self.close(conn, at)
            }
            SessionEvent::Hello(hello, peer) => {
                if let Some(slot) = self.sessions.get_mut(&conn) {
                    let (cluster, worker) = (hello.cluster.clone(), hello.worker.clone());
                    slot.set_worker(WorkerKey { cluster, worker });
                }
                self.take(Event::Hello(conn, hello, peer), at)
            }
            // Servers use `SessionEvent::Hello`, which has the peer; tests use this one.
            SessionEvent::Agent(AgentMessage::Hello(hello)) => {
                self.take(Event::Hello(conn, hello, None), at)
            }
            SessionEvent::Agent(AgentMessage::Report(report)) => {
                self.take(Event::Report(conn, report), at)
            }
            SessionEvent::Agent(AgentMessage::Beat(beat)) => {
                let slot = self.sessions.get_mut(&conn);
                let applied = slot.and_then(|slot| slot.take_applied(&beat, arrived));
                if let Some((took, push)) = applied {
                    self.metrics.record_push(took, push);
                }
                self.take(Event::Beat(conn, beat), at)
            }
        };
        self.metrics.set_sessions(self.sessions.len());
        drop((permit, bytes));
        taken
    }

    /// Takes the sessions whose last message is written. Returns the number of events that the core
    /// got.
    pub(super) fn take_sent(&mut self) -> usize {
        let now = clock::now();
        let mut events = 0;
        for conn in self.sent.take() {
            // The core has closed the others.
            if self.sessions.contains_key(&conn) {
                events += self.take(Event::Sent(conn), now);
            }
        }
        events
    }

    /// Whether the agent has disconnected since it sent this, and will send it again when it
    /// reconnects. An agent may report only once that it leaves.
    fn will_be_resent(&self, conn: ConnId, message: &AgentMessage) -> bool {
        let is_repeated = match message {
            AgentMessage::Hello(_) => true,
            AgentMessage::Report(report) => report.drain != DrainPhase::Leaving,
            AgentMessage::Beat(_) => false,
        };
        is_repeated && self.has_disconnected(conn)
    }

    fn has_disconnected(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(SessionSlot::is_closed)
    }

    fn close(&mut self, conn: ConnId, at: Moment) -> usize {
        self.sessions.remove(&conn);
        self.take(Event::Closed(conn), at)
    }
}
