//! One call on an agent's worker API.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use crate::config::AgentUrl;

/// Bytes of an answer; agents' are a line long.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Drain.
    Begin,
    /// Drain, and answer at the end.
    Wait,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The agent is not there, or went away before it answered: it may come back.
    #[error("{0}")]
    Away(String),
    /// It said no, or is none.
    #[error("{0}")]
    Refused(String),
}

#[derive(Deserialize)]
struct Answer {
    jobs_left: u32,
}

#[derive(Deserialize)]
struct Denied {
    error: Denial,
}

#[derive(Deserialize)]
struct Denial {
    message: String,
}

/// Asks an agent to drain; the jobs that are left.
pub(super) async fn drain(agent: &AgentUrl, call: Call) -> Result<u32, Trouble> {
    let path = match call {
        Call::Begin => "/v1/drain",
        Call::Wait => "/v1/drain?wait=true",
    };
    let (status, body) = post(agent, path).await?;
    let text = || match serde_json::from_slice::<Denied>(&body) {
        Ok(denied) => denied.error.message,
        Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
    };
    match status {
        StatusCode::OK => {
            serde_json::from_slice(&body).map(|it: Answer| it.jobs_left).map_err(|error| {
                Trouble::Refused(format!("{:?} is no agent's answer: {error}", text()))
            })
        }
        // It stops, or cannot wait for one more.
        StatusCode::SERVICE_UNAVAILABLE => Err(Trouble::Away(text())),
        _ => Err(Trouble::Refused(format!("{} answers {status}: {}", agent.authority(), text()))),
    }
}

async fn post(agent: &AgentUrl, path: &str) -> Result<(StatusCode, axum::body::Bytes), Trouble> {
    let stream = TcpStream::connect(agent.target());
    let stream = stream.await.map_err(|error| away(agent, &error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| away(agent, &error))?;
    let request = Request::post(path)
        .header(header::HOST, agent.authority())
        .body(Body::empty())
        .map_err(|error| Trouble::Refused(error.to_string()))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| away(agent, &error))?;
        let status = response.status();
        let body = axum::body::to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await;
        Ok((status, body.map_err(|error| away(agent, &error))?))
    };
    // The connection does its work while it is polled, and has nothing to say of its own.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        answer = exchange => answer,
        never = driven => match never {},
    }
}

fn away(agent: &AgentUrl, error: &dyn std::error::Error) -> Trouble {
    let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
    Trouble::Away(format!("{}: {error}{cause}", agent.authority()))
}
