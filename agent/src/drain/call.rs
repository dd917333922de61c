//! The HTTP request that starts a drain.

use hyper::Method;
use serde::Deserialize;

use crate::http_client::{Call, CallError, Url};

/// Bytes of an agent's answer, which is one short line.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// When the agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Drain, and answer at once.
    Begin,
    /// Drain, and answer when the drain has ended.
    Wait,
    /// Drain for as long as this process lives, and answer when the drain is over.
    Hold,
}

/// Why a drain request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DrainError {
    /// The agent cannot be reached, or exited before it answered: it may restart.
    #[error("{0}")]
    Unavailable(String),
    /// The agent refused, or the server is not an agent.
    #[error("{0}")]
    Refused(String),
}

#[derive(Deserialize)]
struct DrainAnswer {
    #[serde(default)]
    jobs_left: u32,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    error: ErrorBody,
}

#[derive(Deserialize)]
struct ErrorBody {
    message: String,
}

/// Starts a drain, and returns how many jobs still run.
pub(super) async fn drain(agent: &Url, request: Request) -> Result<u32, DrainError> {
    let path = match request {
        Request::Begin => "/v1/drain?container=true",
        Request::Wait => "/v1/drain?wait=true&container=true",
        Request::Hold => "/v1/drain?hold=true",
    };
    let call = Call {
        method: Method::POST,
        url: &agent.at(path),
        authorization: None,
        json: None,
        timeout: None,
        answer_bytes_max: ANSWER_BYTES_MAX,
    };
    let address = agent.authority();
    let answer = call
        .send()
        .await
        .map_err(|error: CallError| DrainError::Unavailable(format!("{address}: {error}")))?;
    let text = || match serde_json::from_slice::<ErrorAnswer>(&answer.body) {
        Ok(answer) => answer.error.message,
        Err(_) => String::from_utf8_lossy(&answer.body).trim().to_owned(),
    };
    match answer.status {
        200 => {
            serde_json::from_slice(&answer.body).map(|it: DrainAnswer| it.jobs_left).map_err(|_| {
                DrainError::Refused(format!(
                    "{address} is not an agent: it answered {:?}; set --addr to the address of \
                 the agent's --listen",
                    text()
                ))
            })
        }
        // The agent is stopping, or has too many waiting clients.
        503 => Err(DrainError::Unavailable(text())),
        status => Err(DrainError::Refused(format!("{address} answered {status}: {}", text()))),
    }
}
