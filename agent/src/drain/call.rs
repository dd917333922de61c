//! The HTTP request that starts a drain.

use hyper::Method;
use serde::Deserialize;

use crate::http_client::{Answer, Call, CallError, Url};

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
    /// The agent answered that it stops, or has too many waiting clients.
    #[error("{0}")]
    Busy(String),
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
    let answer = call.send().await.map_err(|error| match error {
        CallError::NotHttp(_) => {
            no_agent(address, &format!("{error}, as a coordinator's gRPC port does not"))
        }
        CallError::Refused | CallError::NotSent(_) | CallError::Lost(_) => {
            DrainError::Unavailable(format!("{address}: {error}"))
        }
    })?;
    if answer.status == 200 {
        let read = serde_json::from_slice(&answer.body).map(|answer: DrainAnswer| answer.jobs_left);
        return read.map_err(|_| no_agent(address, &format!("it answered {}", answer.summary())));
    }
    Err(refusal(address, &answer))
}

fn refusal(address: &str, answer: &Answer) -> DrainError {
    let message = serde_json::from_slice(&answer.body).map(|body: ErrorAnswer| body.error.message);
    match (answer.status, message) {
        (503, Ok(message)) => DrainError::Busy(message),
        (status, Ok(message)) => {
            DrainError::Refused(format!("{address} answered {status}: {message}"))
        }
        (_, Err(_)) => no_agent(address, &format!("it answered {}", answer.summary())),
    }
}

/// Another server answers at the address.
fn no_agent(address: &str, what: &str) -> DrainError {
    DrainError::Refused(format!(
        "{address} is not an agent's worker API: {what}. Set --addr to the address of the agent's \
         --listen, as in --addr http://127.0.0.1:7411; to ask a coordinator for the drain, use \
         `leasehold drain WORKER`"
    ))
}
