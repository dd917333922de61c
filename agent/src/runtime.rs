//! The runtime of this process: one thread.

use anyhow::Context;

/// Runs the work to its end.
///
/// # Errors
/// That of the work, or why the runtime cannot start.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let ended = runtime.block_on(work);
    // A pending DNS lookup must not delay the exit.
    runtime.shutdown_background();
    ended
}
