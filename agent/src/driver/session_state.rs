//! What probes and metrics show of the session with the coordinator.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use leasehold_agent_core::Notice;
use leasehold_types::message::RefusalReason;

use crate::metrics::Metrics;

/// Keeps what readiness depends on up to date: whether the agent is connected, whether a
/// coordinator has answered, and why there is no session.
#[derive(Debug)]
pub(super) struct SessionState {
    metrics: Arc<Metrics>,
    dials: u64,
}

impl SessionState {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, dials: 0 }
    }

    /// The agent dials a coordinator.
    pub(super) fn dialled(&mut self) {
        self.dials += 1;
        self.disconnected();
        self.metrics.reconnects.store(self.dials - 1, Relaxed);
    }

    /// A link has ended, or was never opened.
    pub(super) fn closed(&self, address: &str, why: &str) {
        self.disconnected();
        self.metrics.answered.store(true, Relaxed);
        self.metrics.set_session_closed(format!("no session with {address}: {why}"));
    }

    /// The agent has no session.
    pub(super) fn disconnected(&self) {
        self.metrics.connected.store(false, Relaxed);
    }

    /// Applies a notice of the holder; `address` is the coordinator's.
    pub(super) fn observe(&self, notice: &Notice, address: &str) {
        match notice {
            Notice::Welcomed(epoch) => {
                self.metrics.connected.store(true, Relaxed);
                self.metrics.welcomed.store(true, Relaxed);
                self.metrics.answered.store(true, Relaxed);
                self.metrics.set_name_taken(None);
                self.metrics.set_session_refused(None);
                self.metrics.epoch.store(epoch.0, Relaxed);
            }
            Notice::Refused(reason, message) => self.refused(reason, message, address),
            Notice::Unlinked(_) | Notice::OtherCell { .. } => self.disconnected(),
            Notice::PoolGranted(..)
            | Notice::PoolRenewed(..)
            | Notice::PoolExpired(_)
            | Notice::NewerGeneration { .. }
            | Notice::StreamGranted(..)
            | Notice::StreamRevoked(..)
            | Notice::StreamKept(..)
            | Notice::StreamReleased(..)
            | Notice::StreamExpired(..)
            | Notice::JobBegan(_)
            | Notice::JobEnded(_)
            | Notice::DrainStarted
            | Notice::DrainOver(_)
            | Notice::Failing(_)
            | Notice::Recovered
            | Notice::JournalFailed(_)
            | Notice::ProtocolViolation(_)
            | Notice::IncarnationRaised(_) => {}
        }
    }

    fn refused(&self, reason: &RefusalReason, message: &str, address: &str) {
        self.disconnected();
        // The agent dials the leader next.
        if matches!(reason, RefusalReason::NotLeader(_)) {
            return;
        }
        if *reason == RefusalReason::NameTaken {
            self.metrics.set_name_taken(Some(message.into()));
        }
        self.metrics.answered.store(true, Relaxed);
        self.metrics.set_session_refused(Some(format!("{address} refused it: {message}")));
    }
}
