//! Real time, which no node sees, and the clocks of nodes, which run at the bounds of drift.
//!
//! Invariant: the fastest clock over the slowest is just `1 + drift`.

use std::time::Duration;

use leasehold_types::{Moment, TimeBounds};

/// Milliseconds of real time since the world began.
pub(crate) type Real = u64;

/// What every clock shows when the world begins: no core takes it for "never".
const START_MS: u64 = 1_000_000;
const NANOS: u64 = 1_000_000;

/// A fifth: far more than real clocks drift, so that a missing allowance for it shows.
const DRIFT_PPM: u32 = 200_000;

/// How fast a node's clock runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rate {
    /// As real time.
    Slow,
    /// Faster by the whole drift.
    Fast,
}

/// What the cores are configured with.
pub(crate) const BOUNDS: TimeBounds =
    TimeBounds { drift_ppm: DRIFT_PPM, margin: Duration::from_millis(500) };

impl Rate {
    /// What the clock shows at `t`.
    pub(crate) fn local(self, t: Real) -> Moment {
        Moment((START_MS * NANOS) + t * self.nanos_per_ms())
    }

    /// The first millisecond at which it shows `at` or more; `None` for never.
    pub(crate) fn real(self, at: Moment) -> Option<Real> {
        (at != Moment::NEVER)
            .then(|| at.0.saturating_sub(START_MS * NANOS).div_ceil(self.nanos_per_ms()))
    }

    fn nanos_per_ms(self) -> u64 {
        match self {
            Self::Slow => NANOS,
            Self::Fast => NANOS + NANOS * u64::from(DRIFT_PPM) / 1_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_reaches_a_moment_at_the_computed_time() {
        for rate in [Rate::Slow, Rate::Fast] {
            for t in [0, 1, 999, 8_000] {
                assert_eq!(rate.real(rate.local(t)), Some(t));
                let soon = Moment(rate.local(t).0 + 1);
                assert_eq!(rate.real(soon), Some(t + 1), "not before it shows that");
            }
        }
        assert_eq!(Rate::Slow.real(Moment::NEVER), None);
    }
}
