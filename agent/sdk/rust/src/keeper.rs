//! Ends streams and bindings in time, whether the agent answers or not.

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::state::Shared;

/// A timer of tokio's does not count the time that a suspended machine slept, which leases do.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Keeps time until it is dropped.
pub(crate) async fn keep_time(shared: Arc<Shared>) {
    let mut changes = shared.changes();
    loop {
        let next = shared.look().keep_time(clock::now());
        let changed = changes.changed();
        match next {
            None => drop(changed.await),
            Some(left) => drop(tokio::time::timeout(left.min(SLEEP_MAX), changed).await),
        }
    }
}
