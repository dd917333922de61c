//! Runs the core's effects: messages to agents, orders to the platform, and notices to people.

use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::ConnId;
use leasehold_types::Moment;
use leasehold_types::message::CoordinatorMessage;
use tokio::sync::mpsc;

use super::{Command, Driver, FleetChange};
use crate::clock;
use crate::metrics::TurnCounts;

impl Driver {
    /// Runs the effects that the core has queued.
    pub(super) fn run_effects(&mut self) {
        let now = clock::now();
        // Before a message is sent: one that has arrived is counted.
        self.metrics.count_turn(&TurnCounts::of(self.core.effects()));
        self.log.flush_summary(now);
        while let Some(effect) = self.core.poll_effect() {
            self.progress.record();
            match effect {
                Effect::Send { conn, message } => self.send(conn, message, now),
                Effect::Close(conn) => {
                    self.sessions.remove(&conn);
                    self.metrics.set_sessions(self.sessions.len());
                }
                Effect::Order { epoch, order } => {
                    let term = self.term_guard.term();
                    if matches!(order, Order::StepDown { .. })
                        && term.is_some_and(|term| term.epoch == epoch)
                    {
                        self.term_guard.set(None);
                    }
                    self.outbox.push(Command::Order { epoch, order });
                }
                Effect::Notice(notice) => {
                    self.log.write(&notice, now);
                    self.cluster_changes.record_notice(&notice);
                    self.metrics.count_notice(&notice, now);
                    self.history.note(FleetChange::Notice(notice), &self.changes, now);
                }
            }
        }
        self.log.flush_pools(now, !self.core.has_more());
    }

    fn send(&mut self, conn: ConnId, message: CoordinatorMessage, now: Moment) {
        if let CoordinatorMessage::Refusal(refusal) = &message {
            self.metrics.refused(&refusal.reason);
        }
        let Some(slot) = self.sessions.get_mut(&conn) else { return };
        if let CoordinatorMessage::Grant(grant) = &message {
            slot.note_grant(grant, now, |worker| self.change_trace.push(conn, worker, grant));
        }
        match slot.try_send(message) {
            // The session has just ended; its event is on its way.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                tracing::error!(
                    conn = conn.0,
                    "the core sent a second message before the first one was written"
                );
                self.sessions.remove(&conn);
            }
        }
    }
}
