//! A coordinator that has not served an agent yet and sends nothing.

use anyhow::Context;
use leasehold_types::limits::SILENCE_MAX;

/// What the coordinator answers.
///
/// # Errors
/// If it is silent for [`SILENCE_MAX`]: a coordinator that keeps the agent's place sends more
/// often that the agent must wait.
pub async fn unless_silent<T>(answer: impl Future<Output = T>) -> anyhow::Result<T> {
    tokio::time::timeout(SILENCE_MAX, answer).await.with_context(|| {
        format!(
            "the coordinator is silent: it has not served this agent, and for {SILENCE_MAX:?} it \
             has not said that the agent must wait"
        )
    })
}
