//! The clock of leases: CLOCK_BOOTTIME. It runs on while the host is suspended and while the agent
//! restarts; a reboot resets it.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_types::Moment;
use rustix::time::{ClockId, clock_gettime};

/// The moment now.
pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).expect("the time since the boot is not negative");
    let nanos = u64::try_from(time.tv_nsec).expect("a part of a second is not negative");
    Moment(secs * 1_000_000_000 + nanos)
}

/// Milliseconds since 1970, for ordering incarnations only; 0 if the clock is before that.
pub(crate) fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
