//! The clock that leases are counted by: it never jumps, and it goes on while the machine is
//! suspended.

use leasehold_types::Moment;
use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The moment now.
pub(crate) fn now() -> Moment {
    let time = clock_gettime(CLOCK);
    let secs = u64::try_from(time.tv_sec).expect("the time since the boot is not negative");
    let nanos = u64::try_from(time.tv_nsec).expect("a part of a second is not negative");
    Moment(secs * 1_000_000_000 + nanos)
}
