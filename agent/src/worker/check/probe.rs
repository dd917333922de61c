//! The checks that the agent makes itself: a call of a URL, a connection, or a command.

use std::time::Duration;

use hyper::Method;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::{Probe, ProbeTarget};
use crate::http_client::{ANSWER_BYTES_MAX, Call};
use crate::reaper::Reaper;
use crate::worker::command::UserCommand;

/// Asks the worker.
#[derive(Debug)]
pub(super) struct Prober {
    probe: Probe,
    reaper: Reaper,
}

impl Prober {
    pub(super) fn new(probe: Probe, reaper: Reaper) -> Self {
        Self { probe, reaper }
    }

    /// The time between two checks.
    pub(super) fn interval(&self) -> Duration {
        self.probe.interval
    }

    /// Asks once.
    ///
    /// # Errors
    /// If the worker does not answer in time, or not as one that lives.
    pub(super) async fn ask(&self) -> Result<(), String> {
        let limit = self.probe.timeout;
        match &self.probe.target {
            ProbeTarget::Http(url) => {
                let call = Call {
                    method: Method::GET,
                    url,
                    authorization: None,
                    json: None,
                    timeout: Some(limit),
                    answer_bytes_max: ANSWER_BYTES_MAX,
                };
                match call.send().await {
                    Ok(answer) if (200..400).contains(&answer.status) => Ok(()),
                    Ok(answer) => Err(format!("{url} answers {}", answer.status)),
                    Err(error) => Err(format!("{url}: {error}")),
                }
            }
            ProbeTarget::Tcp(address) => {
                match timeout(limit, TcpStream::connect(address.as_str())).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(format!("{address}: {error}")),
                    Err(_) => Err(format!("{address}: no connection within {limit:?}")),
                }
            }
            ProbeTarget::Exec(line) => {
                let (option, line) = ("--worker-check-exec", line.clone());
                let command = UserCommand { option, line, environment: Vec::new(), timeout: limit };
                let ran = command.run(&self.reaper).await;
                ran.map(drop).map_err(|error| format!("{error:#}"))
            }
        }
    }
}
