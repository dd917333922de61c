//! The checks that the agent makes itself: a call of a URL, a connection, or a command.

use std::time::Duration;

use hyper::Method;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::{Probe, ProbeTarget};
use crate::http_client::{ANSWER_BYTES_MAX, Call};
use crate::reaper::Reaper;
use crate::worker::shell_command::CommandFailed;
use crate::worker::user_command::UserCommand;

/// Why a check did not pass.
#[derive(Debug)]
pub(super) enum ProbeError {
    /// The worker does not answer in time, or not as one that lives.
    Failed(String),
    /// Its command cannot run. This counts as a failed check: else a worker whose check was removed
    /// would count as well for ever.
    CannotRun(String),
    /// The agent could not ask.
    NotAsked(String),
}

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
    /// If the worker fails the check, or could not be asked.
    pub(super) async fn ask(&self) -> Result<(), ProbeError> {
        let limit = self.probe.timeout;
        let failed = |why: String| Err(ProbeError::Failed(why));
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
                    Ok(answer) => failed(format!("{url} answers {}", answer.status)),
                    Err(error) => failed(format!("{url}: {error}")),
                }
            }
            ProbeTarget::Tcp(address) => {
                match timeout(limit, TcpStream::connect(address.as_str())).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => failed(format!("{address}: {error}")),
                    Err(_) => failed(format!("{address}: no connection within {limit:?}")),
                }
            }
            ProbeTarget::Exec(line) => {
                let (option, line) = ("--worker-check-exec", line.clone());
                let command = UserCommand { option, line, environment: Vec::new(), timeout: limit };
                match command.run(&self.reaper).await {
                    Ok(_) => Ok(()),
                    // The shell could not be started: that says nothing of the worker.
                    Err(error) if error.root_cause().is::<std::io::Error>() => {
                        Err(ProbeError::NotAsked(format!("{error:#}")))
                    }
                    Err(error) if cannot_run(&error) => {
                        Err(ProbeError::CannotRun(format!("{error:#}")))
                    }
                    Err(error) => failed(format!("{error:#}")),
                }
            }
        }
    }
}

fn cannot_run(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CommandFailed>().is_some_and(CommandFailed::could_not_run)
}
