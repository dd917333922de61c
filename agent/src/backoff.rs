//! The agent's backoff: exponential and bounded waits between attempts. The caller counts the
//! failures in a row.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::Instant;

/// After this many doublings the wait stays the longest one.
const DOUBLINGS_MAX: usize = 16;

/// A sequence of waits.
#[derive(Debug)]
pub(crate) struct Backoff(ExponentialBuilder);

/// Between dials: jitter up to twice the delay, so that a thousand agents that lost one coordinator
/// do not return at the same time. No wait exceeds two seconds.
pub(crate) const DIAL: Backoff =
    Backoff(waits(Duration::from_millis(10), Duration::from_secs(1)).with_jitter());
/// Between attempts to follow who leads at another replica, with jitter up to twice the delay: each
/// costs a coordinator a connection, in vain if it is alone or of an earlier release.
pub(crate) const WATCH: Backoff =
    Backoff(waits(Duration::from_secs(3), Duration::from_secs(300)).with_jitter());
/// After failed writes and calls on this machine.
pub(crate) const RETRY: Backoff =
    Backoff(waits(Duration::from_millis(250), Duration::from_secs(10)));
/// Between restarts of programs that have exited.
pub(crate) const RESTART: Backoff =
    Backoff(waits(Duration::from_millis(100), Duration::from_secs(30)));
/// After a run of this length the count of failures starts again.
pub(crate) const RAN_WELL: Duration = Duration::from_secs(60);

const fn waits(first: Duration, longest: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).without_max_times()
}

impl Backoff {
    /// The wait after a failure, with `before` earlier failures in a row.
    pub(crate) fn wait(&self, before: u32) -> Duration {
        let index =
            usize::try_from(before).map_or(DOUBLINGS_MAX, |failures| failures.min(DOUBLINGS_MAX));
        self.0.build().nth(index).expect("the number of waits has no bound")
    }
}

/// Waits until this moment; without one, for ever.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        None => std::future::pending().await,
        Some(at) => tokio::time::sleep_until(at).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits_of(backoff: &Backoff) -> Vec<u64> {
        let millis = |wait: Duration| (wait.as_secs_f64() * 1e3).round() as u64;
        (0..11).map(|before| millis(backoff.wait(before))).collect()
    }

    #[test]
    fn a_wait_doubles_with_each_failure_up_to_the_longest() {
        assert_eq!(
            waits_of(&RETRY),
            [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000, 10_000, 10_000]
        );
        assert_eq!(
            waits_of(&RESTART),
            [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]
        );
        assert_eq!(RETRY.wait(u32::MAX), Duration::from_secs(10));
    }

    #[test]
    fn a_dial_waits_a_random_time_between_the_delay_and_twice_the_delay() {
        for _ in 0..100 {
            for (before, delay) in (0..9).zip([10, 20, 40, 80, 160, 320, 640, 1000, 1000]) {
                let wait = DIAL.wait(before).as_secs_f64() * 1e3;
                let delay = f64::from(delay);
                assert!((delay - 0.01..2.0 * delay).contains(&wait), "{before}: {wait}");
            }
        }
        let waits: Vec<Duration> = (0..10).map(|_| DIAL.wait(20)).collect();
        assert!(waits.iter().any(|wait| wait != &waits[0]), "{waits:?}");
    }
}
