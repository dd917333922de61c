//! The sessions whose last message is written. Nobody waits for most of them: the driver takes
//! these in its next turn, whatever that is for. It is woken only while a message waits for one.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_coordinator_core::event::ConnId;
use tokio::sync::Notify;

/// The queue of these sessions. Each is in it at most once: its next message is sent once the
/// driver has taken it.
#[derive(Debug, Default)]
pub struct SentQueue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    sent: Vec<ConnId>,
    /// Whether the driver waits for the next one.
    is_awaited: bool,
}

impl SentQueue {
    /// The last message of this session is written.
    pub fn push(&self, conn: ConnId) {
        let is_awaited = {
            let mut state = self.lock();
            state.sent.push(conn);
            state.is_awaited
        };
        if is_awaited {
            self.wake.notify_one();
        }
    }

    /// Takes all sessions, in the order in which their messages were written. The driver is not
    /// woken before it waits again.
    pub fn take(&self) -> Vec<ConnId> {
        let sent = {
            let mut state = self.lock();
            state.is_awaited = false;
            std::mem::take(&mut state.sent)
        };
        // A wake-up for these that nobody has waited for.
        pin!(self.wake.notified()).enable();
        sent
    }

    /// Waits until there is a session, if the driver waits for any.
    pub(crate) async fn awaited(&self, is_awaited: bool) {
        let is_there = {
            let mut state = self.lock();
            state.is_awaited = is_awaited;
            is_awaited && !state.sent.is_empty()
        };
        if !is_there {
            self.wake.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_driver_is_woken_only_if_a_message_waits() {
        let queue = SentQueue::default();
        assert!(queue.awaited(false).now_or_never().is_none());
        queue.push(ConnId(1));
        assert!(queue.awaited(false).now_or_never().is_none(), "nothing waits for it");
        assert!(queue.awaited(true).now_or_never().is_some(), "written before it was waited for");
        assert_eq!(queue.take(), [ConnId(1)]);
        assert!(queue.awaited(true).now_or_never().is_none());
        queue.push(ConnId(2));
        assert!(queue.awaited(true).now_or_never().is_some());
        assert_eq!(queue.take(), [ConnId(2)]);
        queue.push(ConnId(3));
        assert_eq!(queue.take(), [ConnId(3)]);
        assert!(queue.awaited(false).now_or_never().is_none(), "written while it was awake");
    }
}
