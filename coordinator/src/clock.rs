//! The one place of this process that reads clocks. Leases count by one that runs on while a host
//! sleeps, so that no sleep stretches a lease; only certificates count by the time of day.

use leasehold_types::Moment;
use rustix::time::{ClockId, clock_gettime};
use rustls_pki_types::UnixTime;

/// The present moment by CLOCK_BOOTTIME; comparable only within this boot of this machine.
#[must_use]
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the time since boot is not negative");
    let nanos = u64::try_from(time.tv_nsec).expect("a part of a second is not negative");
    Moment(seconds * 1_000_000_000 + nanos)
}

/// The time of day, for the validity of certificates and tokens and for nothing else: it can be
/// wrong, and it can go back. No lease depends on it.
#[must_use]
pub fn time_of_day() -> UnixTime {
    let seconds = clock_gettime(ClockId::Realtime).tv_sec;
    let seconds = u64::try_from(seconds).unwrap_or_default();
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
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
