//! When to try again what has failed.

use std::time::Duration;

use tokio::time::Instant;

/// The wait after the first failure, doubled with each up to [`MAX`].
const MIN: Duration = Duration::from_millis(250);
/// See [`MIN`].
const MAX: Duration = Duration::from_secs(10);

/// The wait, where it had failed so often in a row before.
pub(crate) fn wait(failures: u32) -> Duration {
    MIN.saturating_mul(1 << failures.min(16)).min(MAX)
}

/// Waits until then; for ever where there is no such moment.
pub(super) async fn until(at: Option<Instant>) {
    match at {
        None => std::future::pending().await,
        Some(at) => tokio::time::sleep_until(at).await,
    }
}
