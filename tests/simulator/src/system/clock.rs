//! Real time and the clocks of hosts, which drift from it.
//!
//! Invariant: no two clocks' rates are further apart than the protocol's bound on drift.

use fastrand::Rng;
use leasehold_types::Moment;

/// Nanoseconds of the simulation's own time, which no node sees.
pub(crate) type Real = u64;

/// A millisecond of [`Real`].
pub(crate) const MS: Real = 1_000_000;

/// One host's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: i128,
    ppm: i64,
}

impl Clock {
    /// A clock somewhere within the bound, most often at one of its ends.
    pub(crate) fn new(rng: &mut Rng, drift_ppm: u32) -> Self {
        // The fastest over the slowest, (1 + most) / (1 - most), stays within 1 + drift.
        let drift = i64::from(drift_ppm);
        let most = drift * 1_000_000 / (2_000_000 + drift);
        let ppm = match rng.u8(0..4) {
            0 => most,
            1 => -most,
            _ => rng.i64(-most..=most),
        };
        Self { offset: i128::from(rng.u64(1..1_000_000) * MS), ppm }
    }

    /// The host boots at `t`: it shows `uptime` then.
    pub(crate) fn boot(&mut self, t: Real, uptime: Real) {
        self.offset = i128::from(uptime) - self.run(t);
    }

    fn run(self, t: Real) -> i128 {
        i128::from(t) + i128::from(t) * i128::from(self.ppm) / 1_000_000
    }

    /// What it shows at `t`; the beginning of time before the host booted.
    pub(crate) fn local(self, t: Real) -> Moment {
        Moment(u64::try_from(self.offset + self.run(t)).unwrap_or_default())
    }

    /// The first moment of real time at which it shows `at` or more.
    pub(crate) fn real(self, at: Moment) -> Real {
        if at == Moment::NEVER {
            return Real::MAX;
        }
        let run = i128::from(at.0) - self.offset;
        let t = run * 1_000_000 / (1_000_000 + i128::from(self.ppm));
        // Both divisions cut a fraction off, so the first such moment may lie just before.
        let mut t = u64::try_from(t.max(0)).unwrap_or(u64::MAX).saturating_sub(2);
        while self.local(t) < at {
            t += 1;
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_reaches_a_moment_at_the_computed_time() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..1_000 {
            let clock = Clock::new(&mut rng, 50_000);
            let at = clock.local(rng.u64(0..1_000_000_000_000));
            let t = clock.real(at);
            assert!(clock.local(t) >= at);
            assert!(t == 0 || clock.local(t - 1) < at);
            let mut booted = clock;
            booted.boot(t, MS);
            assert_eq!(booted.local(t), Moment(MS));
            assert_eq!(booted.real(Moment(MS)), t);
        }
    }
}
