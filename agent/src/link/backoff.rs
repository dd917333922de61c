//! How long to wait before a dial: the first at once, then full jitter below a doubling bound, so
//! that a thousand agents that lost one coordinator do not come back in step.

use std::time::Duration;

/// The bound before the second attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The bound that no attempt exceeds.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The wait before the dial after `attempt` failures in a row.
pub(super) fn delay(attempt: u32) -> Duration {
    let nanos = u64::try_from(bound(attempt).as_nanos()).expect("two seconds fit");
    Duration::from_nanos(fastrand::u64(0..=nanos))
}

fn bound(attempt: u32) -> Duration {
    match attempt.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => BACKOFF_MIN.saturating_mul(1 << doublings.min(16)).min(BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_dial_goes_out_at_once_and_the_bound_doubles_up_to_two_seconds() {
        assert_eq!(delay(0), Duration::ZERO);
        let bounds: Vec<u128> = (1..=9).map(|attempt| bound(attempt).as_millis()).collect();
        assert_eq!(bounds, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
        assert_eq!(bound(u32::MAX), BACKOFF_MAX);
        assert!((0..100).all(|_| delay(1) <= BACKOFF_MIN));
    }
}
