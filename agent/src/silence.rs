//! A coordinator that has not served an agent yet and sends nothing.

use anyhow::Context;
use leasehold_proto::coordinator::v1::OpenSessionResponse;
use leasehold_types::limits::SILENCE_MAX;
use tonic::{Status, Streaming};

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

/// The next response of a session; none after its end. A coordinator that has served the agent,
/// which means that it has granted something, is silent between two beats.
///
/// # Errors
/// If the agent is not served and the coordinator is silent, as in [`unless_silent`].
pub async fn next_response(
    responses: &mut Streaming<OpenSessionResponse>,
    is_served: bool,
) -> anyhow::Result<Result<Option<OpenSessionResponse>, Status>> {
    if is_served { Ok(responses.message().await) } else { unless_silent(responses.message()).await }
}
