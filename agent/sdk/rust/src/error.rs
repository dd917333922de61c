//! What can go wrong between a worker and its agent.

use tonic::{Code, Status};

/// Why there is no job, no drain, or no worker at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The worker drains: no new job starts, ever again.
    #[error("the worker drains: no new job starts")]
    Draining,
    /// The agent's no.
    #[error("{reason}: {message}")]
    Refused {
        /// One of the worker API's words: `no_slot`, `no_lease`, `invalid`, …
        reason: String,
        /// The same for people.
        message: String,
    },
    /// A job of this id runs in this process, or waits to run.
    #[error("the job {0:?} runs, or waits to run, already")]
    Runs(String),
    /// The agent could not be asked.
    #[error("the agent cannot be asked: {0}")]
    Unreachable(String),
    /// The address is neither `http://HOST:PORT` nor `unix:PATH`.
    #[error("{0:?} is neither http://HOST:PORT nor unix:PATH")]
    Address(String),
    /// The worker was closed.
    #[error("the worker was closed")]
    Closed,
}

impl Error {
    /// The agent's word for its no; empty where it is none of the agent's.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Draining => "draining",
            Self::Refused { reason, .. } => reason,
            _ => "",
        }
    }

    pub(crate) fn lost(why: impl ToString) -> Self {
        Self::Unreachable(why.to_string())
    }
}

/// The agent writes `reason: message`; what it did not write is the connection's.
impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let parts = status.message().split_once(": ");
        match (status.code(), parts) {
            (Code::InvalidArgument, _) => {
                Self::Refused { reason: "invalid".into(), message: status.message().into() }
            }
            (Code::FailedPrecondition, Some(("draining", _))) => Self::Draining,
            (Code::FailedPrecondition, Some((reason, message)))
            | (Code::Unavailable, Some((reason @ "stopping", message))) => {
                Self::Refused { reason: reason.into(), message: message.into() }
            }
            _ => Self::Unreachable(format!("{}: {}", status.code(), status.message())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_the_agents_is_a_no_and_another_is_a_lost_connection() {
        let no = Error::from(Status::failed_precondition("no_slot: 1 jobs run, 1 may"));
        assert_eq!(no.reason(), "no_slot");
        assert_eq!(no.to_string(), "no_slot: 1 jobs run, 1 may");
        assert_eq!(Error::from(Status::failed_precondition("draining: …")), Error::Draining);
        assert_eq!(
            Error::from(Status::unavailable("stopping: the agent stops")).reason(),
            "stopping"
        );
        assert_eq!(Error::from(Status::invalid_argument("job_id: empty")).reason(), "invalid");
        assert!(matches!(Error::from(Status::unavailable("tcp: reset")), Error::Unreachable(_)));
    }
}
