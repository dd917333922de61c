//! The one place of this process that reads a clock. It counts a suspended host's sleep too, so
//! that no sleep stretches a lease.

use leasehold_types::Moment;
use rustix::time::{ClockId, clock_gettime};

/// The present moment by CLOCK_BOOTTIME; comparable only within this boot of this machine.
#[must_use]
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the time since boot is not negative");
    let nanos = u64::try_from(time.tv_nsec).expect("a part of a second is not negative");
    Moment(seconds * 1_000_000_000 + nanos)
}

/// Seconds since 1970 by the wall clock: only for what others have written down in such, as the end
/// of a token. No lease depends on it.
#[must_use]
pub fn unix_seconds() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_never_goes_back() {
        let mut last = super::now();
        for _ in 0..1_000 {
            let next = super::now();
            assert!(next >= last);
            last = next;
        }
    }
}
