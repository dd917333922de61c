//! Tells agents that are not served yet that they must wait, so that they can distinguish a leader
//! with many agents from one that hangs. A session that ends, or whose reader finds that the driver
//! makes no progress, sends nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Counts the sessions that were opened, and those that were served or have ended.
#[derive(Debug, Default)]
pub(super) struct Line {
    opened: AtomicU64,
    left: AtomicU64,
}

/// The place of a session in the line, until it is served or has ended.
#[derive(Debug)]
pub(super) struct Place {
    line: Arc<Line>,
    number: u64,
}

impl Line {
    /// The last place in the line.
    pub(super) fn join(self: &Arc<Self>) -> Place {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        Place { line: Arc::clone(self), number }
    }
}

impl Place {
    /// About how many sessions are served before this one: some may be served out of turn.
    fn ahead(&self) -> u64 {
        self.number.saturating_sub(self.line.left.load(Ordering::Relaxed))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.left.fetch_add(1, Ordering::Relaxed);
    }
}

/// A session that is not served yet.
#[derive(Debug)]
pub(super) struct WaitingSession {
    place: Place,
    /// When to send that it waits; none for an agent that did not ask for it.
    timer: Option<Interval>,
}

impl WaitingSession {
    /// A session that waits from now on, and is sent this at an interval, if its agent asks.
    pub(super) fn new(place: Place, interval: Option<Duration>) -> Self {
        let timer = interval.map(|interval| {
            let mut timer = interval_at(Instant::now() + interval, interval);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer
        });
        Self { place, timer }
    }

    /// Another message was sent.
    pub(super) fn note_sent(&mut self) {
        self.timer.iter_mut().for_each(Interval::reset);
    }

    /// About how many agents are before this one, when the agent must be sent that it waits.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        match &mut self.timer {
            None => Poll::Pending,
            Some(timer) => timer.poll_tick(cx).map(|_| self.place.ahead()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_does_not_ask_is_sent_nothing() {
        let interval = Duration::from_millis(1);
        let mut asks = WaitingSession::new(Arc::<Line>::default().join(), Some(interval));
        let mut other = WaitingSession::new(Arc::<Line>::default().join(), None);
        assert_eq!(std::future::poll_fn(|cx| asks.poll_due(cx)).await, 0);
        let waker = futures_util::task::noop_waker();
        assert_eq!(other.poll_due(&mut Context::from_waker(&waker)), Poll::Pending);
    }

    #[test]
    fn sessions_that_were_served_or_have_ended_are_no_longer_ahead() {
        let line = Arc::<Line>::default();
        let [first, second, third] = [(); 3].map(|()| line.join());
        assert_eq!([&first, &second, &third].map(Place::ahead), [0, 1, 2]);
        drop(second);
        assert_eq!(third.ahead(), 1);
        drop(first);
        assert_eq!((third.ahead(), line.join().ahead()), (0, 1));
    }
}
