//! What a turn leads to: messages to agents, orders to the platform, and word to people.

use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::ConnId;
use leasehold_coordinator_core::view::Leadership;
use leasehold_types::message::{CoordinatorMessage, Refusal, RefusalReason};
use tokio::sync::mpsc;

use super::{Change, Command, Driver};
use crate::clock;

impl Driver {
    /// Carries out what the core wants.
    pub(super) fn carry_out(&mut self) {
        let now = clock::now();
        self.log.sum_up(now);
        while let Some(effect) = self.core.poll_effect() {
            self.progress.made();
            match effect {
                Effect::Send { conn, message } => self.send(conn, message),
                Effect::Close(conn) => {
                    self.sessions.remove(&conn);
                    self.metrics.set_sessions(self.sessions.len());
                }
                Effect::Order { epoch, order } => {
                    let term = self.gate.term();
                    if matches!(order, Order::StepDown { .. })
                        && term.is_some_and(|term| term.epoch == epoch)
                    {
                        self.gate.set(None);
                    }
                    self.outbox.push(Command::Order { epoch, order });
                }
                Effect::Notice(notice) => {
                    self.log.write(&notice, now);
                    self.metrics.count_notice(&notice, now);
                    self.history.note(Change::Notice(notice), &self.changes, now);
                }
            }
        }
    }

    fn send(&mut self, conn: ConnId, message: CoordinatorMessage) {
        self.metrics.count_sent(&message);
        let Some(slot) = self.sessions.get(&conn) else { return };
        match slot.try_send(Box::new(message)) {
            // A session that has just ended says so by itself.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                tracing::error!(conn = conn.0, "a second message before the first was sent");
                self.sessions.remove(&conn);
            }
        }
    }

    /// Tells a peer that was not asked for proof where the leader is. The core learns nothing of
    /// it: what such a peer says must not even raise an epoch.
    pub(super) fn send_away(&mut self, conn: ConnId) {
        let (reason, message) = match self.core.leadership() {
            Leadership::StandsBy(leader) => {
                (RefusalReason::NotLeader(leader), "this replica does not lead")
            }
            Leadership::Leads(_) => {
                (RefusalReason::GoAway, "this replica leads since a moment: dial again")
            }
        };
        let refusal = Refusal { reason, message: message.into() };
        self.send(conn, CoordinatorMessage::Refusal(refusal));
        self.sessions.remove(&conn);
    }
}
