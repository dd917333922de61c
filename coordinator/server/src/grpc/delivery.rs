//! Ends the connection of a peer that does not take a session's messages. HTTP/2 asks the session
//! for a message only while the peer has room for it, so the session itself never notices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_types::message::CoordinatorMessage;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::connections::WeakPeer;

/// How often a session is checked for a message that is not taken.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The checks in a row after which the peer counts as stalled: no more than 15 seconds.
const CHECKS_MIN: u64 = 2;
/// The bytes of a long message that a peer must take between two checks.
const BYTES_PER_CHECK: u64 = 256 * 1024;

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
    /// Weak, so that a connection that has ended frees its place at once.
    pub(super) peer: Option<WeakPeer>,
}

/// The streams of a port. One timer checks them all.
#[derive(Debug, Default)]
pub(super) struct Deliveries(Mutex<Vec<CheckedDelivery>>);

#[derive(Debug)]
struct CheckedDelivery {
    delivery: Delivery,
    /// The polls at the last check; none before the first one.
    seen: Option<u64>,
    /// The checks in a row that found nothing taken.
    checks: u64,
}

impl Deliveries {
    /// Checks the streams that are added until this is dropped.
    pub(super) fn start() -> Arc<Self> {
        let deliveries = Arc::<Self>::default();
        let checked = Arc::downgrade(&deliveries);
        tokio::spawn(async move {
            let mut checks = interval(CHECK_INTERVAL);
            checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                checks.tick().await;
                let Some(deliveries) = checked.upgrade() else { return };
                deliveries.lock().retain_mut(CheckedDelivery::check);
            }
        });
        deliveries
    }

    /// Checks this stream until it has ended. One whose session has ended must end in time, too.
    pub(super) fn add(&self, delivery: Delivery) {
        self.lock().push(CheckedDelivery { delivery, seen: None, checks: 0 });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CheckedDelivery>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CheckedDelivery {
    /// Ends the connection if its peer takes nothing. Returns whether to check the stream again.
    fn check(&mut self) -> bool {
        let Self { delivery, seen, checks } = self;
        if delivery.has_ended() {
            return false;
        }
        let polls = Some(delivery.progress.polls.load(Ordering::Relaxed));
        *checks = if polls == *seen && delivery.is_pending() { *checks + 1 } else { 0 };
        *seen = polls;
        let is_stalled = *checks >= delivery.progress.checks_max();
        if is_stalled {
            delivery.end_connection();
        }
        !is_stalled
    }
}

impl Delivery {
    /// Whether the stream has ended: it has the progress as long as it lasts.
    fn has_ended(&self) -> bool {
        Arc::strong_count(&self.progress) == 1
    }

    fn is_pending(&self) -> bool {
        let Some(slot) = self.slot.upgrade() else { return true };
        !self.progress.is_idle.load(Ordering::Relaxed) || slot.capacity() < slot.max_capacity()
    }

    fn end_connection(&self) {
        let Some(peer) = self.peer.as_ref().and_then(WeakPeer::upgrade) else { return };
        let address = peer.address();
        tracing::debug!(peer = %address, "connection dropped: its peer does not take its messages");
        peer.end_after(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that has its progress, and the messages on their way to it.
    struct Stream {
        progress: Arc<SendProgress>,
        slot: mpsc::Sender<Box<CoordinatorMessage>>,
        checked: CheckedDelivery,
    }

    fn stream() -> Stream {
        let (slot, _) = mpsc::channel(1);
        let progress = Arc::<SendProgress>::default();
        let delivery = Delivery { progress: progress.clone(), slot: slot.downgrade(), peer: None };
        Stream { progress, slot, checked: CheckedDelivery { delivery, seen: None, checks: 0 } }
    }

    #[test]
    fn a_stream_with_nothing_to_send_waits_for_nothing_until_its_session_ends() {
        let Stream { progress, slot, checked: CheckedDelivery { delivery, .. } } = stream();
        progress.note_poll(true);
        assert!(!delivery.is_pending());
        progress.note_poll(false);
        assert!(delivery.is_pending());
        progress.note_poll(true);
        drop(slot);
        assert!(delivery.is_pending(), "the end of the stream is still to come");
    }

    #[test]
    fn a_peer_stalls_if_it_takes_nothing_for_two_intervals() {
        let mut stream = stream();
        stream.progress.note_poll(false);
        assert!(stream.checked.check(), "the first check only notes what was taken");
        assert!(stream.checked.check());
        stream.progress.note_poll(false);
        assert!(stream.checked.check(), "it has taken a message");
        assert!(stream.checked.check());
        assert!(!stream.checked.check());
    }

    #[test]
    fn a_stream_that_has_ended_is_not_checked_any_more() {
        let Stream { progress, mut checked, .. } = stream();
        assert!(checked.check());
        drop(progress);
        assert!(!checked.check());
    }

    #[test]
    fn a_long_message_may_take_longer() {
        let progress = SendProgress::default();
        assert_eq!(progress.checks_max(), 2);
        progress.note_message(1024 * 1024);
        assert_eq!(progress.checks_max(), 6);
    }
}
