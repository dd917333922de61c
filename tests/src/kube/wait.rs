//! Bounded waiting in tests on a cluster. Each wait says what it waited for and what it saw last.

use std::fmt::{Debug, Display};
use std::time::Duration;

use crate::process::{HANG, until_ok};

/// The interval between two polls.
pub const POLL: Duration = Duration::from_millis(50);

/// Looks until what is seen is as `wanted` says, and returns it.
///
/// # Panics
/// After [`HANG`], with `what` and what was seen last.
pub fn until<T: Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    mut wanted: impl FnMut(&T) -> bool,
) -> T {
    until_ok(what, || {
        let seen = look();
        if wanted(&seen) { Ok(seen) } else { Err(format!("the last was {seen:#?}")) }
    })
}

/// Asks until there is an answer, where asking is a task itself.
///
/// # Panics
/// After [`HANG`], with `what` and the last error.
pub async fn until_answer<T, E: Display>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let mut last = None;
    let asked = tokio::time::timeout(HANG, async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(why) => last = Some(why),
            }
            tokio::time::sleep(POLL).await;
        }
    });
    let in_time = asked.await;
    in_time.unwrap_or_else(|_| match last {
        Some(why) => panic!("timed out waiting for {what}: {why}"),
        None => panic!("timed out waiting for {what}: no answer"),
    })
}
