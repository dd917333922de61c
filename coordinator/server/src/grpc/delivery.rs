//! Ends the connection of a peer that does not take a session's messages. HTTP/2 asks the session
//! for a message only while the peer has room for it, so the session itself never notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::Shared;
use leasehold_types::message::CoordinatorMessage;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::connections::Peer;

/// How often a session is checked for a message that is not taken.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The checks in a row after which the peer counts as stalled: no more than 15 seconds.
const CHECKS_MIN: u64 = 2;
/// The bytes of a long message that a peer must take between two checks.
const BYTES_PER_CHECK: u64 = 256 * 1024;

/// Resolves when the stream to the peer has ended.
pub(super) type StreamEnd = Shared<oneshot::Receiver<()>>;

/// What the sending side of a session has done.
#[derive(Debug, Default)]
pub(super) struct SendProgress {
    /// How often HTTP/2 had room for a message.
    polls: AtomicU64,
    /// The length of the last message.
    bytes: AtomicU64,
    /// Whether all messages were taken when HTTP/2 last had room.
    is_idle: AtomicBool,
}

impl SendProgress {
    /// Notes that HTTP/2 has asked for a message, and whether there was none.
    pub(super) fn note_poll(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Relaxed);
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the length of a message that HTTP/2 gets.
    pub(super) fn note_message(&self, bytes: usize) {
        self.bytes.store(bytes as u64, Ordering::Relaxed);
    }

    fn checks_max(&self) -> u64 {
        CHECKS_MIN + self.bytes.load(Ordering::Relaxed) / BYTES_PER_CHECK
    }
}

/// One session's stream to its peer.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) progress: Arc<SendProgress>,
    /// The messages on their way to the stream; nobody has them once the session has ended.
    pub(super) slot: mpsc::WeakSender<Box<CoordinatorMessage>>,
    pub(super) end: StreamEnd,
    pub(super) peer: Option<Peer>,
}

impl Delivery {
    /// Watches the stream until it has ended. A stream whose session has ended must end in time,
    /// too.
    pub(super) async fn watch(self) {
        let (mut seen, mut checks) = (0, 0);
        while timeout(CHECK_INTERVAL, self.end.clone()).await.is_err() {
            let polls = self.progress.polls.load(Ordering::Relaxed);
            checks = if polls == seen && self.is_pending() { checks + 1 } else { 0 };
            seen = polls;
            if checks >= self.progress.checks_max() {
                return self.end_connection();
            }
        }
    }

    fn is_pending(&self) -> bool {
        let Some(slot) = self.slot.upgrade() else { return true };
        !self.progress.is_idle.load(Ordering::Relaxed) || slot.capacity() < slot.max_capacity()
    }

    fn end_connection(&self) {
        let Some(peer) = &self.peer else { return };
        let address = peer.address();
        tracing::debug!(peer = %address, "connection dropped: its peer does not take its messages");
        peer.end_after(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn delivery() -> (Delivery, mpsc::Sender<Box<CoordinatorMessage>>, oneshot::Sender<()>) {
        let (slot, _) = mpsc::channel(1);
        let (alive, gone) = oneshot::channel();
        let (progress, end) = (Arc::default(), gone.shared());
        (Delivery { progress, slot: slot.downgrade(), end, peer: None }, slot, alive)
    }

    #[test]
    fn a_stream_with_nothing_to_send_waits_for_nothing_until_its_session_ends() {
        let (delivery, slot, _alive) = delivery();
        delivery.progress.note_poll(true);
        assert!(!delivery.is_pending());
        delivery.progress.note_poll(false);
        assert!(delivery.is_pending());
        delivery.progress.note_poll(true);
        drop(slot);
        assert!(delivery.is_pending(), "the end of the stream is still to come");
    }

    #[test]
    fn a_long_message_may_take_longer() {
        let progress = SendProgress::default();
        assert_eq!(progress.checks_max(), 2);
        progress.note_message(1024 * 1024);
        assert_eq!(progress.checks_max(), 6);
    }
}
