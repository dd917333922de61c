//! The end of leadership, and what waits for its renewal.
//!
//! Some decisions are safe only once leadership was renewed by a request that was sent after a
//! certain moment: a grant to an agent that remembers no epoch, and whatever a worker's silence
//! frees. They wait here, and are tried again after each renewal.
//!
//! Invariant: after a turn in which anything waits, a renewal is requested.

use std::collections::BTreeSet;

use leasehold_types::{Moment, WorkerKey};

use super::timers::Timer;

/// When leadership ends, and what waits for its renewal.
#[derive(Clone, Debug)]
pub(super) struct Renewal {
    /// Leadership ends then unless it is renewed.
    until: Moment,
    /// A renewal was requested, and has not succeeded yet.
    is_requested: bool,
    waiting: AwaitingRenewal,
}

/// What waits for a renewal.
#[derive(Clone, Debug, Default)]
pub(super) struct AwaitingRenewal {
    /// Workers that are granted nothing before a renewal that is requested after their hello.
    pub(super) workers: BTreeSet<WorkerKey>,
    /// Timers whose handlers free something once their moment is confirmed.
    pub(super) timers: BTreeSet<Timer>,
}

impl Renewal {
    /// Leadership that lasts until then, and for which nothing waits.
    pub(super) fn new(until: Moment) -> Self {
        Self { until, is_requested: false, waiting: AwaitingRenewal::default() }
    }

    /// When leadership ends unless it is renewed.
    pub(super) fn until(&self) -> Moment {
        self.until
    }

    /// A worker's grants wait for a renewal.
    pub(super) fn delay_grants(&mut self, key: WorkerKey) {
        self.waiting.workers.insert(key);
    }

    /// A timer is set again after a renewal.
    pub(super) fn delay(&mut self, timer: Timer) {
        self.waiting.timers.insert(timer);
    }

    /// Whether a renewal is to be requested now, because something waits for one and none is
    /// requested.
    pub(super) fn begin_request(&mut self) -> bool {
        let AwaitingRenewal { workers, timers } = &self.waiting;
        let waits = !workers.is_empty() || !timers.is_empty();
        let begins = waits && !self.is_requested;
        self.is_requested |= begins;
        begins
    }

    /// Leadership was renewed until then. Returns what has waited for that.
    pub(super) fn succeed(&mut self, until: Moment) -> AwaitingRenewal {
        self.until = self.until.max(until);
        self.is_requested = false;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_renewal_is_requested_for_all_that_waits_and_returns_it() {
        let mut renewal = Renewal::new(Moment(10));
        assert!(!renewal.begin_request(), "nothing waits");
        renewal.delay(Timer::Heal);
        assert!(renewal.begin_request());
        renewal.delay(Timer::AskTerm);
        assert!(!renewal.begin_request(), "one is requested");
        let waited = renewal.succeed(Moment(30));
        assert_eq!(waited.timers, [Timer::Heal, Timer::AskTerm].into());
        assert_eq!(renewal.until(), Moment(30));
        assert!(!renewal.begin_request(), "nothing waits any longer");
        renewal.succeed(Moment(20));
        assert_eq!(renewal.until(), Moment(30), "an older answer shortens nothing");
    }
}
