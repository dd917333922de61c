//! The moments of a driver's turn: from when a message counts, and the moment before which every
//! message has been handled. Every shell around a core uses these types, the simulator's too.
//!
//! Invariant: a message never counts from before it arrived, and a worker never counts as silent up
//! to a moment before which one of its messages may still wait.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_types::Moment;
use leasehold_types::mutation::{self, Mutation};

/// Events of the platform that are taken together in one turn.
pub const PLATFORM_BATCH_MAX: usize = 64;
/// Messages of sessions that are taken together in one turn.
const SESSION_BATCH_MAX: usize = 1_024;
/// How long a turn takes messages before the core settles them.
const TAKE_MAX: Duration = Duration::from_millis(10);
/// Between two ticks of a [`ReadWatermark`].
pub const WATERMARK_TICK: Duration = Duration::from_millis(25);
/// A gap between two ticks that means that the process was stopped or starved.
const STALL_MIN: Duration = Duration::from_millis(200);
/// How long after a stall messages that arrived during it are still being read.
const DRAIN_AFTER_STALL: Duration = Duration::from_millis(500);
/// After this many ticks every reader task has been scheduled at least once.
const TICKS_BEHIND: usize = 2;
/// How many ticks are stored.
const TICKS_MAX: usize = 64;

/// One turn of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    begun: Moment,
    /// When the turn began to take messages of sessions.
    takes_since: Option<Moment>,
    taken: usize,
}

impl Turn {
    /// A turn that begins now.
    #[must_use]
    pub fn begin(now: Moment) -> Self {
        Self { begun: now, takes_since: None, taken: 0 }
    }

    /// Whether one more message of a session may be taken in this turn, now.
    #[must_use]
    pub fn takes(&mut self, now: Moment) -> bool {
        let since = *self.takes_since.get_or_insert(now);
        let may = self.taken < SESSION_BATCH_MAX && now.since(since) < TAKE_MAX;
        self.taken += usize::from(may);
        may
    }

    /// The moment from which a message counts that was read from its connection at `arrived`.
    /// A clock that was read when the turn began may lie before the message was even sent.
    #[must_use]
    pub fn stamp(&self, arrived: Moment) -> Moment {
        if mutation::on(Mutation::StaleClock) { self.begun.min(arrived) } else { arrived }
    }
}

/// The moment before which all messages of a driver's queue were taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watermark(Moment);

impl Watermark {
    /// A message that was read at `arrived` was taken: those behind it were read later.
    pub fn took(&mut self, arrived: Moment) {
        self.0 = self.0.max(arrived);
    }

    /// The queue was found empty by a check that began at `looked`.
    pub fn emptied(&mut self, looked: Moment) {
        self.0 = self.0.max(looked);
    }

    /// The moment before which everything that arrived was taken, given that everything that
    /// arrived before `read` was read from its connection.
    #[must_use]
    pub fn heard(&self, read: Moment) -> Moment {
        self.0.min(read)
    }
}

/// Detects whether a driver makes progress, by checks of how much it has done, one every
/// [`Watchdog::INTERVAL`]. It counts checks and not time, because a process that was stopped for
/// long has made no checks either.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watchdog {
    seen: u64,
    still: u32,
}

impl Watchdog {
    /// The time between two checks.
    pub const INTERVAL: Duration = Duration::from_millis(100);
    /// Checks in a row without progress: one second.
    const STILL_MAX: u32 = 10;

    /// A driver that has done nothing for this long makes no progress.
    #[must_use]
    pub fn patience() -> Duration {
        Self::INTERVAL * Self::still_max()
    }

    /// Whether the driver makes progress; `done` counts what it has done until now.
    pub fn check(&mut self, done: u64) -> bool {
        self.still = if done == self.seen { self.still + 1 } else { 0 };
        self.seen = done;
        self.still < Self::still_max()
    }

    fn still_max() -> u32 {
        if mutation::on(Mutation::BusyLeaderDeposed) { 1 } else { Self::STILL_MAX }
    }
}

