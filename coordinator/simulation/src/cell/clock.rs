//! The clock of the cores. It runs slower than the simulated time while nothing but beats and
//! renewals happens: the cores see only differences of its moments, so for them the idle time is
//! shorter, and fewer of both are simulated.
//!
//! **Invariant**: it never goes back.

use leasehold_types::Moment;

/// Relates the cores' clock to the simulated time.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoresClock {
    /// A moment of the simulated time, and the same of the cores' clock.
    simulated: Moment,
    cores: Moment,
    /// The simulated seconds in a second of the cores' clock, at least 1.
    slowdown: u32,
}

impl CoresClock {
    /// A clock that shows the simulated time.
    pub(super) fn new(now: Moment) -> Self {
        Self { simulated: now, cores: now, slowdown: 1 }
    }

    /// Whether it runs as fast as the simulated time.
    pub(super) fn is_exact(&self) -> bool {
        self.slowdown == 1
    }

    /// What the cores' clock shows at a simulated moment, which is not before the last change of
    /// its speed.
    pub(super) fn shown_at(&self, simulated: Moment) -> Moment {
        self.cores + simulated.since(self.simulated) / self.slowdown
    }

    /// The first simulated moment at which the cores' clock shows this.
    pub(super) fn reaches(&self, cores: Moment) -> Moment {
        self.simulated + cores.since(self.cores).saturating_mul(self.slowdown)
    }

    /// From now on a second of the cores' clock has this many simulated seconds.
    pub(super) fn set_slowdown(&mut self, slowdown: u32, now: Moment) {
        *self = Self { simulated: now, cores: self.shown_at(now), slowdown };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slow_clock_shows_a_part_of_the_time_and_goes_on_from_there() {
        let at = |seconds: u64| Moment(1_000) + Duration::from_secs(seconds);
        let mut clock = CoresClock::new(at(0));
        clock.set_slowdown(10, at(5));
        assert_eq!((clock.shown_at(at(5)), clock.shown_at(at(25))), (at(5), at(7)));
        assert_eq!(clock.reaches(at(7)), at(25));
        clock.set_slowdown(1, at(25));
        assert!(clock.is_exact());
        assert_eq!((clock.shown_at(at(26)), clock.reaches(at(9))), (at(8), at(27)));
        assert_eq!(clock.reaches(at(3)), at(25), "what has passed is due");
    }
}