/// The moment before which everything that arrived at the process was read from its connection. The
/// watermark ticks on the readers' runtime: if they cannot run, it cannot tick.
#[derive(Clone, Debug)]
pub struct ReadWatermark {
    ticks: VecDeque<Moment>,
    drains_until: Moment,
    read: Moment,
}

impl ReadWatermark {
    /// A watermark that begins now: nothing is known of what came earlier.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        Self { ticks: [now].into(), drains_until: Moment::EARLIEST, read: Moment::EARLIEST }
    }

    /// One tick, about every [`WATERMARK_TICK`].
    pub fn tick(&mut self, now: Moment) {
        if self.ticks.back().is_some_and(|last| now.since(*last) >= STALL_MIN) {
            self.drains_until = now + DRAIN_AFTER_STALL;
        }
        self.ticks.push_back(now);
        if self.ticks.len() > TICKS_MAX {
            self.ticks.pop_front();
        }
        let latest = if now < self.drains_until { now - DRAIN_AFTER_STALL } else { now };
        let behind = self.ticks.iter().rev().skip(TICKS_BEHIND);
        // If the process stalls again and again, the moment lags behind but still advances.
        if let Some(read) = behind.copied().find(|tick| *tick <= latest) {
            self.read = self.read.max(read);
        }
    }

    /// Everything that had arrived before this moment was read.
    #[must_use]
    pub fn read(&self) -> Moment {
        self.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    #[test]
    fn a_message_before_a_beat_counts_as_read_two_beats_later() {
        let mut watermark = ReadWatermark::new(at(1_000));
        assert_eq!(watermark.read(), Moment::EARLIEST);
        watermark.tick(at(1_025));
        assert_eq!(watermark.read(), Moment::EARLIEST);
        watermark.tick(at(1_050));
        assert_eq!(watermark.read(), at(1_000));
        watermark.tick(at(1_075));
        assert_eq!(watermark.read(), at(1_025));
    }

    #[test]
    fn after_a_stop_messages_are_read_first() {
        let mut watermark = ReadWatermark::new(at(0));
        let mut now = 0;
        while now < 1_000 {
            now += 25;
            watermark.tick(at(now));
        }
        assert_eq!(watermark.read(), at(950));
        let back = 9_000;
        let mut now = back;
        while now < back + 500 {
            watermark.tick(at(now));
            assert!(watermark.read() <= at(1_000), "{:?} is known at {now}", watermark.read());
            now += 25;
        }
        watermark.tick(at(back + 500));
        assert_eq!(watermark.read(), at(back + 450));
    }

    #[test]
    fn a_process_that_always_stalls_hears_late_but_hears() {
        let mut watermark = ReadWatermark::new(at(0));
        for tick in 1..100 {
            watermark.tick(at(tick * 1_500));
            assert_eq!(watermark.read(), at(tick.saturating_sub(2) * 1_500));
        }
        let mut watermark = ReadWatermark::new(at(0));
        for tick in 1..100 {
            watermark.tick(at(tick * 200));
        }
        assert_eq!(watermark.read(), at(99 * 200 - 600));
    }

    #[test]
    fn a_driver_that_does_nothing_for_a_second_hangs_however_busy_it_was() {
        let mut watchdog = Watchdog::default();
        for done in 1..100 {
            assert!(watchdog.check(done));
        }
        for _ in 1..10 {
            assert!(watchdog.check(99));
        }
        assert!(!watchdog.check(99));
        assert!(watchdog.check(100));
    }

    #[test]
    fn a_watermark_stands_where_messages_wait_and_where_they_are_not_read() {
        let mut mark = Watermark::default();
        mark.emptied(at(100));
        assert_eq!(mark.heard(at(70)), at(70));
        mark.took(at(150));
        assert_eq!(mark.heard(at(900)), at(150));
        mark.took(at(140));
        assert_eq!(mark.heard(at(900)), at(150), "readers' messages cross a little");
    }
}
